"""What can happen to a checkpoint's files, drawn with a seed; and a disk that can be filled."""

import contextlib
import os
import random
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

WAYS = ("flip", "truncate", "empty", "tear", "delete")


def damage(path: Path, way: str, draw: random.Random) -> None:
    """Damage one file: a flipped bit, a cut end, nothing left, zeros at the end, gone."""
    content = bytearray(path.read_bytes())
    if way == "delete":
        path.unlink()
        return
    if way == "empty" or not content:
        content = bytearray(b"" if content else b"x")
    elif way == "flip":
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    elif way == "truncate":
        del content[draw.randrange(len(content)) :]
    else:  # torn: the last pages never reached the disk
        start = draw.randrange(len(content))
        if not any(content[start:]):
            content[start] ^= 1
        else:
            content[start:] = bytes(len(content) - start)
    path.write_bytes(content)


def damage_newest(checkpoints: Path, draw: random.Random) -> str | None:
    """Damage a random file of the newest whole checkpoint, if an older whole one remains."""
    from glmforge.train.checkpoint import is_whole

    whole = [path for path in sorted(checkpoints.glob("step-*")) if is_whole(path)]
    if len(whole) < 2:
        return None
    file = draw.choice(sorted(path for path in whole[-1].rglob("*") if path.is_file()))
    way = draw.choice(WAYS)
    damage(file, way, draw)
    return f"{file.relative_to(checkpoints)}: {way}"


@contextlib.contextmanager
def small_disk(place: Path, mebibytes: int) -> Iterator[bool]:
    """A file system of its own at `place`; yields False where mounting is not permitted."""
    place.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(place)]
    mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place: Path) -> Path:
    """Take all free space of a file system, but for a page or two."""
    balloon = place / "balloon"
    handle = os.open(balloon, os.O_CREAT | os.O_WRONLY)
    block = 2**20
    while block >= 4096:
        try:
            size = os.fstat(handle).st_size
            os.posix_fallocate(handle, size, block)
        except OSError:
            block //= 2
    os.close(handle)
    return balloon


def limit_files(byte_count: int) -> None:
    """Let no file of this process grow beyond a size: the write fails as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (byte_count, resource.RLIM_INFINITY))


def last_words(log: Path, ranks: int) -> str:
    """How the first rank that failed put it."""
    for rank in range(ranks):
        path = Path(f"{log}.{rank}")
        lines = path.read_text().strip().splitlines() if path.exists() else []
        for line in reversed(lines):
            if "Error" in line.split(":")[0]:
                return line[:200]
    return "nothing said"
