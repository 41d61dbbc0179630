"""Starting a run on several machines: the same command on each, no ssh.

Owns the settings (`--nnodes --node-rank --rdzv`, or a hostfile), the meeting of the launchers and
this machine's part of the ranks. Processes are ``local.py``'s, the meeting is ``rollcall.py``'s.
"""

import importlib.metadata
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from glmforge.errors import LaunchError
from glmforge.launch.gpus import devices_in_words, place, visible_gpus
from glmforge.launch.hostfile import find_this_host, read_hostfile
from glmforge.launch.local import program, run_ranks
from glmforge.launch.outcome import say
from glmforge.launch.rollcall import Node, meet

DEFAULT_PORT = 29400
"""Where node 0's launcher listens, as torchrun's does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """This machine among those of a run, and where node 0 listens."""

    num_nodes: int
    node: int
    address: str
    port: int
    nproc: int | None = None
    world_size: int | None = None
    """Ranks of all machines, where a hostfile says it; the machines may differ otherwise."""
    hosts: tuple[str, ...] = ()
    """Names of all machines, where a hostfile has them."""


def node_settings(
    *,
    nnodes: int | None,
    node_rank: int | None,
    rdzv: str | None,
    hostfile: Path | None,
    nproc: int | None,
) -> NodeSettings | None:
    """Read the options about machines; None where a run has one.

    Raises:
        LaunchError: what is missing, contradicts, or cannot be read.
    """
    if hostfile is not None:
        return _from_hostfile(hostfile, nnodes, node_rank, rdzv, nproc)
    if nnodes in (None, 1) and node_rank is None and rdzv is None:
        return None
    problems = []
    if nnodes is None:
        problems.append("--nnodes (how many machines) is needed with --node-rank and --rdzv")
    if node_rank is None:
        problems.append("--node-rank (which machine this is, 0 to --nnodes - 1) is needed")
    elif nnodes is not None and not 0 <= node_rank < nnodes:
        problems.append(f"--node-rank {node_rank} is not one of 0 to {nnodes - 1} (--nnodes)")
    if rdzv is None:
        problems.append("--rdzv HOST[:PORT] (where node 0 listens) is needed")
    address, port = _split(rdzv or "", problems)
    if problems:
        raise LaunchError(problems)
    assert nnodes is not None
    assert node_rank is not None
    return NodeSettings(num_nodes=nnodes, node=node_rank, address=address, port=port, nproc=nproc)


def _split(rdzv: str, problems: list[str]) -> tuple[str, int]:
    address, colon, port = rdzv.rpartition(":")
    if not colon:
        return rdzv, DEFAULT_PORT
    if not port.isdigit() or not 1 <= int(port) <= 65535:
        problems.append(f"--rdzv {rdzv}: {port!r} is no port (1 to 65535)")
        return address, DEFAULT_PORT
    return address, int(port)


def _from_hostfile(
    path: Path, nnodes: int | None, node_rank: int | None, rdzv: str | None, nproc: int | None
) -> NodeSettings | None:
    hosts = read_hostfile(path)
    problems: list[str] = []
    if nnodes is not None and nnodes != len(hosts):
        problems.append(f"--nnodes {nnodes}, but {path} names {len(hosts)} machine(s)")
    if node_rank is not None and not 0 <= node_rank < len(hosts):
        problems.append(f"--node-rank {node_rank} is not one of the {len(hosts)} lines of {path}")
    address, port = _split(rdzv or hosts[0].name, problems)
    if problems:
        raise LaunchError(problems)
    node = find_this_host(hosts, path) if node_rank is None else node_rank
    slots = hosts[node].slots
    if nproc is not None and nproc != slots:
        raise LaunchError(f"--nproc {nproc}, but {path} gives {hosts[node].name} {slots} slot(s)")
    return NodeSettings(
        num_nodes=len(hosts),
        node=node,
        address=address,
        port=port,
        nproc=slots,
        world_size=sum(host.slots for host in hosts),
        hosts=tuple(host.name for host in hosts),
    )


def launch_nodes(
    argv: Sequence[str],
    settings: NodeSettings,
    *,
    gpus: str | None,
    alike: Mapping[str, str],
    judge: Callable[[int], None],
    record: Path | None = None,
) -> int:
    """Run this machine's ranks of `glmforge argv…`, after all machines have met.

    Args:
        argv: arguments of the program, without its name.
        settings: this machine among the others.
        gpus: what `--gpus` says here.
        alike: what must be the same on all machines, as `sameness.compared_settings` returns it.
        judge: refuses what does not fit the number of ranks, once that is known.
        record: the run directory, where a dead rank is written into final.json.

    Returns:
        0, or the exit status by which the first failing rank said what happened.

    Raises:
        LaunchError: GPUs do not fit, not all machines came within a minute, or this one was
            started with other settings.
        RankFailed: a rank or a machine died: which, of what, and what that means.
    """
    return run_node(program(argv), settings, gpus=gpus, alike=alike, judge=judge, record=record)


def run_node(
    command: Sequence[str],
    settings: NodeSettings,
    *,
    gpus: str | None,
    alike: Mapping[str, str],
    judge: Callable[[int], None],
    record: Path | None = None,
) -> int:
    """Run a command as this machine's ranks; see `launch_nodes`."""
    visible = visible_gpus()
    placement = place(settings.nproc, gpus, visible)
    host = socket.gethostname()
    node = Node(
        node=settings.node,
        num_nodes=settings.num_nodes,
        nproc=placement.nproc,
        host=host,
        version=importlib.metadata.version("glmforge"),
        settings=alike,
    )
    place_name = f"{settings.address}:{settings.port}"
    say(f"launch: node {node.node} of {node.num_nodes} ({host}) waits for all at {place_name}")
    part = meet(node, settings.address, settings.port, say, settings.hosts)
    judge(part.world_size)
    last = part.first_rank + placement.nproc - 1
    devices = devices_in_words(placement, visible)
    say(
        f"launch: node {node.node} of {node.num_nodes} ({host}): ranks {part.first_rank} to {last} "
        f"of {part.world_size}{devices}, meeting at {part.master_addr}:{part.master_port}"
    )
    return run_ranks(
        command, placement, part.master_addr, part.master_port, part=part, record=record
    )
