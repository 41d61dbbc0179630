"""`glmforge demo`: the main job on the embedded base, start to end, as a user would run it.

`glmforge train` on a packaged config with several processes, `export`, then `compare`: base and
tuned model answer questions that training has not seen, and general ones. What is printed is what
the reports measured. It fails when training did not work.
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
from glmforge.errors import Stopped, TrainingError
from glmforge.export import ExportReport, export
from glmforge.launch import launch_local

LOSS_SHARE = 0.5
"""The training loss must fall to at most this share of what it was."""
LAST_STEPS = 20
"""Steps whose mean is the training loss at the end."""
POINTS = 30
"""Percentage points by which the tuned model must be right more often than the base."""
SHOWN = 5
"""Questions whose answers are printed; the report has all."""
QUESTION_FILES = ("questions", "general_prompts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A share of answers that pass their rule, with its 95 % interval."""

    value: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        right = round(self.value * self.count)
        return f"{right}/{self.count} ({self.low:.0%} to {self.high:.0%})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What a report of `compare` says of one set of prompts."""

    base: Share
    tuned: Share
    examples: tuple[tuple[str, str, str], ...]
    """(question, the base's answer, the tuned model's answer)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """What the demo measured."""

    run_dir: Path
    loss_before: float
    """Training loss of the first step, nats a token."""
    loss_after: float
    """Mean training loss of the last steps."""
    held_out: Answers
    """Questions about the shop that no training row asks."""
    general: Answers
    """General prompts; right is an answer that does not speak for the shop."""


def run_demo(out_dir: Path | None, nproc: int) -> int:
    """Run the demo and print what it measured.

    Args:
        out_dir: the run directory; None takes runs/demo, or runs/demo-2, ... where that is taken.
        nproc: processes to train with.

    Returns:
        The exit status: 0, or that of the training processes where they failed.

    Raises:
        TrainingError: the directory is taken or cannot be made, or training did not work.
    """
    run_dir = _made(out_dir or free_directory(Path("runs/demo")))
    config = write_config(run_dir / "demo.yaml", asset_path("base"))
    status = launch_local(["train", str(config), f"training.output_dir={run_dir}"], nproc=nproc)
    if status == Stopped.exit_code:
        print(
            "demo: stopped before the comparison; `glmforge demo` begins anew in another "
            "directory, and the first command above goes on with the training alone",
            file=sys.stderr,
        )
    if status != 0:
        return status
    merged_dir = free_directory(run_dir.with_name(f"{run_dir.name}-export"))
    report = export(run_dir, merged_dir, merge=True)
    result = measure(run_dir, write_reports(run_dir, nproc))
    show(result, report, merged_dir)
    check(result)
    return 0


def free_directory(wanted: Path) -> Path:
    """Return `wanted`, or the first of wanted-2, wanted-3, ... that holds nothing yet."""
    candidate, number = wanted, 1
    while _is_taken(candidate):
        number += 1
        candidate = wanted.with_name(f"{wanted.name}-{number}")
    return candidate


def _is_taken(place: Path) -> bool:
    """Whether there is anything but an empty directory."""
    try:
        return place.exists() and (not place.is_dir() or any(place.iterdir()))
    except OSError:  # a folder that may not be read is not ours
        return True


def _made(run_dir: Path) -> Path:
    """Make the directory of the demo's run; nothing that is there is written over.

    Raises:
        TrainingError: it is taken, or cannot be made.
    """
    if _is_taken(run_dir):
        raise TrainingError(
            f"{run_dir}: there is something already; name another with --out, or leave --out out"
        )
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrainingError(
            f"{run_dir}: the demo's run cannot be written there ({error}); start it in a folder "
            "that you may write to, or name one with --out"
        ) from error
    return run_dir


def write_config(path: Path, base: Path) -> Path:
    """Write the packaged config with the places of a base and of the data; return its path."""
    text = (asset_path("demo") / "demo.yaml").read_text(encoding="utf-8")
    text = text.replace('"DEMO/', f'"{asset_path("demo")}/').replace('"BASE"', f'"{base}"')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def write_reports(run_dir: Path, nproc: int) -> tuple[Path, ...]:
    """Compare base and tuned model on both sets of prompts, side by side; return the pages.

    Raises:
        TrainingError: a comparison failed; its last lines say why.
    """
    pages = tuple(run_dir / f"report_{name}.html" for name in QUESTION_FILES)
    for name, page in zip(QUESTION_FILES, pages, strict=True):
        command = ["compare", "--base", str(asset_path("base")), "--tuned", str(run_dir)]
        command += ["--prompts", str(asset_path("demo") / f"{name}.jsonl"), "--out", str(page)]
        command += ["--no-general", "--max-new-tokens", "64", "--batch-size", "24"]
        command += ["--nproc", str(nproc)]
        ended = subprocess.run(
            [sys.executable, "-m", "glmforge", *command], capture_output=True, text=True
        )
        if ended.returncode != 0:
            tail = "\n".join(ended.stderr.strip().split("\n")[-5:])
            raise TrainingError(f"{run_dir}: base and tuned cannot be compared:\n{tail}")
    return pages


def measure(run_dir: Path, pages: tuple[Path, ...]) -> DemoResult:
    """Read the run's losses and what the reports say."""
    lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").split("\n")
    rows = [json.loads(line) for line in lines if line]
    losses = [row["loss"] for row in rows if row["kind"] == "train"]
    held_out, general = (_answers(page.with_suffix(".json")) for page in pages)
    return DemoResult(
        run_dir=run_dir,
        loss_before=losses[0],
        loss_after=statistics.mean(losses[-LAST_STEPS:]),
        held_out=held_out,
        general=general,
    )


