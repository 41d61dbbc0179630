"""The TCP port where the ranks meet: finding a free one, and refusing a taken one by name.

Checked by opening a listening socket as rank 0 will, and closing it again, before any process
starts; torch's own report of a taken port comes after its imports, as a traceback.
"""

import errno
import socket

from glmforge.errors import LaunchError

LOCAL = "127.0.0.1"


def free_port() -> int:
    """Return a TCP port that nothing listens on now, chosen by the system."""
    with _any_address_socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def check_meeting_point(address: str, port: int) -> None:
    """Make sure that rank 0 can listen at `address` and `port` of this machine.

    Raises:
        LaunchError: the port is taken or not allowed, or the address is not this machine's.
    """
    _check_address(address)
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
            raise LaunchError(
                f"{text}; leave --master-port out and a free one is found, or name another"
            ) from None


def _check_address(address: str) -> None:
    try:
        family, kind, _, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise LaunchError(
            f"--master-addr {address!r} is not known here ({error.strerror}); "
            f"leave it out to use {LOCAL}"
        ) from None
    with socket.socket(family, kind) as probe:
        try:
            probe.bind(place)
        except OSError:
            raise LaunchError(
                f"--master-addr {address!r} is not an address of this machine, where rank 0 must "
                f"listen; leave it out to use {LOCAL}"
            ) from None


def _any_address_socket() -> socket.socket:
    """Open a socket that stands for all addresses, IPv6 included where the machine has it."""
    if socket.has_dualstack_ipv6():
        both = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        both.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        return both
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM)
