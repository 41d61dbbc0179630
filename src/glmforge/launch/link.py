"""The connection between the launchers of several machines while their ranks run.

Node 0 holds a connection to each other node; by it, the first failure anywhere reaches all nodes,
and a machine that goes away is noticed. Lines of JSON over TCP; the meeting itself is
``rollcall.py``.
"""

import contextlib
import json
import socket
from dataclasses import asdict, dataclass
from typing import Any

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
        self.open = True

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
            if not chunk:
                self.open = False
            self._buffer += chunk
        *lines, self._buffer = self._buffer.split(b"\n")
        return [json.loads(line) for line in lines if line]

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class Link:
    """This node's connections: to every other node on node 0, to node 0 elsewhere."""

    def __init__(self, node: int, peers: list[Peer]) -> None:
        self._node = node
        self._peers = peers
        self._finished: set[int] = set()
        self._failure: Failure | None = None
        self._told: Failure | None = None

    def tell(self, failure: Failure) -> None:
        """Say once that a rank of this node failed, unless another node did before."""
        if self._told is not None or self.heard() is not None:
            return
        self._told = failure
        self._send_all({"kind": "failed", **asdict(failure)})

    def heard(self) -> Failure | None:
        """Return the first failure that another node told of, or a node that went away."""
        if self._failure is not None:
            return self._failure
        for peer in self._peers:
            for message in peer.receive():
                if message.pop("kind") == "finished":
                    self._finished.add(peer.node)
                elif self._failure is None and Failure(**message) != self._told:
                    self._failure = Failure(**message)
            if not peer.open and peer.node not in self._finished and self._failure is None:
                self._failure = Failure(
                    rank=-1,
                    code=-9,
                    host=peer.host,
                    text=f"node {peer.node} ({peer.host}) went away without a word: its launcher "
                    "was killed, or the machine or network is down",
                )
        if self._failure is not None and self._node == 0:
            self._send_all({"kind": "failed", **asdict(self._failure)})
        return self._failure

    def finish(self) -> None:
        """Say that this node is done, and close."""
        self._send_all({"kind": "finished"})
        for peer in self._peers:
            peer.close()

    def _send_all(self, message: dict[str, Any]) -> None:
        for peer in self._peers:
            if peer.open:
                peer.send(message)
