"""The connection between the launchers of several machines while their ranks run.

Node 0 holds a connection to each other node; by it, the first failure anywhere reaches all nodes,
and a machine that goes away is noticed. Where the network goes away nothing ends a connection, so
each side says every few seconds that it is there. Lines of JSON over TCP; the meeting itself is
``rollcall.py``.
"""

import contextlib
import json
import socket
import time
from dataclasses import asdict, dataclass
from typing import Any

PING_SECONDS = 5.0
"""How often a launcher says that it is there."""
SILENCE_SECONDS = 30.0
"""After how long without a word a node counts as gone."""

_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The end of a rank (or machine) somewhere: exit code as `subprocess` gives it, and words.

    `rank` is -1 for a whole machine.
    """

    rank: int
    code: int
    host: str
    text: str


class Peer:
    """One connection, read without waiting."""

    def __init__(self, node: int, host: str, connection: socket.socket) -> None:
        self.node, self.host = node, host
        self._socket = connection
        self._socket.setblocking(False)
        self._buffer = b""
        self._heard_at = time.monotonic()
        self.open = True

    def begin(self) -> None:
        """Count silence from now on: before, the other side was not asked to speak."""
        self._heard_at = time.monotonic()

    @property
    def silent_seconds(self) -> float:
        """How long ago anything came."""
        return time.monotonic() - self._heard_at

    def send(self, message: dict[str, Any]) -> None:
        """Send one message; a peer that is gone is noticed when it is read."""
        with contextlib.suppress(OSError):
            self._socket.setblocking(True)
            self._socket.settimeout(5.0)
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        with contextlib.suppress(OSError):
            self._socket.setblocking(False)

    def receive(self) -> list[dict[str, Any]]:
        """Return the messages that have come; `open` turns False when the peer went away."""
        while self.open:
            try:
                chunk = self._socket.recv(_CHUNK)
            except BlockingIOError:
                break
            except OSError:
                chunk = b""
            if chunk:
                self._heard_at = time.monotonic()
            else:
                self.open = False
            self._buffer += chunk
        *lines, self._buffer = self._buffer.split(b"\n")
        return [json.loads(line) for line in lines if line]

    def close(self) -> None:
        """Close the connection."""
        self.open = False
        self._socket.close()


class Link:
    """This node's connections: to every other node on node 0, to node 0 elsewhere."""

    def __init__(self, node: int, peers: list[Peer]) -> None:
        self._node = node
        self._peers = peers
        self._finished: set[int] = set()
        self._failure: Failure | None = None
        self._told: Failure | None = None
        self._pinged_at = 0.0
        for peer in peers:
            peer.begin()

    def tell(self, failure: Failure) -> None:
        """Say once that a rank of this node failed, unless another node did before."""
        if self._told is not None or self.heard() is not None:
            return
        self._told = failure
        self._send_all({"kind": "failed", **asdict(failure)})

    def heard(self) -> Failure | None:
        """Return the first failure that another node told of, or a node that went away.

        Call it often: it also says to the others that this node is there, which they want to know
        after a failure too, while ranks stop.
        """
        self._ping()
        if self._failure is None:
            for peer in self._peers:
                self._hear(peer)
            if self._failure is not None and self._node == 0:
                self._send_all({"kind": "failed", **asdict(self._failure)})
        return self._failure

    def _hear(self, peer: Peer) -> None:
        for message in peer.receive():
            kind = message.pop("kind")
            if kind == "finished":
                self._finished.add(peer.node)
            elif kind == "failed" and self._failure is None and Failure(**message) != self._told:
                self._failure = Failure(**message)
        if peer.node in self._finished or self._failure is not None:
            return
        if not peer.open:
            self._failure = _gone(
                peer,
                "went away without a word: its launcher was killed, or the machine or network is "
                "down",
            )
        elif peer.silent_seconds > SILENCE_SECONDS:
            self._failure = _gone(
                peer,
                f"is no longer heard of: nothing came from it for {SILENCE_SECONDS:.0f} s; the "
                "network between the machines is down, or that machine or its launcher stands "
                "still",
            )
            peer.close()

    def _ping(self) -> None:
        if time.monotonic() - self._pinged_at >= PING_SECONDS:
            self._pinged_at = time.monotonic()
            self._send_all({"kind": "here"})

    def finish(self) -> None:
        """Say that this node is done, and close."""
        self._send_all({"kind": "finished"})
        for peer in self._peers:
            peer.close()

    def _send_all(self, message: dict[str, Any]) -> None:
        for peer in self._peers:
            if peer.open:
                peer.send(message)


def _gone(peer: Peer, what: str) -> Failure:
    return Failure(rank=-1, code=-9, host=peer.host, text=f"node {peer.node} ({peer.host}) {what}")
