"""Which network interface gloo is told to use in a run of several machines."""

import os
import socket
from pathlib import Path

import pytest

from glmforge.distributed import env, interfaces
from glmforge.distributed.env import World, choose_interface
from glmforge.errors import LaunchError

NAME = "GLOO_SOCKET_IFNAME"


def world(address: str, *, local: int = 1) -> World:
    return World(
        rank=1,
        world_size=2,
        local_world_size=local,
        master_addr=address,
        master_port=1,
        launcher="glmforge",
    )


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "")  # remembered, and put back after the test
    monkeypatch.delenv(NAME)


def test_the_address_of_a_route_is_mapped_to_its_interface() -> None:
    """The kernel says both; every interface that it lists is one of this machine."""
    found = interfaces._interfaces()
    assert found["127.0.0.1"] == "lo"
    assert set(found.values()) <= {name for _, name in socket.if_nameindex()}
    assert interfaces.local_address_towards("127.0.0.1") == "127.0.0.1"


def test_addresses_of_ipv6_are_read_as_the_kernel_writes_them(tmp_path: Path) -> None:
    """Thirty-two digits without colons."""
    table = tmp_path / "if_inet6"
    table.write_text("fe80000000000000000000fffe000001 02 40 20 80     eth1\n")
    assert interfaces._interfaces_of_ipv6(table) == {"fe80::ff:fe00:1": "eth1"}
    assert interfaces._interfaces_of_ipv6(tmp_path / "none") == {}


def test_a_name_that_is_a_loopback_address_here_stands_for_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Debian gives a machine's own name 127.0.1.1: its peers cannot reach that."""
    routes = {"node-0": "127.0.1.1", "192.0.2.1": "10.77.0.1"}
    monkeypatch.setattr(interfaces, "local_address_towards", routes.get)
    monkeypatch.setattr(interfaces, "_interfaces", lambda: {"10.77.0.1": "eth7"})
    assert interfaces.interface_towards("node-0") == "eth7"
    assert interfaces.interface_towards("nowhere") is None


@pytest.mark.parametrize(
    ("others", "expected"),
    [({}, "lo"), ({"10.77.0.1": "eth7"}, "eth7"), ({"10.1.0.1": "a", "10.2.0.1": "b"}, None)],
)
def test_without_a_way_out_the_only_other_interface_is_meant(
    monkeypatch: pytest.MonkeyPatch, others: dict[str, str], expected: str | None
) -> None:
    """Two machines joined by one cable; one machine alone; two cables: the user says which."""
    found = {"127.0.0.1": "lo", "127.0.1.1": "lo", "::1": "lo", **others}
    monkeypatch.setattr(interfaces, "local_address_towards", {"node-0": "127.0.1.1"}.get)
    monkeypatch.setattr(interfaces, "_interfaces", lambda: found)
    assert interfaces.interface_towards("node-0") == expected


def test_a_run_of_several_machines_names_the_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env, "interface_towards", {"10.77.0.1": "eth7"}.get)
    choose_interface(world("10.77.0.1"))
    assert os.environ[NAME] == "eth7"


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env, "interface_towards", lambda address: "eth7")
    monkeypatch.setenv(NAME, "ib0")
    choose_interface(world("10.77.0.1"))
    assert os.environ[NAME] == "ib0"


@pytest.mark.parametrize(("address", "local"), [("10.77.0.1", 2), ("127.0.0.2", 1)])
def test_a_run_on_one_machine_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, address: str, local: int
) -> None:
    """All ranks here, or a meeting point that only this machine reaches."""
    monkeypatch.setattr(env, "interface_towards", lambda address: "eth7")
    choose_interface(world(address, local=local))
    assert NAME not in os.environ


def test_without_an_interface_the_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env, "interface_towards", lambda address: None)
    with pytest.raises(LaunchError, match=f"leads to 10.77.0.1.*or set {NAME}"):
        choose_interface(world("10.77.0.1"))
