"""SIGTERM, SIGUSR1 and Ctrl-C while training: finish the step, save, leave.

The handler only notes the signal; the loop shares it with all ranks at the end of each step, so
that every rank stops after the same one. A second Ctrl-C ends the process at once.
"""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

HANDLED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
INTERRUPTED_TWICE = 130


class SignalFlag:
    """Holds the first signal received (its number), or None."""

    def __init__(self) -> None:
        self.received: int | None = None

    def note(self, number: int, frame: FrameType | None) -> None:
        """Remember the signal; leave at once on a second Ctrl-C."""
        if self.received is not None and number == signal.SIGINT:
            sys.exit(INTERRUPTED_TWICE)
        self.received = self.received or number


@contextmanager
def watch_signals() -> Iterator[SignalFlag]:
    """Install the handlers for the time of a run and put the old ones back after it."""
    flag = SignalFlag()
    if threading.current_thread() is not threading.main_thread():
        yield flag  # Python allows handlers in the main thread only (a notebook's worker, say)
        return
    old = {number: signal.signal(number, flag.note) for number in HANDLED}
    try:
        yield flag
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
