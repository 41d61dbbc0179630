"""A checkpoint that is finished without a collective, because some ranks cannot take part."""

import threading
import time

import pytest

from glmforge.errors import CheckpointError
from glmforge.train import last_write
from glmforge.train.checkpoint import check, temporary_of
from glmforge.train.last_write import commit_alone, leave_note
from glmforge.train.saving import seal

RANKS = 3


@pytest.fixture
def final(tmp_path):
    """Where the checkpoint will be, and its place until then."""
    found = tmp_path / "checkpoints" / "step-000007"
    temporary_of(found).mkdir(parents=True)
    return found


def write(final, rank):
    """What a rank's thread does."""
    place = temporary_of(final)
    (place / f"shard-{rank}.pt").write_bytes(bytes([rank]) * 1000)
    leave_note(place, rank, seal(place, [f"shard-{rank}.pt"]))


def test_one_of_the_failing_ranks_names_the_checkpoint_once_all_have_written(tmp_path, final):
    """All wait until the slowest rank has written; its training may be stuck meanwhile."""
    said = []
    failing = [
        threading.Thread(target=lambda: said.append(commit_alone(final, 7, RANKS)))
        for _ in range(RANKS)
    ]
    for rank in (0, 2):
        write(final, rank)
    for thread in failing:
        thread.start()
    time.sleep(0.2)
    assert not final.exists()
    write(final, 1)
    for thread in failing:
        thread.join(20)
    assert sorted(said) == [False, False, True]
    assert check(final)["files"].keys() == {f"shard-{rank}.pt" for rank in range(RANKS)}
    assert sorted(path.name for path in final.parent.iterdir()) == ["latest", "step-000007"]


def test_a_rank_that_never_writes_its_part_is_named(tmp_path, final, monkeypatch):
    """It has died: nothing torn gets the name."""
    monkeypatch.setattr(last_write, "STILL_SECONDS", 0.2)
    write(final, 0)
    with pytest.raises(CheckpointError, match=r"nothing more has come for 0 s of rank 1, 2$"):
        commit_alone(final, 7, RANKS)
    assert not final.exists()
