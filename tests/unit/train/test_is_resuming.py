"""A run that was saved once is never begun again, whatever became of its checkpoints."""

import json

import pytest

from glmforge.errors import CheckpointError
from glmforge.train.checkpoint import newest_complete
from glmforge.train.resume import is_resuming

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
