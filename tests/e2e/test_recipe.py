"""The recipe of docs/recipe.md, command by command, on a tiny model with 4 steps for its 500."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from e2e_project import CONFIG_JSON, Project, dialogues
from safetensors.torch import load_file

from glmforge.models import load_config, new_model

# Some twenty commands: four minutes on two cores, more on busy machines.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


def blocks(page: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def small(text: str) -> str:
    """The commands as written, 4 steps and a short length in place of 500 and 2048."""
    for old, new in (
        ("step-000500", "step-000004"),
        ("global_step500", "global_step4"),
        ("max_steps: 500, save_steps: 500", "max_steps: 4, learning_rate: 5.0e-2"),
        ("validation: validation.jsonl}", "validation: validation.jsonl, max_length: 64}"),
        ("--length 2048", "--length 128"),
        ("max_new_tokens=64", "max_new_tokens=8"),
    ):
        text = text.replace(old, new)
    return text


class Walk:
    """A working directory in which the blocks of the page have been run up to some place."""

    def __init__(self, directory: Path, page: Path) -> None:
        self.directory = directory
        self.project = Project(directory, {})
        self.outputs: list[tuple[str, str]] = []
        for kind, text in blocks(page):
            self._run(kind, small(text))

    def _run(self, kind: str, text: str) -> None:
        name = re.match(r"# (\S+)\n", text)
        if kind == "yaml":
            assert name is not None
            (self.directory / name[1]).write_text(text, encoding="utf-8")
            return
        if kind == "python":
            assert name is not None
            (self.directory / name[1]).write_text(text, encoding="utf-8")
            text = f"{sys.executable} {name[1]}"
        process = self.project.start("bash", "-e", "-c", text, HF_HUB_OFFLINE="1")
        try:
            out, err = process.communicate(timeout=900)
        finally:
            process.kill()
        assert process.returncode == 0, f"{text}\n{out[-1500:]}\n{err[-3000:]}"
        self.outputs.append((text, out))

    def said(self, command: str) -> str:
        return next(out for text, out in self.outputs if command in text)


@pytest.fixture(scope="module")
def walk(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory, root: Path) -> Walk:
    directory = tmp_path_factory.mktemp("recipe")
    base = directory / "base"
    base.mkdir()
    for path in tiny_model.iterdir():
        (base / path.name).write_bytes(path.read_bytes())
    keys: dict[str, Any] = CONFIG_JSON | {"hidden_size": 32}
    (base / "config.json").write_text(json.dumps(keys), encoding="utf-8")
    torch.manual_seed(0)
    new_model(load_config(base)).save_pretrained(base)
    for name in ("train", "validation"):
        rows = dialogues() if name == "train" else dialogues()[1:]
        lines = [json.dumps(row) for row in rows]
        (directory / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Walk(directory, root / "docs" / "recipe.md")


def test_both_languages_have_the_same_commands(root: Path) -> None:
    """What is tested in one is right in the other."""
    assert blocks(root / "docs" / "recipe.md") == blocks(root / "docs" / "zh" / "recipe.md")


def test_both_ways_of_consolidating_give_the_same_adapter(walk: Walk) -> None:
    """`glmforge consolidate`, DeepSpeed's own script, and what training saved."""
    names = ("adapter", "adapter-stock", "runs/shop/checkpoints/step-000004/adapter")
    ours, stock, saved = (
        load_file(walk.directory / name / "adapter_model.safetensors") for name in names
    )
    assert len(ours) == 4
    assert ours.keys() == stock.keys() == saved.keys()
    assert all(torch.equal(ours[n], stock[n]) and torch.equal(ours[n], saved[n]) for n in ours)


def test_the_last_adapter_is_the_last_checkpoints_byte_for_byte(walk: Walk) -> None:
    """`--init-from` compares the one with what the other's manifest says."""
    run = walk.directory / "runs" / "shop"
    name = "adapter/adapter_model.safetensors"
    step = json.loads((run / "final.json").read_text(encoding="utf-8"))["step"]
    last = run / "checkpoints" / f"step-{step:06d}"
    assert (run / name).read_bytes() == (last / name).read_bytes()


def test_both_ways_of_consolidating_give_the_same_model(walk: Walk) -> None:
    """ZeRO-3 on two ranks, whole weights; and what training saved."""
    names = ("full", "runs/full/consolidated", "runs/full/model")
    ours, stock, saved = (load_file(walk.directory / n / "model.safetensors") for n in names)
    assert ours.keys() == saved.keys()
    assert ours.keys() <= stock.keys()
    assert all(torch.equal(ours[n], stock[n]) and torch.equal(ours[n], saved[n]) for n in ours)


def test_the_merge_by_hand_and_the_proven_one_agree(walk: Walk) -> None:
    """Stock PEFT's merge_and_unload and `glmforge export --merge`, tensor by tensor."""
    one, other = (
        load_file(walk.directory / name / "model.safetensors")
        for name in ("merged-by-hand", "merged")
    )
    assert one.keys() == other.keys()
    assert all((one[n] - other[n]).abs().max() < 1e-6 for n in one)
    assert "merged vs base + adapter (fp32)" in walk.said("export adapter merged")


def test_the_answers_and_the_loss_before_and_after_are_shown(walk: Walk) -> None:
    """Two prompts, two losses, and the length that holds."""
    shown = walk.said("before_and_after.py")
    assert (shown.count("before:"), shown.count("after:")) == (2, 2)
    losses = re.findall(r"validation loss (\d+\.\d+)", walk.said("glmforge evaluate"))
    assert len(losses) == 2
    assert float(losses[1]) < float(losses[0])
    assert "holds: 2 x 128 tokens" in walk.said("--stress")


def test_the_options_of_the_tutorials_are_refused_by_todays_script(walk: Walk) -> None:
    """--checkpoint_dir and --output_file, as the page says."""
    checkpoint = walk.directory / "runs/shop/checkpoints/step-000004"
    script = str(checkpoint / "zero_to_fp32.py")
    old = ("--checkpoint_dir", str(checkpoint / "global_step4"), "--output_file", "out.bin")
    done = walk.project.run(sys.executable, script, *old)
    assert done.returncode == 2
    assert "checkpoint_dir" in done.stderr
