"""SIGTERM, SIGUSR1 and Ctrl-C while training: finish the step, save, leave.

The handler only notes the signal; the loop shares it with all ranks at the end of each step, so
that every rank stops after the same one. A second Ctrl-C ends the process at once, even where it
is stuck in native code (a collective that never ends): Python's own handlers would wait for it.
"""

import os
import signal
import socket
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
        """Remember the signal."""
        self.received = self.received or number


@contextmanager
def watch_signals(*, announce: bool = False) -> Iterator[SignalFlag]:
    """Install the handlers for the time of a run and put the old ones back after it.

    Args:
        announce: say what a first signal does (a launcher that passes it on says so itself).
    """
    flag = SignalFlag()
    if threading.current_thread() is not threading.main_thread():
        yield flag  # Python allows handlers in the main thread only (a notebook's worker, say)
        return
    # The interpreter writes each signal's number into the socket at once, whatever runs.
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    watcher = threading.Thread(target=_watch, args=(reader, announce), daemon=True)
    old = {number: signal.signal(number, flag.note) for number in HANDLED}
    old_writer = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    watcher.start()
    try:
        yield flag
    finally:
        signal.set_wakeup_fd(old_writer)
        for number, handler in old.items():
            signal.signal(number, handler)
        writer.close()
        watcher.join()
        reader.close()


def _watch(reader: socket.socket, announce: bool) -> None:
    """Read the numbers of signals until the other end is closed."""
    seen: list[int] = []
    while data := reader.recv(1):
        number = data[0]
        if number not in HANDLED:
            continue
        if number == signal.SIGINT and seen:
            _say("ended at once; the last checkpoint is as it was (--resume auto goes on from it)")
            os._exit(INTERRUPTED_TWICE)
        if announce and not seen:
            name = signal.Signals(number).name
            again = " (Ctrl-C once more: end at once)" if number == signal.SIGINT else ""
            _say(f"{name}: this step is finished, then a checkpoint is written{again}")
        seen.append(number)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
