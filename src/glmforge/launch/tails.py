"""The last lines of each rank: passed on to the user as they come, and kept for when one dies.

A rank whose standard error is a terminal's keeps it (progress bars need one); the others write
into a file that a thread copies to our own standard error. A file and not a pipe: ranks outlive a
killed launcher for the time of a checkpoint, and writing into a broken pipe would end them.
"""

import sys
import threading
from collections import deque
from pathlib import Path
from typing import BinaryIO

LINES = 20
_CHUNK = 1 << 16
_POLL_SECONDS = 0.05


class Tail:
    """Copies one rank's standard error and remembers its last lines."""

    def __init__(self, path: Path) -> None:
        """Make the file that the rank writes into (`sink`), and begin to copy from it."""
        self.sink: BinaryIO = path.open("ab")
        self._path = path
        self._lines: deque[bytes] = deque([b""], maxlen=LINES + 1)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def _copy(self) -> None:
        with self._path.open("rb") as file:
            while True:
                ended = self._ended.wait(_POLL_SECONDS)
                while chunk := file.read(_CHUNK):
                    self._pass_on(chunk)
                if ended:
                    return

    def _pass_on(self, chunk: bytes) -> None:
        out = getattr(sys.stderr, "buffer", None)
        if out is None:
            sys.stderr.write(chunk.decode("utf-8", "replace"))
        else:
            out.write(chunk)
            out.flush()
        first, *rest = chunk.split(b"\n")
        self._lines[-1] += first
        self._lines.extend(rest)

    def finish(self) -> None:
        """Copy what is left, once the rank has ended; repeating it does nothing."""
        self._ended.set()
        self._thread.join()
        self.sink.close()

    def last_lines(self) -> list[str]:
        """Return up to 20 of its last lines, after `finish`."""
        lines = [line.decode("utf-8", "replace").rstrip("\r") for line in self._lines]
        return [line for line in lines if line.strip()][-LINES:]


def wants_tail(rank: int) -> bool:
    """Whether a rank's standard error goes through a file: all but rank 0's on a terminal."""
    return rank != 0 or not sys.stderr.isatty()
