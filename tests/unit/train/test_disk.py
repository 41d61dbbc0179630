"""Disk space is known before a run and before each save."""

import pytest
import torch

from glmforge.errors import CheckpointError
from glmforge.train import disk


def model():
    frozen, trained = torch.nn.Linear(1000, 1000, bias=False), torch.nn.Linear(10, 10, bias=False)
    frozen.weight.requires_grad_(False)
    return torch.nn.Sequential(frozen, trained)


def test_a_checkpoint_holds_states_weights_and_the_adapter():
    """100 trained parameters of 12 + 4 + 4 bytes; the frozen million only where it is saved."""
    assert disk.checkpoint_bytes(model(), exclude_frozen=True) - disk.SLACK_BYTES == 2_000
    assert disk.checkpoint_bytes(model(), exclude_frozen=False) - disk.SLACK_BYTES == 4_001_600


def test_the_free_space_of_a_directory_to_be_is_its_parents(tmp_path):
    """The run directory does not exist yet."""
    assert disk.free_bytes(tmp_path / "a" / "b") == pytest.approx(
        disk.free_bytes(tmp_path), rel=0.1
    )


@pytest.fixture
def ten_gib(monkeypatch):
    monkeypatch.setattr(disk, "free_bytes", lambda directory: 10 * disk.GIB)


def test_a_run_that_could_not_save_twice_is_refused(ten_gib, tmp_path):
    """With both numbers; one that might not keep all is warned."""
    with pytest.raises(
        CheckpointError, match=r"about 6\.0 GiB and two must fit.*10\.0 GiB are free"
    ):
        disk.check_before_run(tmp_path, 6 * disk.GIB, keep=2)
    warning = disk.check_before_run(tmp_path, 4 * disk.GIB, keep=2)
    assert warning is not None
    assert "16.0 GiB" in warning
    assert disk.check_before_run(tmp_path, 2 * disk.GIB, keep=2) is None


def test_what_a_full_disk_left_of_a_save_counts_as_free(ten_gib, tmp_path):
    """The run that goes on removes it before it saves."""
    unfinished = tmp_path / "checkpoints/.tmp-step-000004/global_step4"
    unfinished.mkdir(parents=True)
    with open(unfinished / "shard.pt", "wb") as file:
        file.truncate(3 * disk.GIB)  # a hole: it takes no space here
    disk.check_before_run(tmp_path, 6 * disk.GIB, keep=2)


def test_a_save_that_does_not_fit_is_not_begun(ten_gib, tmp_path):
    """The older checkpoints are whole, and the way on is said."""
    disk.check_before_save(tmp_path, 9 * disk.GIB)
    with pytest.raises(CheckpointError, match=r"not begun.*--resume auto"):
        disk.check_before_save(tmp_path, 11 * disk.GIB)
