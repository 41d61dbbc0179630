"""What this machine has, judged for training: versions, memory, disk, limits, locks, variables.

Owns the single checks of `glmforge doctor` that need neither torch nor a config; ``doctor.py``
puts them together. Each check says pass, warn or fail, what was found, and how to mend it.
"""

import importlib.metadata
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from glmforge.distributed.env import world_from
from glmforge.errors import LaunchError
from glmforge.launch.ports import free_port

GIB = 2**30
Verdict = Literal["pass", "warn", "fail"]

TESTED: dict[str, tuple[str, str]] = {
    "torch": ("2.11", "2.13"),
    "transformers": ("5.17", "5.24"),
    "peft": ("0.19", "0.21"),
    "accelerate": ("1.15", "1.15"),
    "deepspeed": ("0.19.8", "0.19.8"),
    "tokenizers": ("0.23", "0.23"),
    "safetensors": ("0.7", "0.8"),
}
"""Lowest and highest versions that the tests ran with; lower ones are refused by the package."""

_STALE_SECONDS = 600.0
_SHM_BYTES_PER_RANK = GIB
_OPEN_FILES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One finding: what was looked at, the verdict, what was found, and the fix where one is."""

    name: str
    verdict: Verdict
    found: str
    fix: str = ""


def passed(name: str, found: str) -> Check:
    """Return a finding that needs nothing."""
    return Check(name=name, verdict="pass", found=found)


def version_checks() -> Iterator[Check]:
    """Compare the installed versions with the tested ranges."""
    yield passed("python", platform.python_version())
    for name, (low, high) in TESTED.items():
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Check(
                name=name, verdict="fail", found="not installed", fix=f"pip install {name}>={low}"
            )
            continue
        if _number(version) < _number(low):
            yield Check(
                name=name,
                verdict="fail",
                found=f"{version}, at least {low} is needed",
                fix=f"pip install --upgrade '{name}>={low}'",
            )
        elif _number(version)[:2] > _number(high)[:2]:
            yield Check(
                name=name,
                verdict="warn",
                found=f"{version}, tested up to {high}",
                fix=f"if it fails: pip install '{name}<={high}.*'",
            )
        else:
            yield passed(name, version)


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def host_memory_gib() -> float:
    """Return the memory of this machine in GiB, or of its container where that is less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        total = min(total, int(text))
    return round(total / GIB, 1)


def machine_checks(directory: Path, ranks: int) -> Iterator[Check]:
    """Judge memory, /dev/shm, disk and the limit of open files for so many ranks.

    Args:
        directory: where the run will write (or an existing folder above it).
        ranks: processes on this machine.
    """
    gib = host_memory_gib()
    if gib < 4 * ranks:
        yield Check(
            name="host memory",
            verdict="warn",
            found=f"{gib:g} GiB for {ranks} process(es), each of which takes about 4",
            fix="start fewer processes, or the system may kill one (signal 9)",
        )
    else:
        yield passed("host memory", f"{gib:g} GiB")
    yield _shm_check(ranks)
    yield _disk_check(directory)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _OPEN_FILES:
        yield Check(
            name="open files",
            verdict="warn",
            found=f"{soft} a process",
            fix=_more_open_files(hard),
        )
    else:
        yield passed("open files", f"{soft} a process")


def _more_open_files(hard: int) -> str:
    """Say how to raise the limit of open files; above the hard one only root can."""
    if hard != resource.RLIM_INFINITY and hard < _OPEN_FILES:
        return (
            f"the hard limit is {hard} too: as root write '* hard nofile 65536' into "
            "/etc/security/limits.conf and log in again; docker: --ulimit nofile=65536"
        )
    return f"ulimit -n {65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)}"


def _shm_check(ranks: int) -> Check:
    shm = Path("/dev/shm")
    if not shm.is_dir():
        return passed("/dev/shm", "none on this system")
    free = shutil.disk_usage(shm).free
    if free < ranks * _SHM_BYTES_PER_RANK:
        return Check(
            name="/dev/shm",
            verdict="warn" if free > GIB // 16 else "fail",
            found=f"{free / GIB:.2f} GiB free; NCCL and data workers use it (signal 7 when full)",
            fix="docker: --shm-size=16g; otherwise mount -o remount,size=16g /dev/shm",
        )
    return passed("/dev/shm", f"{free / GIB:.1f} GiB free")


