"""The TCP port where the ranks meet: finding a free one, and refusing a taken one by name.

Checked by opening a listening socket as rank 0 will, and closing it again, before any process
starts; torch's own report of a taken port comes after its imports, as a traceback.
"""

import errno
import socket
from typing import NamedTuple

from glmforge.errors import LaunchError

LOCAL = "127.0.0.1"


class Naming(NamedTuple):
    """The option by which a user names a meeting point, who listens there, and how to mend it."""

    option: str
    listener: str
    other_address: str
    other_port: str


MASTER = Naming(
    option="--master-addr",
    listener="rank 0",
    other_address=f"leave it out to use {LOCAL}",
    other_port="leave --master-port out and a free one is found, or name another",
)
RENDEZVOUS = Naming(
    option="--rdzv (without it the first line of --hostfile)",
    listener="node 0",
    other_address="start --node-rank 0 on the machine that it names, or name this one",
    other_port="name another in --rdzv HOST:PORT, the same on all machines; if a second "
    "--node-rank 0 holds it, give each machine a rank of its own",
)


def free_port() -> int:
    """Return a TCP port that nothing listens on now, chosen by the system."""
    with _any_address_socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def check_meeting_point(address: str, port: int, naming: Naming = MASTER) -> None:
    """Make sure that rank 0 (or node 0) can listen at `address` and `port` of this machine.

    Raises:
        LaunchError: the port is taken or not allowed, or the address is not this machine's.
    """
    _check_address(address, naming)
    with _any_address_socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EACCES:
                text = f"port {port} needs root rights; take one from 1024 on"
            else:
                text = f"port {port} is in use on this machine ({error.strerror})"
            raise LaunchError(f"{text}; {naming.other_port}") from None


def _check_address(address: str, naming: Naming) -> None:
    try:
        family, kind, _, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise LaunchError(
            f"{naming.option} {address!r} is not known here ({error.strerror}); "
            f"{naming.other_address}"
        ) from None
    with socket.socket(family, kind) as probe:
        try:
            probe.bind(place)
        except OSError:
            raise LaunchError(
                f"{naming.option} {address!r} is not an address of this machine, where "
                f"{naming.listener} must listen; {naming.other_address}"
            ) from None


def _any_address_socket() -> socket.socket:
    """Open a socket that stands for all addresses, IPv6 included where the machine has it."""
    if socket.has_dualstack_ipv6():
        both = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        both.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        return both
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM)
