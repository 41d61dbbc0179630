"""The tutorial of docs/tutorial.md, command by command, on a tiny model and CPU processes."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from e2e_project import BIN, Project
from safetensors.torch import load_file

from glmforge.launch.ports import free_port
from glmforge.models import load_config, new_model

# Some forty commands: five minutes on two cores, more on busy machines.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(shutil.which("curl") is None, reason="the page asks with curl"),
]

BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
STEPS_BEFORE_CTRL_C = 3
INTERRUPTED = "glmforge train run.yaml --nproc 2\n"
SERVICES = {"glmforge serve": "OpenAI API", "tensorboard": "TensorBoard"}
"""Commands that do not end by themselves, and a word that they say when they are ready."""

# A stand-in for Slurm's: reads the job script as bash would, and its own variables.
SBATCH = """#!/bin/sh
bash -n "$1" && echo "job 1 on $SBATCH_PARTITION for $SBATCH_TIMELIMIT"
"""


def table(model: Path, root: Path) -> list[tuple[str, str]]:
    """What stands in the page, and what takes its place here."""
    return [
        # Installed already; the recipe of the Makefile is read, not run.
        ("make setup", f"make -n -C {root} setup"),
        ("hf download THUDM/chatglm3-6b --local-dir models/chatglm3-6b --exclude \"*.bin\"",
         f"mkdir -p models && cp -r {model} models/chatglm3-6b"),
        # CPU processes for GPUs; two "machines" of one process each are this one.
        ("--gpus 0,1", "--nproc 2"),
        ("--nproc 8", "--nproc 1"),
        ("10.0.0.1:29400", f"127.0.0.1:{free_port()}"),
        ("8000", str(free_port())),
        # Sizes: a short row and short answers, and a run of seconds.
        ("max_length: 2048", "max_length: 256"),
        ("--length 2048", "--length 256"),
        ("learning_rate: 1.0e-4", "learning_rate: 5.0e-3"),
        ("save_steps: 100", "save_steps: 10"),
        ("{stage: 2}}", "{stage: 2}}\ngeneration: {max_new_tokens: 8}"),
        ("glmforge evaluate", "glmforge evaluate --max-new-tokens 8"),
        ("glmforge compare --base", "glmforge compare --max-new-tokens 8 --base"),
        ("glmforge chat runs/first", "glmforge chat runs/first --max-new-tokens 8"),
        ("max_new_tokens=64", "max_new_tokens=8"),
    ]  # fmt: skip


class Walk:
    """A working directory in which the blocks of the page have been run in order."""

    def __init__(self, directory: Path, page: Path, changes: list[tuple[str, str]]) -> None:
        self.directory = directory
        self.project = Project(directory, {})
        self.said: dict[str, str] = {}
        self.service: subprocess.Popen[str] | None = None
        self.first_machine: tuple[str, subprocess.Popen[str]] | None = None
        text = page.read_text(encoding="utf-8")
        self.unused = [old for old, _ in changes if old not in text]
        blocks = BLOCK.findall(text)
        for place, (kind, written) in enumerate(blocks):
            small = written
            for old, new in changes:
                small = small.replace(old, new)
            following = blocks[place + 1] if place + 1 < len(blocks) else ("", "")
            self.take(kind, written, small, typed=following[1] if following[0] == "text" else None)
        self.end_service()

    def take(self, kind: str, written: str, small: str, *, typed: str | None) -> None:
        """Do with one block what its reader does."""
        if kind in ("yaml", "python"):
            name = re.match(r"# (\S+)\n", small)
            assert name is not None
            (self.directory / name[1]).write_text(small, encoding="utf-8")
        if kind == "python":
            self.finish(written, self.start(f"{sys.executable} {name[1]}"))
        if kind != "bash":
            return
        if self.service is not None and "curl" not in written:
            self.end_service()
        process = self.start(small)
        if (
            ready := next((SERVICES[c] for c in SERVICES if small.startswith(c)), None)
        ) is not None:
            self.await_service(written, process, ready)
        elif "--node-rank 0" in written:
            self.first_machine = (written, process)
        elif written == INTERRUPTED:
            self.press_ctrl_c(process)
            self.finish(written, process, status=75)
        else:
            self.finish(written, process, typed=typed)
            if self.first_machine is not None:
                self.finish(*self.first_machine)
                self.first_machine = None

    def start(self, text: str) -> subprocess.Popen[str]:
        path = f"{self.directory / 'bin'}{os.pathsep}{BIN}{os.pathsep}{os.environ['PATH']}"
        # exec: a lone command gets the signals, as from a terminal.
        alone = text.count("\n") == 1 and text.startswith(("glmforge", "tensorboard"))
        return self.project.start(
            "bash", "-e", "-c", f"exec {text}" if alone else text, HF_HUB_OFFLINE="1", PATH=path,
            stdin=subprocess.PIPE,
        )  # fmt: skip

    def finish(
        self,
        written: str,
        process: subprocess.Popen[str],
        *,
        typed: str | None = None,
        status: int = 0,
    ) -> None:
        try:
            out, err = process.communicate(typed, timeout=600)
        finally:
            process.kill()
        assert process.returncode == status, f"{written}\n{out[-1500:]}\n{err[-3000:]}"
        self.said[written] = out + err

    def press_ctrl_c(self, process: subprocess.Popen[str]) -> None:
        metrics = self.directory / "runs" / "first" / "metrics.jsonl"
        end = time.monotonic() + 300
        while not metrics.is_file() or metrics.read_text().count("train") < STEPS_BEFORE_CTRL_C:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)

    def await_service(self, written: str, process: subprocess.Popen[str], ready: str) -> None:
        """Leave a service running behind the next blocks once it says that it is ready."""
        self.service = process
        stream = process.stderr if "tensorboard" in written else process.stdout
        assert stream is not None
        heard = ""
        while ready not in heard:
            line = stream.readline()
            assert line, f"{written}\n{heard}\n{process.communicate()}"
            heard += line
        self.said[written] = heard

    def end_service(self) -> None:
        if self.service is not None:
            self.service.send_signal(signal.SIGINT)
            self.service.communicate(timeout=60)
            self.service = None

    def heard(self, command: str) -> str:
        """What the one block with this command in it said."""
        (found,) = [said for written, said in self.said.items() if command in written]
        return found

    def run_of(self, name: str) -> dict[str, object]:
        path = self.directory / "runs" / name / "final.json"
        return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Walk:
    directory = tmp_path_factory.mktemp("tutorial")
    demo = root / "src" / "glmforge" / "assets" / "demo"
    model = directory / "hub" / "chatglm3-6b"
    shutil.copytree(root / "tests" / "tiny_model", model)
    torch.manual_seed(0)
    new_model(load_config(model)).save_pretrained(model)
    train = (demo / "train.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    for name, lines in (("train", train[:100]), ("dev", train[100:108]), ("held-out", train[-6:])):
        (directory / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    (directory / ".venv").symlink_to(sys.prefix)
    (directory / "bin").mkdir()
    (directory / "bin" / "sbatch").write_text(SBATCH, encoding="utf-8")
    (directory / "bin" / "sbatch").chmod(0o755)
    return Walk(directory, root / "docs" / "tutorial.md", table(model, root))


def test_nothing_is_replaced_that_the_page_does_not_say(walk: Walk) -> None:
    """A row of the table that fits nothing would hide a changed command."""
    assert walk.unused == []


def test_data_and_plan_are_looked_at_before_training(walk: Walk) -> None:
    """The verdict, the coloured page, the plan that fits, two steps that leave nothing."""
    assert "nothing speaks against training" in walk.heard("data check")
    assert "rows written to rows.html" in walk.heard("data preview")
    plan = walk.heard("glmforge plan")
    assert "needed of 24 GiB: fits" in plan
    assert "preflight: nothing was written" in plan


def test_a_stopped_run_goes_on_to_its_end(walk: Walk) -> None:
    """Ctrl-C in the first training, watched meanwhile, resumed."""
    assert "checkpoint" in walk.heard(INTERRUPTED)
    assert "step-0000" in walk.heard("tail -n 1")
    final = walk.run_of("first")
    assert (final["status"], final["step"]) == ("complete", final["total_steps"])


@pytest.mark.parametrize("run", ["second", "full", "by-torchrun", "two-machines", "third"])
def test_the_other_ways_to_train_end_too(walk: Walk, run: str) -> None:
    """Another rank, all weights at ZeRO-3, torchrun, two machines, from another's weights."""
    assert walk.run_of(run)["status"] == "complete"


