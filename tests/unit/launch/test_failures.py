"""One rank speaks for all."""

import os
import time
from pathlib import Path

import pytest

from glmforge.distributed.env import World
from glmforge.launch import failures


def world(rank: int, launcher: str = "torchrun", size: int = 2) -> World:
    return World(
        rank=rank, local_rank=rank, world_size=size, local_world_size=size, master_port=29999,
        launcher=launcher,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv(failures.DIRECTORY, raising=False)


def test_under_a_foreign_launcher_only_the_first_rank_speaks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failures.tell(world(1), 1, "first")
    failures.tell(world(0), 1, "second")
    assert capsys.readouterr().err == "first\n"


def test_the_last_rank_to_fail_leaves_no_file(tmp_path: Path) -> None:
    for rank in (2, 0, 1):
        assert (list(tmp_path.iterdir()) == []) == (rank == 2)
        failures.tell(world(rank, size=3), 1, "text")
    assert list(tmp_path.iterdir()) == []


def test_the_file_of_an_earlier_run_silences_nobody(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A rank that is in it already, or finds it old, begins a new one."""
    failures.tell(world(1), 1, "first run")
    failures.tell(world(1), 1, "second run")
    failures.tell(world(0), 1, "second run, too")
    failures.tell(world(1), 1, "third run")
    (file,) = tmp_path.iterdir()
    os.utime(file, (time.time() - 16, time.time() - 16))
    failures.tell(world(0), 1, "fourth run")
    assert capsys.readouterr().err == "first run\nsecond run\nthird run\nfourth run\n"


def test_a_process_alone_speaks_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    failures.tell(World(), 1, "one")
    failures.tell(World(), 1, "two")
    assert capsys.readouterr().err == "one\ntwo\n"
    assert list(tmp_path.iterdir()) == []


def test_under_our_launcher_ranks_leave_reports_and_keep_quiet(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "reports"
    folder.mkdir()
    monkeypatch.setenv(failures.DIRECTORY, str(folder))
    failures.tell(world(1, "glmforge"), 3, "Fehler: ü\n中")
    assert capsys.readouterr().err == ""
    (report,) = failures.read_reports(folder).values()
    assert (report.rank, report.code, report.text) == (1, 3, "Fehler: ü\n中")
    assert abs(report.time_ns / 1e9 - time.time()) < 60


def test_a_rank_whose_launcher_is_gone_speaks_for_itself(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(failures.DIRECTORY, str(tmp_path / "removed"))
    failures.tell(world(1, "glmforge"), 1, "text")
    assert capsys.readouterr().err == "text\n"
