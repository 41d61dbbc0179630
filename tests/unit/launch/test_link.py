"""The connection between launchers: who is heard, who is not, and what is passed on."""

import socket
import time
from collections.abc import Iterator

import pytest

from glmforge.launch import link
from glmforge.launch.link import Failure, Link, Peer


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Link, Link]]:
    """Node 0 and node 1, with little patience."""
    monkeypatch.setattr(link, "PING_SECONDS", 0.05)
    monkeypatch.setattr(link, "SILENCE_SECONDS", 0.3)
    a, b = socket.socketpair()
    yield Link(0, [Peer(1, "host-1", a)]), Link(1, [Peer(0, "host-0", b)])
    a.close()
    b.close()


def test_nodes_that_say_that_they_are_there_hear_of_no_failure(pair: tuple[Link, Link]) -> None:
    end = time.monotonic() + 0.8
    while time.monotonic() < end:
        assert [one.heard() for one in pair] == [None, None]
        time.sleep(0.02)


def test_a_silent_node_is_a_failure_that_names_it(pair: tuple[Link, Link]) -> None:
    """Its connection is open all the while, as it is without a network."""
    time.sleep(0.4)
    found = pair[1].heard()
    assert found is not None
    assert (found.rank, found.host) == (-1, "host-0")
    assert found.text.startswith("node 0 (host-0) is no longer heard of: nothing came from it for")


def test_the_time_before_all_have_met_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first machine waits up to a minute for the last."""
    monkeypatch.setattr(link, "SILENCE_SECONDS", 0.3)
    a, b = socket.socketpair()
    with a, b:
        peer = Peer(1, "host-1", a)
        time.sleep(0.4)
        assert Link(0, [peer]).heard() is None


def test_a_node_that_has_finished_may_be_silent(pair: tuple[Link, Link]) -> None:
    pair[1].finish()
    time.sleep(0.4)
    assert pair[0].heard() is None


def test_after_a_failure_nodes_are_still_heard_of(pair: tuple[Link, Link]) -> None:
    """Ranks of the node that told of a stop may write a checkpoint for a minute."""
    stop = Failure(rank=1, code=75, host="host-1", text="")
    pair[1].tell(stop)
    end = time.monotonic() + 0.8
    while time.monotonic() < end:
        assert pair[0].heard() == stop
        assert pair[1].heard() is None
        time.sleep(0.02)