def test_the_slurm_job_is_written_and_submitted(walk: Walk) -> None:
    """With what sbatch reads from its own variables."""
    assert "runs/on-slurm.sbatch: job 1 on gpu for 24:00:00" in walk.heard("--slurm")
    script = (walk.directory / "runs" / "on-slurm.sbatch").read_text(encoding="utf-8")
    assert "--resume auto" in script


def test_tuning_lowers_the_validation_loss(walk: Walk) -> None:
    """Base, last weights, best checkpoint."""
    said = walk.heard("glmforge evaluate")
    base, last, best = map(float, re.findall(r"validation loss (\d+\.\d+)", said))
    assert best <= last < base


def test_the_comparison_has_its_report_and_a_verdict_each(walk: Walk) -> None:
    """Two tuned models, references, three seeds, two processes."""
    said = walk.heard("glmforge compare --base")
    assert re.findall(r"^(\w+): .*validation loss", said, re.MULTILINE) == ["first", "second"]
    report = json.loads((walk.directory / "report.json").read_text(encoding="utf-8"))
    assert list(report["models"][1]["answers"]) == ["greedy", "sample-1", "sample-2", "sample-3"]
    assert (walk.directory / "report.answers" / "rank-1.jsonl").is_file()
    assert (walk.directory / "report.html").read_text(encoding="utf-8").startswith("<!doctype")


def test_the_weights_come_out_proven(walk: Walk) -> None:
    """The joined adapter is the saved one; merged models were compared with base and adapter."""
    checkpoints = walk.directory / "runs" / "first" / "checkpoints"
    best = checkpoints / (checkpoints / "best").read_text(encoding="utf-8").strip()
    joined, saved = (
        load_file(place / "adapter_model.safetensors")
        for place in (walk.directory / "adapter-best", best / "adapter")
    )
    assert joined.keys() == saved.keys()
    assert all(torch.equal(joined[name], saved[name]) for name in joined)
    exported = walk.heard("merged-hf --merge")
    assert exported.count("merged vs base + adapter (fp32)") == 2
    assert "stock transformers alone" in exported
    assert walk.heard("AutoTokenizer") != ""
    for name in ("merged", "merged-hf", "adapter-hf"):
        card = (walk.directory / name / "README.md").read_text(encoding="utf-8")
        assert "data hash" in card, "the joined shards still tell what they were trained on"
    assert (walk.directory / "adapter-hf" / "adapter_config.json").is_file()


def test_the_model_answers_in_terminal_and_service(walk: Walk) -> None:
    """Four answers to the typed lines, the length that holds, a streamed answer over HTTP."""
    said = walk.heard("glmforge chat runs/first")
    assert said.count("answers now") == 2
    assert "holds: 4 x 256 tokens" in walk.heard("--stress")
    asked = walk.heard("curl")
    assert '"id":"base"' in asked
    assert asked.rstrip().endswith("data: [DONE]")
