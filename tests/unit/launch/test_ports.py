"""The meeting point of the ranks."""

import os
import socket

import pytest

from glmforge.errors import LaunchError
from glmforge.launch.ports import check_meeting_point, free_port


def test_a_free_port_can_be_used_at_once() -> None:
    check_meeting_point("127.0.0.1", free_port())
    check_meeting_point("localhost", free_port())


@pytest.mark.parametrize("address", ["127.0.0.1", ""])
def test_a_taken_port_is_named(address: str) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((address, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError, match=f"^port {port} is in use on this machine"):
            check_meeting_point("127.0.0.1", port)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(LaunchError, match="is not an address of this machine"):
        check_meeting_point("192.0.2.1", free_port())  # RFC 5737: for documentation only


def test_an_unknown_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: object, **options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(LaunchError, match=r"'nowhere' is not known here \(Name or service"):
        check_meeting_point("nowhere", 5000)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may use any port")
def test_a_port_that_needs_root_is_named() -> None:
    with pytest.raises(LaunchError, match="port 80 needs root rights"):
        check_meeting_point("127.0.0.1", 80)
