"""One rank speaks for all: what a failing rank says, and who gets to say it.

Under our launcher each failing rank leaves a report in a directory of the launcher, which prints
the first one. Under a foreign launcher the ranks of a machine share a small file in the system's
directory for temporary files: the first one in it prints, the others keep quiet.
"""

import fcntl
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from glmforge.distributed.env import World

DIRECTORY = "GLMFORGE_REPORTS_DIR"
_STALE_SECONDS = 15.0
"""A list untouched for longer is of an earlier run of the same launcher process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a failing rank says.

    `code` is the exit status it means to end with, `time_ns` when it said so (nanoseconds since
    1970), `text` what the user should read.
    """

    rank: int
    code: int
    time_ns: int
    text: str


def tell(world: World, code: int, text: str) -> None:
    """Show a failure to the user, once for all ranks of this machine.

    Args:
        world: who this process is.
        code: the exit status that it is about to end with.
        text: what went wrong.
    """
    folder = os.environ.get(DIRECTORY)
    if world.launcher == "glmforge" and folder and os.path.isdir(folder):
        _leave_report(Path(folder), world.rank, code, text)
    elif _speaks(world):
        print(text, file=sys.stderr, flush=True)


def _leave_report(folder: Path, rank: int, code: int, text: str) -> None:
    values = {"rank": rank, "code": code, "time_ns": time.time_ns(), "text": text}
    unfinished = folder / f"rank-{rank:05d}.part"
    unfinished.write_text(json.dumps(values), encoding="utf-8")
    unfinished.rename(unfinished.with_suffix(".json"))


def read_reports(folder: Path) -> dict[int, Report]:
    """Return the reports that ranks have left so far, by rank."""
    found = (json.loads(file.read_text(encoding="utf-8")) for file in folder.glob("*.json"))
    return {values["rank"]: Report(**values) for values in found}


def _speaks(world: World) -> bool:
    """Say whether this rank is the first on this machine to fail; a process alone always is.

    The shared file lists the ranks that have failed. A rank that finds itself in it, or a list
    that is old, knows that it is of an earlier run; the last rank to fail removes it.
    """
    if world.world_size == 1:
        return True
    name = f"glmforge-{os.getuid()}-{os.getppid()}-{world.master_port}.failed"
    file = Path(tempfile.gettempdir()) / name
    try:
        shared = file.open("a+", encoding="utf-8")
    except OSError:
        return True  # no place for the file: better said twice than not at all
    with shared:
        fcntl.flock(shared, fcntl.LOCK_EX)
        old = time.time() - os.fstat(shared.fileno()).st_mtime > _STALE_SECONDS
        shared.seek(0)
        failed = set(shared.read().split())
        if old or str(world.rank) in failed:
            failed = set()
            shared.truncate(0)
        shared.write(f"{world.rank}\n")
        if len(failed) + 1 >= world.local_world_size:
            file.unlink(missing_ok=True)
        return not failed
