"""What a run records and shows: metrics.jsonl, samples.jsonl, the progress bar, its trackers.

Only rank 0 writes. metrics.jsonl gets a line for every step and evaluation; console and trackers
follow `logging_steps`. stdout is left to results: progress goes to stderr.
"""

import json
import math
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from glmforge.config import RunConfig
from glmforge.distributed.collectives import Ranks
from glmforge.train.history import METRICS, SAMPLES, cut_records
from glmforge.train.tensorboard import Say, eval_scalars, sample_texts, train_scalars
from glmforge.train.trackers import Trackers, open_trackers

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One optimizer update, as metrics.jsonl has it (units in docs/run-directory.md)."""

    step: int
    epoch: float
    loss: float
    learning_rate: float
    grad_norm: float
    loss_scale: float
    skipped_steps: int
    trained_tokens: int
    tokens_per_second: float
    step_seconds: float
    data_seconds: float
    peak_gib: float


def peak_gib(device: torch.device) -> float:
    """Return the highest memory so far in GiB: allocated on the GPU, or resident on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / GIB
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kib * (1 if sys.platform == "darwin" else 1024) / GIB


def is_shown(step: int, logging_steps: int, total_steps: int) -> bool:
    """Say whether a step gets a line on the console and a point of each curve."""
    return step % logging_steps == 0 or step in (1, total_steps)


class Recorder:
    """Writes a run's records. On ranks other than 0 every method does nothing."""

    def __init__(
        self,
        directory: Path,
        *,
        is_main: bool,
        logging_steps: int,
        total_steps: int,
        start: int | None,
        trackers: Trackers,
    ) -> None:
        """Open the files, whose rows after step `start` have been dropped; None: of all steps."""
        self._is_main = is_main
        self._logging_steps = logging_steps
        self._total_steps = total_steps
        self._trackers = trackers
        self._bar: _Bar | None = None
        if not is_main:
            return
        self._file: TextIO = open(directory / METRICS, "a", encoding="utf-8")  # noqa: SIM115
        self._samples: TextIO = open(directory / SAMPLES, "a", encoding="utf-8")  # noqa: SIM115
        self._bar = _Bar(total_steps, start or 0)

    def step(self, record: StepRecord, gathered: Sequence[Sequence[float]]) -> None:
        """Record one update; `gathered` holds each rank's values as the loop shared them."""
        if not self._is_main or self._bar is None:
            return
        row = {"kind": "train", **asdict(record)}
        self._write(row)
        shown = is_shown(record.step, self._logging_steps, self._total_steps)
        self._bar.advance(record, line=shown)
        if record.step % self._logging_steps == 0:
            for rank, (_, seconds, data, peak, tokens, _, forward, _) in enumerate(gathered):
                self._write(
                    {
                        "kind": "rank",
                        "rank": rank,
                        "step": record.step,
                        "step_seconds": seconds,
                        "data_seconds": data,
                        "forward_seconds": forward,
                        "peak_gib": peak,
                        "tokens": int(tokens),
                    }
                )
        if shown:
            self._trackers.scalars(train_scalars(row), record.step)

    def evaluation(self, values: Mapping[str, Any]) -> None:
        """Record one evaluation: `step`, `epoch`, `eval_loss` and what else it measured."""
        if not self._is_main:
            return
        self._write({"kind": "eval", **values})
        self._trackers.scalars(eval_scalars(values), values["step"])
        if "eval_loss" in values:
            self.say(
                f"step {values['step']}  eval_loss {values['eval_loss']:.4f} "
                f"(perplexity {perplexity(values['eval_loss']):,.4g}) over "
                f"{values['eval_tokens']:,} tokens"
            )

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Record generated answers: prompt, answer, stop reason."""
        if not self._is_main:
            return
        for row in rows:
            self._samples.write(json.dumps({"step": step, **row}, ensure_ascii=False) + "\n")
        self._samples.flush()
        self._trackers.texts(sample_texts(rows), step)

    def say(self, line: str) -> None:
        """Print one line for people, on rank 0, without breaking the progress bar."""
        if self._bar is not None:
            self._bar.say(line)

    def close(self) -> None:
        """Flush and close everything."""
        if not self._is_main or self._bar is None:
            return
        self._bar.close()
        self._trackers.close()
        self._file.close()
        self._samples.close()

    def _write(self, row: Mapping[str, Any]) -> None:
        # JSON has no NaN and no infinity: null says that a number is not finite.
        finite = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in row.items()
        }
        self._file.write(json.dumps(finite, ensure_ascii=False) + "\n")
        self._file.flush()


def perplexity(loss: float) -> float:
    """The exponential of a loss in nats a token: infinite where it is too large for a number."""
    return math.exp(loss) if loss < math.log(sys.float_info.max) else math.inf


def open_recorder(
    config: RunConfig,
    directory: Path,
    ranks: Ranks,
    total_steps: int,
    *,
    start: int | None,
    say: Say,
) -> Recorder:
    """Open a run's records and trackers; a collective.

    Args:
        config: of the run.
        directory: of the run.
        ranks: all ranks.
        total_steps: of the whole run.
        start: the step that a resumed run goes on from; None for a run from its beginning.
        say: prints a line for people.

    Raises:
        CheckpointError: a record cannot be kept; on every rank.
        TrainingError: a tracker does not start; on every rank.
    """
    for line in ranks.on_main(lambda: cut_records(directory, start)):
        say(line)
    every = config.training.logging_steps
    trackers = open_trackers(
        config,
        directory,
        ranks,
        start=start,
        is_shown=lambda step: is_shown(step, every, total_steps),
        say=say,
    )
    return Recorder(
        directory,
        is_main=ranks.is_main,
        logging_steps=every,
        total_steps=total_steps,
        start=start,
        trackers=trackers,
    )


class _Bar:
    """The progress bar on a terminal; a line each `logging_steps` elsewhere."""

    def __init__(self, total_steps: int, start: int) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._total, self._start = total_steps, start
        self._since = time.perf_counter()
        self._progress: Progress | None = None
        if self._console.is_terminal:
            self._progress = Progress(
                TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
                BarColumn(),
                TextColumn("{task.fields[numbers]}"),
                TextColumn("ETA"),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._task = self._progress.add_task(
                "train", total=total_steps, completed=start, numbers=""
            )
            self._progress.start()

    def advance(self, record: StepRecord, *, line: bool) -> None:
        numbers = (
            f"loss {record.loss:.4f} | {record.tokens_per_second:,.0f} tok/s | "
            f"{record.peak_gib:.1f} GiB peak"
        )
        if self._progress is not None:
            self._progress.update(self._task, completed=record.step, numbers=numbers)
        elif line:
            done = record.step - self._start
            left = (time.perf_counter() - self._since) / done * (self._total - record.step)
            self._console.print(
                f"step {record.step}/{self._total} | epoch {record.epoch:.2f} | {numbers} | "
                f"lr {record.learning_rate:.2e} | ETA {left:,.0f} s",
                markup=False,
            )

    def say(self, line: str) -> None:
        self._console.print(line, markup=False)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
