"""Child processes of a launch: start them, pass signals on, and end all of them together.

A rank that fails ends the others: it leaves them a moment to end by themselves (they usually fail
for the same reason), then SIGTERM, then SIGKILL, all within 30 seconds. Ranks that stop on purpose
after a checkpoint (exit 75) get longer, because their peers are about to as well.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from glmforge.launch.endings import STOPPED
from glmforge.launch.requests import Requests
from glmforge.launch.tails import Tail, wants_tail

FORWARDED = {
    signal.SIGINT: signal.SIGINT,
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGUSR1: signal.SIGUSR1,
    signal.SIGHUP: signal.SIGTERM,
}
"""Signal received → signal that the ranks get; each of those makes a run stop with a checkpoint."""

POLL_SECONDS = 0.05
ALONE_SECONDS = 3.0
"""How long the other ranks may take to end by themselves after the first failure."""
STOP_SECONDS = 60.0
"""The same after a rank that stopped on purpose, with a checkpoint."""
TERM_SECONDS = 10.0
"""How long they may take after SIGTERM, before SIGKILL."""
PATIENCE_SECONDS = 600.0
"""How long ranks may take to stop after a signal (the step, then a checkpoint) before SIGKILL."""
KILL_SECONDS = 5.0
"""How long the kernel may take over SIGKILL before a process is given up."""

_PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that the kernel sends a process when its parent dies."""


@dataclass(slots=True, kw_only=True)
class RankProcess:
    """A started rank; what is known of its end.

    `code` is the return code as `subprocess` gives it, `ended_ns` when it was seen (nanoseconds
    since 1970), `ended_by_us` whether the launcher had told it to end by then, `tail` its last
    lines where they go through us.
    """

    rank: int
    process: subprocess.Popen[bytes]
    code: int | None = None
    ended_ns: int = 0
    ended_by_us: bool = False
    tail: Tail | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What happened while watching: the signal that the ranks got, and why they were killed though
    they were stopping, such as "at the second Ctrl-C"; None where they were not.
    """

    signal: int | None
    killed: str | None


def start(
    rank: int, command: Sequence[str], variables: Mapping[str, str], folder: Path
) -> RankProcess:
    """Start one rank in a session of its own, so that Ctrl-C reaches it through us only.

    Args:
        rank: among all ranks.
        command: what it runs.
        variables: its environment.
        folder: where its standard error goes, to be copied to ours.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    parent = os.getpid()

    def end_with_parent() -> None:
        """Ask the kernel for SIGTERM when the launcher dies, however it dies."""
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
            if os.getppid() != parent:
                os._exit(1)

    tail = Tail(folder / f"rank-{rank:05d}.stderr") if wants_tail(rank) else None
    process = subprocess.Popen(
        list(command),
        env=dict(variables),
        stdin=subprocess.DEVNULL,
        stderr=tail.sink if tail is not None else None,
        start_new_session=True,
        preexec_fn=end_with_parent,
    )
    return RankProcess(rank=rank, process=process, tail=tail)


@dataclass(slots=True, kw_only=True)
class Signals:
    """What the handlers have seen and the loop has not yet acted on."""

    waiting: list[int] = field(default_factory=list)

    def note(self, number: int, frame: FrameType | None) -> None:
        """Remember a signal; the loop does the rest."""
        self.waiting.append(number)

    def take(self) -> list[int]:
        """Return the signals since the last call."""
        taken, self.waiting = self.waiting, []
        return taken


@contextmanager
def noting_signals() -> Iterator[Signals]:
    """Note the forwarded signals instead of dying of them (`nohup`'s ignored SIGHUP stays so)."""
    signals = Signals()
    old = {
        number: signal.signal(number, signals.note)
        for number in FORWARDED
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield signals
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def watch(
    ranks: Sequence[RankProcess],
    signals: Signals,
    reported_code: Callable[[], int | None],
    say: Callable[[str], None],
) -> Watched:
    """Wait until every rank has ended, ending them where one failed.

    Args:
        ranks: the started ranks; their ends are noted in them.
        signals: from `noting_signals`.
        reported_code: gives the exit status of a rank that has said it fails, or None.
        say: prints a line for the user.
    """
    stopping = _Stopping()
    deadline: float | None = None
    while any(item.code is None for item in ranks):
        for number in signals.take():
            if stopping.note(number):
                say(_passing_on(number))
                _signal_ranks(ranks, FORWARDED[signal.Signals(number)])
        if stopping.must_kill():
            kill(ranks)
        _note_ends(ranks)
        reported = reported_code()
        code = next((item.code for item in ranks if item.code), None) or reported
        if code and deadline is None:
            patience = STOP_SECONDS if code == STOPPED else ALONE_SECONDS
            deadline = time.monotonic() + patience
        if deadline is not None and time.monotonic() > deadline:
            _end(ranks)
        time.sleep(POLL_SECONDS)
    return Watched(signal=stopping.sent, killed=stopping.killed)


@dataclass(slots=True, kw_only=True)
class _Stopping:
    """Whether the ranks were asked to stop, with what, when, and why no longer to wait for them."""

    sent: int | None = None
    killed: str | None = None
    since: float = 0.0
    requests: Requests = field(default_factory=Requests)

    def note(self, number: int) -> bool:
        """Take in a signal; say whether it is the first, which the ranks get."""
        insists = self.requests.note(number)
        if self.sent is None:
            self.sent, self.since = FORWARDED[signal.Signals(number)], time.monotonic()
            return True
        if insists is not None:
            self.killed = f"at {insists}"
        return False

    def must_kill(self) -> bool:
        """Say whether waiting is over."""
        if self.sent is not None and time.monotonic() - self.since > PATIENCE_SECONDS:
            name = signal.Signals(self.sent).name
            self.killed = self.killed or (
                f"{PATIENCE_SECONDS:.0f} s after {name}, with no end of the step or its checkpoint"
            )
        return self.killed is not None


def _passing_on(number: int) -> str:
    name = signal.Signals(number).name
    again = " (once more: kill)" if number in (signal.SIGINT, signal.SIGTERM) else ""
    return (
        f"launch: {name} passed on; ranks that train stop after this step with a checkpoint{again}"
    )


def _note_ends(ranks: Sequence[RankProcess]) -> None:
    for item in ranks:
        if item.code is None:
            item.code = item.process.poll()
            item.ended_ns = time.time_ns()


def _signal_ranks(ranks: Sequence[RankProcess], number: int) -> None:
    """Signal the ranks themselves, not the workers that they may have started."""
    for item in ranks:
        if item.code is None:
            item.process.send_signal(number)


def _end(ranks: Sequence[RankProcess]) -> None:
    """Ask the remaining ranks to end, then make them."""
    for item in ranks:
        item.ended_by_us = item.code is None
    _signal_ranks(ranks, signal.SIGTERM)
    deadline = time.monotonic() + TERM_SECONDS
    while time.monotonic() < deadline and any(item.process.poll() is None for item in ranks):
        time.sleep(POLL_SECONDS)
    kill(ranks)
    _note_ends(ranks)


def kill(ranks: Sequence[RankProcess]) -> None:
    """Kill every rank that still runs, and whatever the ranks have started and left."""
    for item in ranks:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(item.process.pid, signal.SIGKILL)
        try:
            item.process.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            item.code = -signal.SIGKILL  # held by the kernel (a hung GPU or disk): leave it behind
