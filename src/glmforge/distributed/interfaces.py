"""Which network interface of this machine reaches another one.

gloo tells its peers the address that this machine's own name resolves to. On many machines that is
a loopback address (`/etc/hosts`: 127.0.1.1), where no other machine finds it; an interface that is
named is used instead. Asks the kernel's routes; sends nothing.
"""

import array
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Mapping
from pathlib import Path

_ELSEWHERE = "192.0.2.1"
"""An address that no machine has (RFC 5737): its route is the way out of this machine."""

_SIOCGIFCONF = 0x8912
"""netdevice(7): the names and IPv4 addresses of all interfaces, further addresses of one too."""

_ENTRY_BYTES = 40
_MOST_ENTRIES = 1024


def interface_towards(address: str) -> str | None:
    """Return the interface by which this machine reaches an address, such as "eth0".

    Args:
        address: a name or address of another machine, or of this one. A name that is a loopback
            address here (as a machine's own often is) stands for the way out of this machine.

    Returns:
        None where no route leads there, or several may be meant.
    """
    local, interfaces = local_address_towards(address), _interfaces()
    if local is not None and ipaddress.ip_address(local).is_loopback:
        local = local_address_towards(_ELSEWHERE) or _only_address(interfaces) or local
    return None if local is None else interfaces.get(local)


def _only_address(interfaces: Mapping[str, str]) -> str | None:
    """Return the address of the only interface besides loopback, of a machine without a way out.

    None where there is no other; an address that is no interface's where there are several.
    """
    found = {
        name: address
        for address, name in interfaces.items()
        if not ipaddress.ip_address(address).is_loopback
    }
    if len(found) > 1:
        return _ELSEWHERE
    return next(iter(found.values()), None)


def local_address_towards(address: str) -> str | None:
    """Return the address of this machine from which it reaches another; None without a route."""
    try:
        found = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, _, _, place in found:
        with socket.socket(family, kind) as probe:
            try:
                probe.connect(place)  # of a datagram socket: only a look at the routes
            except OSError:
                continue
            return str(probe.getsockname()[0]).partition("%")[0]
    return None


def is_loopback(address: str) -> bool:
    """Say whether an address is written as one of this machine's loopback addresses."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _interfaces() -> dict[str, str]:
    """Return the interface of each address of this machine."""
    return _interfaces_of_ipv6(Path("/proc/net/if_inet6")) | _interfaces_of_ipv4()


def _interfaces_of_ipv4() -> dict[str, str]:
    room = array.array("B", bytes(_ENTRY_BYTES * _MOST_ENTRIES))
    request = struct.pack("iP", len(room), room.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe, _SIOCGIFCONF, request)
    filled = struct.unpack("iP", answer)[0]
    found = {}
    for start in range(0, filled, _ENTRY_BYTES):
        entry = room[start : start + _ENTRY_BYTES].tobytes()
        # "eth0:1" is a label of a further address of eth0.
        name = entry[:16].partition(b"\0")[0].decode().partition(":")[0]
        found[socket.inet_ntoa(entry[20:24])] = name
    return found


def _interfaces_of_ipv6(table: Path) -> dict[str, str]:
    if not table.is_file():
        return {}
    rows = [line.split() for line in table.read_text(encoding="ascii").splitlines()]
    return {str(ipaddress.IPv6Address(bytes.fromhex(row[0]))): row[5] for row in rows}
