"""A run that was saved once is never begun again, whatever became of its checkpoints."""

import json
from types import SimpleNamespace

import pytest

from glmforge.errors import CheckpointError
from glmforge.train.checkpoint import newest_complete
from glmforge.train.resume import Start, check_world_size, is_resuming

TRAIN = json.dumps({"kind": "train", "step": 1}) + "\n"


@pytest.fixture
def run(tmp_path):
    """A run that was killed before its first save."""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.yaml").touch()
    (tmp_path / "metrics.jsonl").write_text(TRAIN)
    return tmp_path


def test_a_run_without_a_checkpoint_begins_again(run):
    """Also one that was killed in its first save."""
    assert not is_resuming(run, "auto")
    (run / "checkpoints" / ".tmp-step-000004").mkdir()
    assert not is_resuming(run, "auto")


@pytest.mark.parametrize("name", ["step-000004", "good", "damaged-step-000004"])
def test_a_checkpoint_under_any_name_stands_in_the_way(run, name):
    """Renamed or set aside."""
    (run / "checkpoints" / name).mkdir()
    assert is_resuming(run, "auto")
    with pytest.raises(CheckpointError, match=f"passed over {name}"):
        newest_complete(run / "checkpoints")


def test_checkpoints_that_are_gone_stand_in_the_way(run):
    """The folder is made before the first step: without it, it was moved."""
    (run / "checkpoints").rmdir()
    assert is_resuming(run, "auto")
    with pytest.raises(CheckpointError, match="put its checkpoints back"):
        newest_complete(run / "checkpoints")
    (run / "metrics.jsonl").write_text("")
    assert not is_resuming(run, "auto")


@pytest.mark.parametrize("name", ["adapter", "model"])
def test_weights_say_that_a_run_was_saved(run, name):
    (run / name).mkdir()
    assert is_resuming(run, "auto")


def test_without_zero_another_number_of_processes_is_refused(tmp_path):
    """With what to write instead; the other stages convert their state."""
    start = Start(path=tmp_path / "step-000004", step=4, world_size=2, skipped=(), damaged=())
    for stage in (1, 2, 3):
        check_world_size(start, SimpleNamespace(world_size=1), stage=stage)
    check_world_size(start, SimpleNamespace(world_size=2), stage=0)
    with pytest.raises(CheckpointError, match=r"2 process.* wrote it, and there are 1 .*--nproc 2"):
        check_world_size(start, SimpleNamespace(world_size=1), stage=0)
