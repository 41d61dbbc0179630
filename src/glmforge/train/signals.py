"""SIGTERM, SIGUSR1 and Ctrl-C while training: finish the step, save, leave.

The handler only notes the signal; the loop shares it with all ranks at the end of each step, so
that every rank stops after the same one. A second Ctrl-C or SIGTERM ends the process at once, even
where it is stuck in native code (a collective that never ends), for which Python's own handlers
would wait. A save that is under way then has no name yet: `latest` is the checkpoint before it.
"""

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from glmforge.launch.requests import Requests

HANDLED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
INTERRUPTED_TWICE = 130
_AGAIN = {
    signal.SIGINT: " (Ctrl-C once more: end at once)",
    signal.SIGTERM: " (SIGTERM once more, later: end at once)",
    signal.SIGUSR1: "",
}


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
    requests = Requests()
    while data := reader.recv(1):
        number = data[0]
        if number not in HANDLED:
            continue
        is_first = requests.first is None
        insists = requests.note(number)
        if insists is not None:
            _say(
                f"ended at once, at {insists}; the last checkpoint is as it was (--resume auto "
                "goes on from it)"
            )
            os._exit(INTERRUPTED_TWICE)
        if announce and is_first:
            known = signal.Signals(number)
            again = _AGAIN[known]
            _say(f"{known.name}: this step is finished, then a checkpoint is written{again}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
