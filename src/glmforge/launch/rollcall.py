"""The meeting of several machines before any rank starts: who is there, and who is missing.

Node 0 listens at the rendezvous address; every other node's launcher calls there and says who it
is. When all have come, each learns its ranks and where rank 0 will listen. Nothing of torch is
needed: a missing machine or a wrong node rank is named in a minute, not in a traceback.
"""

import contextlib
import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glmforge.distributed.interfaces import is_loopback, local_address_towards
from glmforge.errors import LaunchError
from glmforge.launch.link import Link, Peer
from glmforge.launch.ports import RENDEZVOUS, check_meeting_point, free_port
from glmforge.launch.sameness import difference

MEETING_SECONDS = 60.0
_RETRY_SECONDS = 0.2
_HELLO_SECONDS = 5.0
_LONGEST_LINE = 1 << 20
_GREETING = "glmforge node 0"
"""Key of the line that node 0 answers each caller with at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What one machine says of itself."""

    node: int
    num_nodes: int
    nproc: int
    host: str
    version: str
    settings: Mapping[str, str]
    """What must be alike on all machines, as `sameness.compared_settings` returns it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """This machine's part of a run on several: its first rank of `world_size`, and rank 0's place.

    `link` stays open while the ranks run.
    """

    first_rank: int
    world_size: int
    master_addr: str
    master_port: int
    link: Link


def meet(
    node: Node, address: str, port: int, say: Callable[[str], None], hosts: Sequence[str] = ()
) -> Part:
    """Meet the other machines.

    Args:
        node: this machine.
        address: of node 0, as all machines reach it.
        port: where node 0's launcher listens.
        say: prints a line for the user.
        hosts: names of all machines, by node, where a hostfile has them.

    Raises:
        LaunchError: not all came within a minute (says who is missing), or this one was refused.
    """
    if node.node == 0:
        return _hold(node, address, port, say, hosts)
    return _join(node, address, port)


def _hold(
    node: Node, address: str, port: int, say: Callable[[str], None], hosts: Sequence[str]
) -> Part:
    check_meeting_point(address, port, RENDEZVOUS)
    deadline = time.monotonic() + MEETING_SECONDS
    there: dict[int, tuple[Node, Peer]] = {}
    refused: list[tuple[int | None, str]] = []
    with socket.create_server((_listening(address), port)) as server:
        while len(there) < node.num_nodes - 1:
            server.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                connection, _ = server.accept()
            except TimeoutError:
                _give_up(node, there, refused, f"{address}:{port}", hosts)
            said = _hello(connection)
            _answer(connection, {_GREETING: node.host})
            wrong = (
                "it said nothing that was understood" if said is None else _fault(said, node, there)
            )
            if said is None or wrong:
                caller = f"node {said.node} ({said.host})" if said else "a caller"
                refused.append((said.node if said else None, f"refused {caller}: {wrong}"))
                say(f"launch: {refused[-1][1]}")
                _answer(connection, {"error": wrong})
                connection.close()
                continue
            there[said.node] = (said, Peer(said.node, said.host, connection))
    return _deal(node, there, address)


def _listening(address: str) -> str:
    """Return where node 0 listens: at `address`, or at all of its addresses.

    /etc/hosts often gives a machine's own name a loopback address, which no other machine reaches;
    the others know the name by another one.
    """
    if is_loopback(address):
        return address
    local = local_address_towards(address)
    return "" if local is not None and is_loopback(local) else address


def _fault(said: Node, node: Node, there: dict[int, tuple[Node, Peer]]) -> str | None:
    """Say why a machine cannot take part, or None."""
    if said.num_nodes != node.num_nodes:
        return (
            f"--nnodes is {said.num_nodes} on node {said.node} ({said.host}) and {node.num_nodes} "
            "on node 0"
        )
    if not 0 <= said.node < node.num_nodes:
        return f"--node-rank {said.node} is not one of 0 to {node.num_nodes - 1}"
    if said.node == 0 or said.node in there:
        holder = node.host if said.node == 0 else there[said.node][0].host
        return f"--node-rank {said.node} is taken by {holder}: each machine needs its own"
    if said.version != node.version:
        return (
            f"glmforge {said.version} is on node {said.node} ({said.host}) and {node.version} on "
            "node 0: install one version"
        )
    there_words = f"on node {said.node} ({said.host})"
    return difference(said.settings, there_words, node.settings, f"on node 0 ({node.host})")


def _give_up(
    node: Node,
    there: dict[int, tuple[Node, Peer]],
    refused: list[tuple[int | None, str]],
    place: str,
    hosts: Sequence[str],
) -> None:
    """Tell everyone who is missing.

    Raises:
        LaunchError: always.
    """
    missing = [number for number in range(1, node.num_nodes) if number not in there]
    present = [f"0 ({node.host})", *(f"{n} ({said.host})" for n, (said, _) in there.items())]
    absent = [n for n in missing if n not in {number for number, _ in refused}]
    named = [f"{n} ({hosts[n]})" if hosts else str(n) for n in absent or missing]
    who = f"node {', '.join(named)} of {node.num_nodes}"
    if absent:
        error = (
            f"{who} did not come to {place} within {MEETING_SECONDS:.0f} s; there were node "
            f"{', '.join(present)}. Start the same command there with --node-rank {absent[0]}, "
            f"and see that {place} can be reached from it"
        )
    else:
        error = (
            f"{who} came to {place}, was refused, and did not come again within "
            f"{MEETING_SECONDS:.0f} s: mend what it was refused for and start all machines again"
        )
    for _, peer in there.values():
        peer.send({"error": error})
        peer.close()
    raise LaunchError([error, *(text for _, text in refused)])


def _deal(node: Node, there: dict[int, tuple[Node, Peer]], address: str) -> Part:
    """Give every machine its ranks."""
    counts = [node.nproc, *(there[number][0].nproc for number in range(1, node.num_nodes))]
    port = free_port()
    for number, (_, peer) in there.items():
        peer.send(
            {
                "first_rank": sum(counts[:number]),
                "world_size": sum(counts),
                "master_addr": address,
                "master_port": port,
            }
        )
    return Part(
        first_rank=0,
        world_size=sum(counts),
        master_addr=address,
        master_port=port,
        link=Link(0, [peer for _, peer in there.values()]),
    )


def _join(node: Node, address: str, port: int) -> Part:
    deadline = time.monotonic() + MEETING_SECONDS
    connection = _connect(address, port, deadline)
    hello = {name: getattr(node, name) for name in Node.__dataclass_fields__}
    # Node 0 began to wait earlier or later than this one: its answer may take its whole minute.
    connection.settimeout(MEETING_SECONDS + _HELLO_SECONDS)
    _answer(connection, hello)
    _check_greeting(_line(connection), f"{address}:{port}")
    line = _line(connection)
    if line is None:
        raise LaunchError(
            f"node 0 at {address}:{port} went away before all had come; its own output says why"
        )
    answer = json.loads(line)
    if "error" in answer:
        connection.close()
        raise LaunchError(f"node 0 at {address}:{port}: {answer['error']}")
    return Part(link=Link(node.node, [Peer(0, address, connection)]), **answer)


def _check_greeting(line: bytes | None, place: str) -> None:
    """Make sure that a node 0 has answered, and not another program.

    Raises:
        LaunchError: it was another one; quotes what it said.
    """
    try:
        if line is not None and _GREETING in json.loads(line):
            return
    except (ValueError, TypeError):
        pass
    said = "nothing" if line is None else repr(line[:60].decode(errors="replace").strip())
    raise LaunchError(
        f"another program than node 0 answers at {place}: it said {said}. Name the address and "
        "the port of node 0 in --rdzv, the same on every machine"
    )


def _connect(address: str, port: int, deadline: float) -> socket.socket:
    while True:
        try:
            return socket.create_connection((address, port), timeout=_HELLO_SECONDS)
        except OSError as error:
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"node 0 does not answer at {address}:{port} within {MEETING_SECONDS:.0f} s "
                    f"({error.strerror or error}): start the same command there with --node-rank "
                    "0, or correct --rdzv"
                ) from None
            time.sleep(_RETRY_SECONDS)


def _hello(connection: socket.socket) -> Node | None:
    connection.settimeout(_HELLO_SECONDS)
    line = _line(connection)
    try:
        return None if line is None else Node(**json.loads(line))
    except (json.JSONDecodeError, UnicodeDecodeError, TypeError):
        return None


def _line(connection: socket.socket) -> bytes | None:
    """Read up to the end of a line; None where the other side stops before it."""
    read = b""
    while not read.endswith(b"\n"):
        try:
            byte = connection.recv(1)
        except OSError:
            return None
        if not byte or len(read) > _LONGEST_LINE:
            return None
        read += byte
    return read


def _answer(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send a line; one that the other side no longer takes is missed where its answer is read."""
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(message).encode() + b"\n")
