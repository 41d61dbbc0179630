"""Whose end a launcher writes down."""

import fcntl
import json
import os
from pathlib import Path

from glmforge.launch import outcome


def record(directory: Path) -> None:
    outcome._record(directory, rank=1, code=1, host="h", words="rank 1 of 2 ended")


def test_the_end_of_a_refused_start_is_not_written_into_the_run_that_goes_on(
    tmp_path: Path,
) -> None:
    """Another process holds the lock; once it is gone, the end is this run's."""
    (tmp_path / "config.yaml").touch()
    (tmp_path / ".lock").touch()
    ready, go = os.pipe(), os.pipe()
    holder = os.fork()
    if holder == 0:
        descriptor = os.open(tmp_path / ".lock", os.O_RDWR)
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    record(tmp_path)
    assert not (tmp_path / "final.json").exists()
    os.write(go[1], b"x")
    os.waitpid(holder, 0)
    for end in (*ready, *go):
        os.close(end)
    record(tmp_path)
    assert json.loads((tmp_path / "final.json").read_text())["rank"] == 1
