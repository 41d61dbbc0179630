"""Starting the ranks of a run on this machine and watching them to the end.

Each rank is `python -m glmforge …` in a session of its own, with the variables that torchrun would
set. The launcher passes the first signal on (the ranks may write a checkpoint), kills on the second
Ctrl-C, ends everyone soon after a rank fails, and names the first one and why. It uses plain
processes and not torch elastic's, which ends the other ranks at the first exit 75, signals once per
process group and prints its own traceback over the rank's message; importing torch only to wait
would cost seconds and memory besides.
"""

import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from glmforge.distributed.env import World, torch_variables
from glmforge.errors import RankFailed
from glmforge.launch.endings import INTERRUPTED, PASSED_ON, STOPPED, ending_in_words, urgency
from glmforge.launch.failures import DIRECTORY, Report, read_reports
from glmforge.launch.gpus import VISIBLE, Placement, place, visible_gpus
from glmforge.launch.ports import LOCAL, check_meeting_point, free_port
from glmforge.launch.watch import RankProcess, Watched, kill, noting_signals, start, watch

THREADS = "OMP_NUM_THREADS"


def launch_local(
    argv: Sequence[str],
    *,
    nproc: int | None,
    gpus: str | None = None,
    master_addr: str | None = None,
    master_port: int | None = None,
) -> int:
    """Run `glmforge argv…` as several ranks on this machine and wait for them.

    Args:
        argv: arguments of the program, without its name.
        nproc: number of processes; None is one per GPU of `gpus`.
        gpus: what `--gpus` says: indices into CUDA_VISIBLE_DEVICES, or UUIDs.
        master_addr: an address of this machine; None is 127.0.0.1.
        master_port: a TCP port; None finds a free one.

    Returns:
        0, or the exit status by which the first failing rank said what happened (1, 2, 75, 130).

    Raises:
        LaunchError: before anything starts: GPUs, address or port do not fit.
        RankFailed: a rank died: which, of what, and what that means.
    """
    placement = place(nproc, gpus, visible_gpus())
    address = master_addr or LOCAL
    port = master_port or free_port()
    if master_addr is not None or master_port is not None:
        check_meeting_point(address, port)
    devices = f", GPUs {', '.join(placement.gpus)}" if placement.gpus else ""
    _say(f"launch: {placement.nproc} process(es){devices}, meeting at {address}:{port}")
    return run_ranks(_program(argv), placement, address, port)


def run_without_gpus(argv: Sequence[str]) -> int:
    """Run `glmforge argv…` as one process that sees no GPU, and wait for it; see `launch_local`.

    Raises:
        RankFailed: it died.
    """
    return run_ranks(_program(argv), Placement(nproc=1, gpus=()), LOCAL, free_port())


def _program(argv: Sequence[str]) -> list[str]:
    # `-m` puts the working directory first on the module path; the installed program does not.
    safe = [] if sys.path and sys.path[0] in ("", os.getcwd()) else ["-P"]
    return [sys.executable, *safe, "-m", "glmforge", *argv]


def run_ranks(command: Sequence[str], placement: Placement, address: str, port: int) -> int:
    """Run a command as several ranks, which meet at `address` and `port`; see `launch_local`.

    Raises:
        RankFailed: a rank died: which, of what, and what that means.
    """
    with tempfile.TemporaryDirectory(prefix="glmforge-") as name, noting_signals() as signals:
        folder = Path(name)
        ranks: list[RankProcess] = []
        try:
            for rank in range(placement.nproc):
                variables = _variables(rank, placement, address, port, folder)
                ranks.append(start(rank, command, variables))
            watched = watch(ranks, signals, lambda: _reported_code(folder), _say)
        finally:
            kill(ranks)
        return _outcome(ranks, watched, read_reports(folder))


def _reported_code(folder: Path) -> int | None:
    return next((report.code for report in read_reports(folder).values()), None)


def _variables(
    rank: int, placement: Placement, address: str, port: int, folder: Path
) -> dict[str, str]:
    """Make the environment of one rank: ours, with what torch and `read_world` look for."""
    world = World(
        rank=rank,
        local_rank=rank,
        world_size=placement.nproc,
        local_world_size=placement.nproc,
        master_addr=address,
        master_port=port,
        launcher="glmforge",
    )
    variables = {**os.environ, **torch_variables(world), DIRECTORY: str(folder)}
    variables.setdefault(THREADS, str(threads_per_rank(placement.nproc)))
    if placement.gpus is not None:
        variables[VISIBLE] = ",".join(placement.gpus)
    return variables


def threads_per_rank(nproc: int) -> int:
    """Return the CPU threads that each of `nproc` ranks may use: the cores, shared out."""
    return max(1, len(os.sched_getaffinity(0)) // nproc)


def _outcome(ranks: Sequence[RankProcess], watched: Watched, reports: Mapping[int, Report]) -> int:
    """Turn how the ranks ended into an exit status or an error; show the first one's report."""
    if watched.killed:
        _say("launch: killed at the second Ctrl-C")
        return INTERRUPTED
    first = _first_failure(ranks, reports)
    if first is None:
        return 0
    if watched.signal is not None and first.code in (-watched.signal, INTERRUPTED):
        name = signal.Signals(watched.signal).name
        _say(f"launch: ended by {name} outside of training; no checkpoint was written for it")
        return INTERRUPTED
    if first.text:
        _say(first.text)
    words = f"rank {first.rank} of {len(ranks)} {ending_in_words(first.code)}"
    if first.code in PASSED_ON:
        if not first.text and first.code != STOPPED:
            _say(f"launch: {words}")
        return first.code
    raise RankFailed(f"{words}. It was the first to fail; the other ranks were ended")


def _first_failure(ranks: Sequence[RankProcess], reports: Mapping[int, Report]) -> Report | None:
    """Find the rank whose failure caused the others'; what it said counts over how it ended."""
    failures = [
        reports.get(item.rank)
        or Report(rank=item.rank, code=item.code or 0, time_ns=item.ended_ns, text="")
        for item in ranks
        if item.rank in reports or (item.code and not item.ended_by_us)
    ]
    return min(failures, key=lambda report: (urgency(report.code), report.time_ns), default=None)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
