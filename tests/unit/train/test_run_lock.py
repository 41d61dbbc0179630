"""One run at a time in a run directory, whatever ends it."""

import errno
import fcntl
import multiprocessing
import os
import signal
import socket
from pathlib import Path

import pytest
import torch

from glmforge.distributed.collectives import Ranks
from glmforge.distributed.env import World
from glmforge.errors import CheckpointError
from glmforge.train.run_lock import LOCK, one_run


@pytest.fixture
def ranks() -> Ranks:
    world = World(rank=0, local_rank=0, world_size=1, local_world_size=1,
                  master_addr=None, master_port=None, launcher="none")  # fmt: skip
    return Ranks(world=world, device=torch.device("cpu"))


def quiet(line: str) -> None:
    raise AssertionError(line)


def hold(directory: Path, ranks: Ranks, ready: object) -> None:
    """Hold a directory until this process is killed."""
    with one_run(directory, ranks, quiet):
        ready.set()  # type: ignore[attr-defined]
        signal.pause()


@pytest.fixture
def other(tmp_path: Path, ranks: Ranks):
    """Another process that holds tmp_path/run."""
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=hold, args=(tmp_path / "run", ranks, ready), daemon=True)
    process.start()
    assert ready.wait(30)
    yield process
    process.kill()
    process.join()


def test_a_second_run_is_told_who_is_there_and_one_after_a_kill_goes_on(other, tmp_path, ranks):
    """Nothing has to be removed by hand after kill -9."""
    with pytest.raises(CheckpointError) as caught, one_run(tmp_path / "run", ranks, quiet):
        pass
    text = str(caught.value)
    assert f"a run is going on in it (process {other.pid} on {socket.gethostname()}, since" in text
    assert "Nothing was changed" in text
    other.kill()
    other.join()
    assert (tmp_path / "run" / LOCK).exists()
    with one_run(tmp_path / "run", ranks, quiet):
        pass
    assert not (tmp_path / "run" / LOCK).exists()


def test_workers_of_a_killed_run_hold_nothing(tmp_path, ranks):
    """A forked worker that outlives its run has no part in the lock."""
    with one_run(tmp_path / "run", ranks, quiet):
        worker = os.fork()
        if worker == 0:
            signal.pause()
            os._exit(0)
    try:
        with one_run(tmp_path / "run", ranks, quiet):
            os.kill(worker, 0)  # it still lives
            assert str(os.getpid()) in (tmp_path / "run" / LOCK).read_text()
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)


def test_directories_made_for_a_run_that_was_refused_are_removed(tmp_path, ranks):
    """Others are not, and neither is what the run wrote."""
    with pytest.raises(ValueError, match="bad data"), one_run(tmp_path / "a/b", ranks, quiet):
        raise ValueError("bad data")
    assert not (tmp_path / "a").exists()
    with one_run(tmp_path / "a/b", ranks, quiet):
        (tmp_path / "a/b/metrics.jsonl").touch()
    assert [path.name for path in (tmp_path / "a/b").iterdir()] == ["metrics.jsonl"]
    (tmp_path / "mine").mkdir()
    with one_run(tmp_path / "mine", ranks, quiet):
        pass
    assert (tmp_path / "mine").exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path, ranks):
    """A file stands where the directory should."""
    (tmp_path / "file").touch()
    with (
        pytest.raises(CheckpointError, match=r"file/run: the run cannot be written there"),
        one_run(tmp_path / "file/run", ranks, quiet),
    ):
        pass


def test_a_file_system_without_locks_is_said_and_the_run_goes_on(tmp_path, ranks, monkeypatch):
    """Never in silence."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", refuse)
    said: list[str] = []
    with one_run(tmp_path / "run", ranks, said.append):
        pass
    assert said == [f"{tmp_path}/run: its file system keeps no locks: start no second run in it"]
