"""`glmforge demo`: the main job on the embedded default, start to end, as a user would run it.

`glmforge train` on a packaged config with several processes, `export`, the exported model opened
in a fresh process, the same prompts answered before and after, and a report of both. It fails when
training did not change the model.
"""

import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from glmforge.assets import asset_path
from glmforge.config.paths import holds_run
from glmforge.errors import TrainingError
from glmforge.export import ExportReport, export
from glmforge.launch import launch_local

LOSS_SHARE = 0.5
"""The training loss must fall to at most this share of what it was."""
LAST_STEPS = 50
"""Steps whose mean is the training loss at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """What the demo measured."""

    run_dir: Path
    merged_dir: Path
    loss_before: float
    """Training loss of the first step, nats a token."""
    loss_after: float
    """Mean training loss of the last steps."""
    held_out: tuple[float, float]
    """Validation loss before the first and after the last step."""
    answers: tuple[tuple[str, str, str], ...]
    """(prompt, answer before, answer after)."""


def run_demo(out_dir: Path | None, nproc: int) -> int:
    """Run the demo and print its table.

    Args:
        out_dir: the run directory; None takes runs/demo, or runs/demo-2, ... where that is taken.
        nproc: processes to train with.

    Returns:
        The exit status: 0, or that of the training processes where they failed.

    Raises:
        TrainingError: training did not change the model enough.
    """
    run_dir = out_dir or free_directory(Path("runs/demo"))
    files = asset_path("demo")
    prompts = (files / "prompts.txt").read_text(encoding="utf-8").split("\n")
    prompts = [line for line in prompts if line]
    status = launch_local(
        [
            "train",
            str(files / "demo.yaml"),
            f"model.model_name_or_path={files / 'model'}",
            f"data.train={files / 'train.jsonl'}",
            f"data.validation={files / 'validation.jsonl'}",
            f"training.output_dir={run_dir}",
            f"generation.prompts={json.dumps(prompts, ensure_ascii=False)}",
        ],
        nproc=nproc,
    )
    if status != 0:
        return status
    merged_dir = free_directory(run_dir.with_name(f"{run_dir.name}-export"))
    report = export(run_dir, merged_dir, merge=True)
    result = measure(run_dir, merged_dir)
    page = write_report(run_dir)
    show(result, report)
    print(f"report, every answer before and after: {page}")
    check(result)
    return 0


def free_directory(wanted: Path) -> Path:
    """Return `wanted`, or the first of wanted-2, wanted-3, ... that holds nothing yet."""
    candidate, number = wanted, 1
    while candidate.exists() and (holds_run(candidate) or any(candidate.iterdir())):
        number += 1
        candidate = wanted.with_name(f"{wanted.name}-{number}")
    return candidate


def measure(run_dir: Path, merged_dir: Path) -> DemoResult:
    """Read the run's first and last evaluation, and ask the exported model in a fresh process."""
    rows = _rows(run_dir / "metrics.jsonl")
    evaluations = [row["eval_loss"] for row in rows if row["kind"] == "eval"]
    losses = [row["loss"] for row in rows if row["kind"] == "train"]
    before = {
        row["prompt"]: row["answer"] for row in _rows(run_dir / "samples.jsonl") if row["step"] == 0
    }
    after = fresh_answers(merged_dir, list(before))
    return DemoResult(
        run_dir=run_dir,
        merged_dir=merged_dir,
        loss_before=losses[0],
        loss_after=statistics.mean(losses[-LAST_STEPS:]),
        held_out=(evaluations[0], evaluations[-1]),
        answers=tuple((prompt, before[prompt], after[prompt]) for prompt in before),
    )


def fresh_answers(directory: Path, prompts: list[str]) -> dict[str, str]:
    """Ask the model in `directory` each prompt, in a new Python process.

    Raises:
        TrainingError: the process failed; its last lines say why.
    """
    command = [sys.executable, "-m", "glmforge", "chat", str(directory), "--json"]
    for prompt in prompts:
        command += ["--prompt", prompt]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join(done.stderr.strip().split("\n")[-5:])
        raise TrainingError(f"{directory}: a fresh process cannot answer with it:\n{tail}")
    rows = (json.loads(line) for line in done.stdout.splitlines())
    return {row["prompt"]: row["answer"] for row in rows}


def write_report(run_dir: Path) -> Path:
    """Compare the run with the random weights it began from, in a new process; return the page.

    Raises:
        TrainingError: the process failed; its last lines say why.
    """
    files, page = asset_path("demo"), run_dir / "report.html"
    command = ["compare", "--base", str(files / "model"), "--tuned", str(run_dir), "--prompts"]
    command += [str(files / "validation.jsonl"), "--out", str(page), "--no-general"]
    command += ["--max-new-tokens", "64", "--batch-size", "24"]
    done = subprocess.run(
        [sys.executable, "-m", "glmforge", *command], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        tail = "\n".join(done.stderr.strip().split("\n")[-5:])
        raise TrainingError(f"{run_dir}: before and after cannot be compared:\n{tail}")
    return page


def show(result: DemoResult, report: ExportReport) -> None:
    """Print the answers before and after, the losses, and where everything lies."""
    console = Console(width=None if sys.stdout.isatty() else 100)
    table = Table(title="The same questions, before and after training", show_lines=True)
    for name in ("question", "before (random weights)", "after"):
        table.add_column(name, ratio=1, overflow="fold")
    for prompt, before, after in result.answers:
        table.add_row(*(_printable(text) for text in (prompt, before, after)))
    console.print(table)
    console.print(
        f"training loss {result.loss_before:.2f} -> {result.loss_after:.2f}, validation loss "
        f"{result.held_out[0]:.2f} -> {result.held_out[1]:.2f} nats a token. The model started "
        "from random weights and has seen nothing but these dialogues: expect the shop's style, "
        "not its facts.",
        highlight=False,
    )
    for line in report.lines():
        console.print(line, highlight=False, markup=False)
    console.print(
        f"run: {result.run_dir}   curves: tensorboard --logdir {result.run_dir}/tensorboard\n"
        f"talk to it: glmforge chat {result.merged_dir}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def check(result: DemoResult) -> None:
    """Fail when training did not change the model.

    Raises:
        TrainingError: the loss did not halve, or no answer changed.
    """
    problems = []
    if not result.loss_after <= LOSS_SHARE * result.loss_before:
        problems.append(
            f"the training loss went from {result.loss_before:.3f} to {result.loss_after:.3f}: "
            f"at most {LOSS_SHARE:.0%} of the first was expected"
        )
    if all(before == after for _, before, after in result.answers):
        problems.append("no answer changed")
    if problems:
        raise TrainingError(problems)


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def _printable(text: str) -> str:
    """Show an answer as one cell: control characters as escapes, rich's markup off, 120 letters."""
    clean = "".join(c if c.isprintable() else "·" for c in text.replace("\n", " "))
    return clean[:120].replace("[", r"\[") + ("…" if len(clean) > 120 else "")