def _disk_check(directory: Path) -> Check:
    existing = directory.resolve()
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free / GIB
    if free < 2:
        return Check(
            name="disk",
            verdict="fail" if free < 0.2 else "warn",
            found=f"{free:.2f} GiB free at {existing}",
            fix="free some, or write training.output_dir on another disk",
        )
    return passed("disk", f"{free:.1f} GiB free at {existing}")


def lock_checks(variables: Mapping[str, str]) -> Iterator[Check]:
    """Find locks of compilations that died: later runs wait for them in silence."""
    cache = Path(variables.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(variables.get("TORCH_EXTENSIONS_DIR") or cache / "torch_extensions")
    old = [
        lock
        for lock in (folder.rglob("lock") if folder.is_dir() else ())
        if time.time() - lock.stat().st_mtime > _STALE_SECONDS
    ]
    for lock in old:
        yield Check(
            name="compilation lock",
            verdict="warn",
            found=f"{lock} is {(time.time() - lock.stat().st_mtime) / 60:.0f} minutes old",
            fix=f"if nothing compiles now: rm {lock}",
        )
    if not old:
        yield passed("compilation locks", "none is left over")


def compiler_check(*, offload: bool) -> Check:
    """Say whether something of this run must be compiled, and whether it can be."""
    found = shutil.which("g++") or shutil.which("c++")
    if found:
        return passed("compiler", found)
    if offload:
        return Check(
            name="compiler",
            verdict="fail",
            found="no g++: offloading the optimizer needs DeepSpeed's CPU Adam, which is compiled "
            "on first use",
            fix="install g++ (apt-get install g++), or do without offload_optimizer",
        )
    return Check(
        name="compiler",
        verdict="warn",
        found="no g++: on a GPU, layers are compiled through it",
        fix="install g++ (apt-get install g++)",
    )


def toolkit_version(variables: Mapping[str, str]) -> str | None:
    """Return the version of the CUDA compiler that would be used, such as 13.0; None without."""
    home = variables.get("CUDA_HOME") or variables.get("CUDA_PATH")
    found = shutil.which("nvcc", path=f"{home}/bin" if home else None)
    if found is None:
        return None
    done = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
    release = re.search(r"release (\d+\.\d+)", done.stdout)
    return release[1] if release else None


def environment_checks(variables: Mapping[str, str]) -> Iterator[Check]:
    """Judge ports and the variables that launchers leave behind."""
    port = variables.get("MASTER_PORT", "")
    if port.isdigit() and _is_taken(int(port)):
        yield Check(
            name="port",
            verdict="warn",
            found=f"MASTER_PORT {port} is in use on this machine",
            fix="unset MASTER_PORT, and a free port is found",
        )
    else:
        yield passed("port", f"{free_port()} is free")
    try:
        world = world_from(variables)
    except LaunchError as error:
        yield Check(
            name="launcher's variables",
            verdict="fail",
            found="; ".join(error.problems),
            fix="unset them, or start through the launcher that sets all of them",
        )
    else:
        words = (
            "no launcher" if world.launcher == "none" else f"{world.launcher}, rank {world.rank}"
        )
        yield passed("launcher's variables", words)
    if "SLURM_JOB_ID" in variables and world_words(variables) == "none":
        yield passed(
            "Slurm",
            f"job {variables['SLURM_JOB_ID']} on {variables.get('SLURM_JOB_NODELIST', '?')}: start "
            "with srun, one task a GPU, or with --nproc on this machine",
        )
    mpi = sorted(name for name in variables if name.startswith(("OMPI_COMM_WORLD", "PMI_")))
    if mpi and "RANK" not in variables and "SLURM_PROCID" not in variables:
        yield Check(
            name="MPI variables",
            verdict="warn",
            found=f"{mpi[0]} and {len(mpi) - 1} more are set: mpirun is not read as a launcher",
            fix="start with glmforge train --nproc, torchrun, deepspeed or srun",
        )


def world_words(variables: Mapping[str, str]) -> str:
    """Name the launcher that these variables are of; "none" also where they are not whole."""
    try:
        return world_from(variables).launcher
    except LaunchError:
        return "none"


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
