"""Starting the ranks of a run on this machine and watching them to the end.

Each rank is `python -m glmforge …` in a session of its own, with the variables that torchrun would
set. The launcher passes the first signal on (the ranks may write a checkpoint), kills on the second
Ctrl-C, ends everyone soon after a rank fails, and names the first one and why. It uses plain
processes and not torch elastic's, which ends the other ranks at the first exit 75, signals once per
process group and prints its own traceback over the rank's message; importing torch only to wait
would cost seconds and memory besides.
"""

import os
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from glmforge.distributed.env import World, torch_variables
from glmforge.launch.failures import DIRECTORY, Report, read_reports
from glmforge.launch.gpus import VISIBLE, Placement, devices_in_words, place, visible_gpus
from glmforge.launch.link import Failure
from glmforge.launch.outcome import conclude, first_failure, say
from glmforge.launch.ports import LOCAL, check_meeting_point, free_port
from glmforge.launch.rollcall import Part
from glmforge.launch.watch import RankProcess, kill, noting_signals, start, watch

THREADS = "OMP_NUM_THREADS"


def launch_local(
    argv: Sequence[str],
    *,
    nproc: int | None,
    gpus: str | None = None,
    master_addr: str | None = None,
    master_port: int | None = None,
    record: Path | None = None,
) -> int:
    """Run `glmforge argv…` as several ranks on this machine and wait for them.

    Args:
        argv: arguments of the program, without its name.
        nproc: number of processes; None is one per GPU of `gpus`.
        gpus: what `--gpus` says: indices into CUDA_VISIBLE_DEVICES, or UUIDs.
        master_addr: an address of this machine; None is 127.0.0.1.
        master_port: a TCP port; None finds a free one.
        record: the run directory, where a dead rank is written into final.json.

    Returns:
        0, or the exit status by which the first failing rank said what happened (1, 2, 3, 75, 130).

    Raises:
        LaunchError: before anything starts: GPUs, address or port do not fit.
        RankFailed: a rank died: which, of what, and what that means.
    """
    visible = visible_gpus()
    placement = place(nproc, gpus, visible)
    address = master_addr or LOCAL
    port = master_port or free_port()
    if master_addr is not None or master_port is not None:
        check_meeting_point(address, port)
    devices = devices_in_words(placement, visible)
    say(f"launch: {placement.nproc} process(es){devices}, meeting at {address}:{port}")
    return run_ranks(program(argv), placement, address, port, record=record)


def run_without_gpus(argv: Sequence[str]) -> int:
    """Run `glmforge argv…` as one process that sees no GPU, and wait for it; see `launch_local`.

    Raises:
        RankFailed: it died.
    """
    return run_ranks(program(argv), Placement(nproc=1, gpus=()), LOCAL, free_port())


def program(argv: Sequence[str]) -> list[str]:
    """Return the command that runs this program with arguments."""
    # `-m` puts the working directory first on the module path; the installed program does not.
    safe = [] if sys.path and sys.path[0] in ("", os.getcwd()) else ["-P"]
    return [sys.executable, *safe, "-m", "glmforge", *argv]


def run_ranks(
    command: Sequence[str],
    placement: Placement,
    address: str,
    port: int,
    *,
    part: Part | None = None,
    record: Path | None = None,
) -> int:
    """Run a command as several ranks, which meet at `address` and `port`; see `launch_local`.

    Args:
        command: of every rank.
        placement: this machine's processes.
        address: where rank 0 listens.
        port: the same.
        part: this machine's part of a run on several, None for a run on one.
        record: the run directory, where a dead rank is written into final.json.

    Raises:
        RankFailed: a rank died: which, of what, and what that means.
    """
    with tempfile.TemporaryDirectory(prefix="glmforge-") as name, noting_signals() as signals:
        folder = Path(name)
        ranks: list[RankProcess] = []
        first = part.first_rank if part is not None else 0

        def failing_code() -> int | None:
            """Return the code of a failure that was said here, or heard from another machine."""
            ours = _said(ranks, read_reports(folder))
            if part is None:
                return ours.code if ours is not None else None
            if ours is not None and ours.code:
                part.link.tell(ours)
            heard = part.link.heard()
            return heard.code if heard is not None else ours.code if ours is not None else None

        try:
            for local_rank in range(placement.nproc):
                variables = _variables(local_rank, placement, address, port, folder, part)
                ranks.append(start(first + local_rank, command, variables, folder))
            watched = watch(ranks, signals, failing_code, say)
        finally:
            kill(ranks)
            for item in ranks:
                if item.tail is not None:
                    item.tail.finish()
            heard = part.link.heard() if part is not None else None
            if part is not None:
                part.link.finish()
        total = part.world_size if part is not None else len(ranks)
        return conclude(ranks, watched, read_reports(folder), total, heard=heard, record=record)


def _said(ranks: Sequence[RankProcess], reports: Mapping[int, Report]) -> Failure | None:
    """Return what this machine's first failing rank said, or how it ended without a word."""
    report = first_failure(ranks, reports)
    if report is None:
        return None
    return Failure(rank=report.rank, code=report.code, host=socket.gethostname(), text=report.text)


def _variables(
    local_rank: int,
    placement: Placement,
    address: str,
    port: int,
    folder: Path,
    part: Part | None,
) -> dict[str, str]:
    """Make the environment of one rank: ours, with what torch and `read_world` look for."""
    world = World(
        rank=local_rank + (part.first_rank if part is not None else 0),
        local_rank=local_rank,
        world_size=part.world_size if part is not None else placement.nproc,
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
