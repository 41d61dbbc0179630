"""Around the making of a prepared set: how many processes, which tokenizer, what is shown of it.

Belongs to ``training_data``; the work itself is in ``glmforge.data``.
"""

import functools
import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from glmforge.models import load_tokenizer

_SECONDS_BETWEEN_LINES = 10.0


def worker_count(wanted: int | None) -> int:
    """Processes at most for one source: as many as wanted, else a core each."""
    if wanted is not None:
        return wanted
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return cores or 1


class TokenizerOf:
    """Gives a tokenizer that is loaded already; in another process it is loaded anew."""

    def __init__(self, directory: str, tokenizer: Any) -> None:
        self._directory = directory
        self._tokenizer = tokenizer

    def __call__(self) -> Any:
        """Return the tokenizer."""
        return self._tokenizer

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial, (load_tokenizer, self._directory)


class PreparationBar:
    """A progress bar on a terminal, a line every ten seconds elsewhere; nothing when it is fast."""

    def __init__(self, path: str, say: Callable[[str], None]) -> None:
        self._path, self._say = path, say
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._progress: Progress | None = None
        self._started = self._told = time.perf_counter()

    def __enter__(self) -> "PreparationBar":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def advance(self, done: int, total: int) -> None:
        """Show how far the preparation is, in bytes."""
        if self._console.is_terminal:
            if self._progress is None:
                self._progress = Progress(
                    TextColumn("data: {task.description}"),
                    BarColumn(),
                    TextColumn("{task.percentage:.0f} %"),
                    TimeRemainingColumn(),
                    console=self._console,
                    transient=True,
                )
                self._task = self._progress.add_task(self._path, total=total)
                self._progress.start()
            self._progress.update(self._task, completed=done)
            return
        now = time.perf_counter()
        if now - self._told >= _SECONDS_BETWEEN_LINES and done < total:
            self._told = now
            left = (now - self._started) / done * (total - done)
            self._say(
                f"data: {self._path}: {done / total:.0%} of {total / 2**20:,.0f} MiB prepared, "
                f"about {left:,.0f} s left"
            )
