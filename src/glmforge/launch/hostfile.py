"""A hostfile: the machines of a run, one a line, and which of them this is.

The format is DeepSpeed's and MPI's (``worker-1 slots=8``). No machine is logged into: the same
command is started on each of them, and the file says how many there are and who is node 0.
"""

import re
import socket
from dataclasses import dataclass
from pathlib import Path

from glmforge.errors import LaunchError


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One machine of a hostfile: its name or address, and its processes."""

    name: str
    slots: int


def read_hostfile(path: Path) -> list[Host]:
    """Read and check a hostfile.

    Raises:
        LaunchError: it is missing or empty, or every line that is wrong.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise LaunchError(
            f"--hostfile {path}: cannot be read ({error.strerror}); without it the run would only "
            "use this machine"
        ) from None
    hosts: list[Host] = []
    problems: list[str] = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = re.fullmatch(r"(\S+)\s+slots\s*=\s*(\d+)", text)
        if match is None or int(match[2]) == 0:
            problems.append(f"{path}:{number}: {text!r}, expected a line such as worker-1 slots=8")
        elif any(host.name == match[1] for host in hosts):
            problems.append(f"{path}:{number}: {match[1]} is named twice; add its slots up")
        else:
            hosts.append(Host(name=match[1], slots=int(match[2])))
    if not hosts and not problems:
        problems.append(f"{path}: no machine is in it; write a line such as worker-1 slots=8")
    if problems:
        raise LaunchError(problems)
    return hosts


def find_this_host(hosts: list[Host], path: Path) -> int:
    """Return which line of a hostfile is this machine, counted from 0.

    Raises:
        LaunchError: none of them, or several; says how to name it.
    """
    names = {socket.gethostname(), socket.getfqdn(), socket.gethostname().partition(".")[0]}
    found = [
        number for number, host in enumerate(hosts) if host.name in names or _is_local(host.name)
    ]
    if len(found) == 1:
        return found[0]
    which = "no line of it is this machine" if not found else f"{len(found)} lines are this machine"
    raise LaunchError(
        f"--hostfile {path}: {which} ({socket.gethostname()}): give --node-rank (0 for the first "
        "line)"
    )


def _is_local(name: str) -> bool:
    """Whether an address is one of this machine's: whether a socket can be bound to it."""
    try:
        family, kind, _, _, place = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(place)
    except OSError:
        return False
    return True
