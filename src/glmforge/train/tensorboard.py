"""TensorBoard's event files of a run: scalars, sample answers as text, settings as hparams.

One of the trackers behind ``trackers.Tracker``. Each batch of points is flushed at once, so that
only this module meets the disk. Where the directory is lost (deleted while the run goes on, or
missing when it is resumed), it is made again from metrics.jsonl and samples.jsonl, which the
recorder has written before: the curve is whole, and a line says what happened.
"""

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Say = Callable[[str], None]

TRAIN_SCALARS = (
    "loss",
    "learning_rate",
    "grad_norm",
    "loss_scale",
    "skipped_steps",
    "tokens_per_second",
    "step_seconds",
    "data_seconds",
    "peak_gib",
)
"""What is shown of a step, by the names of metrics.jsonl, under ``train/``."""

_ROOM_BYTES = 1 << 20
"""Less free space counts as a full disk: the writer's thread dies of one with a traceback."""
_SELDOM_SECONDS = 1 << 30  # the writer's own thread never flushes: we do


def train_scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """Return what trackers show of a train line of metrics.jsonl."""
    return {f"train/{name}": _number(row.get(name)) for name in TRAIN_SCALARS if name in row}


def eval_scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """Return what trackers show of an evaluation's line: every number but step and epoch."""
    kept = {name: value for name, value in row.items() if name not in ("step", "epoch")}
    return {f"eval/{name}": value for name, value in kept.items() if isinstance(value, int | float)}


def sample_texts(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the answers of one evaluation as Markdown, a text a prompt."""
    return {
        f"samples/{number}": f"**{row['prompt']}**\n\n{row['answer']}\n\n({row['stop_reason']})"
        for number, row in enumerate(rows)
    }


def _number(value: float | None) -> float:
    """Read a number of metrics.jsonl, where null says that it is not finite."""
    return float("nan") if value is None else value


class TensorBoard:
    """Writes ``tensorboard/`` of a run directory."""

    def __init__(
        self,
        directory: Path,
        *,
        start: int | None,
        settings: Mapping[str, Any],
        is_shown: Callable[[int], bool],
        say: Say,
    ) -> None:
        """Prepare to write; the first point opens the file.

        Args:
            directory: of the run.
            start: the step that a resumed run goes on from; events after it are purged. None is a
                run from its beginning.
            settings: the run's settings by dotted name, for the hparams page.
            is_shown: says whether a step's numbers are shown.
            say: prints a line for people.
        """
        self._run = directory
        self._folder = directory / "tensorboard"
        self._start = start
        self._settings = settings
        self._is_shown = is_shown
        self._say = say
        self._writer: Any = None
        self._file: Path | None = None

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Add one point to several curves."""

        def add() -> None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

        self._write(add)

    def texts(self, texts: Mapping[str, str], step: int) -> None:
        """Add texts."""

        def add() -> None:
            for name, text in texts.items():
                self._writer.add_text(name, text, step)

        self._write(add)

    def close(self, *, failed: bool) -> None:
        """Close the file."""
        del failed
        if self._writer is not None:
            with contextlib.suppress(FileNotFoundError):  # its directory is gone: nothing pends
                self._writer.close()

    def _write(self, add: Callable[[], None]) -> None:
        """Write points, on what is left of the directory where it has been lost.

        Raises:
            OSError: it cannot be written at all (full disk, no permission).
        """
        if shutil.disk_usage(self._run).free < _ROOM_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._folder))
        if self._writer is None:
            lost = self._start is not None and not any(self._folder.glob("events.out.*"))
            if lost:
                self._say(f"{self._folder} is not there: made again from metrics.jsonl")
            self._open(anew=lost or self._start is None)
            if lost:
                self._replay()
                return
        if self._file is not None and self._file.exists():
            try:
                add()
                self._writer.flush()
            except FileNotFoundError:
                pass  # deleted in this very moment
            else:
                return
        self._say(
            f"{self._folder} was deleted while the run goes on: made again from metrics.jsonl"
        )
        self.close(failed=False)
        self._open(anew=True)
        self._replay()

    def _open(self, *, anew: bool) -> None:
        from torch.utils.tensorboard import SummaryWriter

        before = set(self._folder.glob("events.out.*"))
        purge = 0 if anew or self._start is None else self._start + 1
        self._writer = SummaryWriter(
            str(self._folder), purge_step=purge, flush_secs=_SELDOM_SECONDS
        )
        self._file = next(iter(set(self._folder.glob("events.out.*")) - before), None)
        if anew:
            self._write_settings()

    def _write_settings(self) -> None:
        """Write the settings into the same file (`SummaryWriter.add_hparams` makes another run)."""
        from torch.utils.tensorboard.summary import hparams

        plain = {
            name: value if isinstance(value, bool | int | float | str) else str(value)
            for name, value in self._settings.items()
        }
        for summary in hparams(plain, {"eval/eval_loss": 0.0, "train/loss": 0.0}):
            self._writer.file_writer.add_summary(summary)
        self._writer.flush()

    def _replay(self) -> None:
        """Write every point that the run's own records hold."""
        for row in _rows(self._run / "metrics.jsonl"):
            if row["kind"] == "train" and self._is_shown(row["step"]):
                for name, value in train_scalars(row).items():
                    self._writer.add_scalar(name, value, row["step"])
            elif row["kind"] == "eval":
                for name, value in eval_scalars(row).items():
                    self._writer.add_scalar(name, value, row["step"])
        samples: dict[int, list[Mapping[str, Any]]] = {}
        for row in _rows(self._run / "samples.jsonl"):
            samples.setdefault(row["step"], []).append(row)
        for step, rows in samples.items():
            for name, text in sample_texts(rows).items():
                self._writer.add_text(name, text, step)
        self._writer.flush()


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else []
    return (json.loads(line) for line in lines if line.strip())
