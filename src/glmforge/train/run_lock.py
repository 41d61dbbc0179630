"""One run at a time in a run directory: what a requeued job and its twin would spoil.

Rank 0 holds a POSIX record lock on ``.lock`` from before anything is read to the run's end. The
kernel frees it with the process, however that ends, so that a killed run leaves nothing to remove;
forked workers do not inherit it; NFS keeps it between machines.
"""

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from glmforge.distributed.collectives import Ranks
from glmforge.errors import CheckpointError
from glmforge.train.tensorboard import Say

LOCK = ".lock"
_NOT_KEPT = (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS)
"""What file systems answer that keep no locks."""


@contextmanager
def one_run(directory: Path, ranks: Ranks, say: Say) -> Iterator[None]:
    """Hold a run directory for one run; a collective.

    Directories that were made for the lock and hold nothing at the end are removed again.

    Raises:
        CheckpointError: another run holds it (names its process, machine and start), or it cannot
            be written; on every rank.
    """
    held, made, problem = None, [], None
    if ranks.is_main:
        made = [place for place in (directory, *directory.parents) if not place.exists()]
        try:
            directory.mkdir(parents=True, exist_ok=True)
            held = _take(directory / LOCK)
        except BlockingIOError:
            problem = _going_on(directory)
        except OSError as error:
            if error.errno in _NOT_KEPT:
                (directory / LOCK).unlink(missing_ok=True)
                say(f"{directory}: its file system keeps no locks: start no second run in it")
            else:
                problem = (
                    f"{directory}: the run cannot be written there ({error}): mend that, or take "
                    "another training.output_dir"
                )
    try:
        problem = ranks.agree(problem)
        if problem is not None:
            raise CheckpointError(problem)
        yield
    finally:
        if held is not None:
            (directory / LOCK).unlink(missing_ok=True)
            os.close(held)
        for place in made:
            if not place.exists() or any(place.iterdir()):
                break
            place.rmdir()


def _take(path: Path) -> int:
    """Lock a file and write into it who has it; return its descriptor.

    Raises:
        BlockingIOError: another process has it.
        OSError: it cannot be opened, or the file system keeps no locks.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            named = path.stat().st_ino == os.fstat(descriptor).st_ino
        except FileNotFoundError:
            named = False
        except OSError as error:
            os.close(descriptor)
            if error.errno == errno.EACCES:  # the other of the two answers that POSIX allows
                raise BlockingIOError from error
            raise
        if named:
            break
        os.close(descriptor)  # its holder ended, and removed it, in between
    holder = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(holder).encode(), 0)
    return descriptor


def _going_on(directory: Path) -> str:
    """Say who holds a directory."""
    try:
        holder: dict[str, Any] = json.loads((directory / LOCK).read_text(encoding="utf-8"))
        who = f"process {holder['pid']} on {holder['host']}, since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        who = "its process has not yet written who it is"
    return (
        f"{directory}: a run is going on in it ({who}). Two would spoil each other's checkpoints: "
        f"wait for its end, or stop it (kill -TERM, then --resume auto); for another run take "
        f"another training.output_dir. Nothing was changed"
    )
