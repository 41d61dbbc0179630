"""Signals that ask a run to stop, and which of them asks to end at once.

One rule for the launcher and for a process that trains alone or under another launcher: a second
Ctrl-C, or a second SIGTERM that is not the first one sent twice.
"""

import signal
import time
from dataclasses import dataclass

AGAIN_SECONDS = 2.0
"""A second SIGTERM sooner than this after the first is the same request: some senders, such as
`timeout`, signal a process and then its group."""


@dataclass(slots=True, kw_only=True)
class Requests:
    """What has been asked so far: the first signal, and when SIGTERM came first."""

    first: int | None = None
    terminated: float | None = None

    def note(self, number: int) -> str | None:
        """Take in a signal now; return what insists, such as "the second Ctrl-C", else None.

        After SIGUSR1 the first SIGTERM is Slurm's at the time limit: a save may be under way.
        """
        now = time.monotonic()
        again = self.terminated is not None and now - self.terminated >= AGAIN_SECONDS
        if number == signal.SIGTERM and self.terminated is None:
            self.terminated = now
        if self.first is None:
            self.first = number
            return None
        if number == signal.SIGINT:
            return "the second Ctrl-C"
        return "the second SIGTERM" if number == signal.SIGTERM and again else None