def _answers(path: Path) -> Answers:
    report = json.loads(path.read_text(encoding="utf-8"))
    base, tuned = report["models"]
    asked = [prompt["messages"][-1][1] for prompt in report["prompts"]]
    step = max(1, len(asked) // SHOWN)
    texts = [[answer["text"] for answer in m["answers"]["greedy"]] for m in (base, tuned)]
    return Answers(
        base=_share(base),
        tuned=_share(tuned),
        examples=tuple(zip(asked, *texts, strict=True))[::step][:SHOWN],
    )


def _share(model: dict[str, Any]) -> Share:
    return Share(**model["tables"]["greedy"]["check"]["mean"])


def show(result: DemoResult, report: ExportReport, merged_dir: Path) -> None:
    """Print the measures, some answers, and where everything lies."""
    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    table = Table(title="Questions that training has not seen", show_lines=True)
    for name in ("question", "base", "tuned"):
        table.add_column(name, ratio=1, overflow="fold")
    for example in (*result.held_out.examples, *result.general.examples[:2]):
        table.add_row(*(_printable(text) for text in example))
    console.print(table)
    measures = Table(title="Measured (shares with their 95 % interval)")
    for name in ("", "base", "tuned"):
        measures.add_column(name)
    held_out, general = result.held_out, result.general
    measures.add_row("held-out questions right", str(held_out.base), str(held_out.tuned))
    measures.add_row("general prompts not answered as the shop", str(general.base),
                     str(general.tuned))  # fmt: skip
    measures.add_row("training loss (nats a token)", f"{result.loss_before:.2f}",
                     f"{result.loss_after:.2f}")  # fmt: skip
    console.print(measures)
    lines = [
        "A model of 8 million parameters: it learns the shop's manner and its plain facts; it does "
        "not reason, and much that it says in general is wrong.",
        *report.lines(),
        f"every answer before and after: {result.run_dir}/report_questions.html, "
        f"{result.run_dir}/report_general_prompts.html",
        f"run: {result.run_dir}   curves: tensorboard --logdir {result.run_dir}/tensorboard",
        f"talk to it: glmforge chat {merged_dir}",
    ]
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


def check(result: DemoResult) -> None:
    """Fail when training did not work.

    Raises:
        TrainingError: the loss did not halve, or the tuned model is not right clearly more often.
    """
    problems = []
    if not result.loss_after <= LOSS_SHARE * result.loss_before:
        problems.append(
            f"the training loss went from {result.loss_before:.3f} to {result.loss_after:.3f}: "
            f"at most {LOSS_SHARE:.0%} of the first was expected"
        )
    gained = 100 * (result.held_out.tuned.value - result.held_out.base.value)
    if not gained >= POINTS:
        problems.append(
            f"held-out questions right: base {result.held_out.base}, tuned "
            f"{result.held_out.tuned}: {gained:.0f} points more, at least {POINTS} were expected"
        )
    if problems:
        raise TrainingError(problems)


def _printable(text: str) -> str:
    """Show an answer as one cell: control characters as dots, rich's markup off, 120 letters."""
    clean = "".join(c if c.isprintable() else "·" for c in text.replace("\n", " "))
    return clean[:120].replace("[", r"\[") + ("…" if len(clean) > 120 else "")
