"""Checkpoints of transformers' Trainer are judged by name, size and small files."""

import shutil

import pytest

from glmforge.errors import CheckpointError
from glmforge.train.foreign import check_whole, is_foreign_run, survey


@pytest.fixture
def run(shared):
    return shared / "cases" / "R02" / "run"


def test_the_newest_complete_checkpoint_is_found_by_number(run):
    """Case R02: as text, checkpoint-90 would be the last; 200, 300 and 400 are not whole."""
    found = survey(run)
    assert is_foreign_run(run)
    assert found.processes == 4
    assert found.newest.name == "checkpoint-100"
    assert {entry.name: entry.state for entry in found.entries} == {
        "checkpoint-90": "complete",
        "checkpoint-100": "complete",
        "checkpoint-200": "incomplete",
        "checkpoint-300": "broken",
        "checkpoint-400": "broken",
        "checkpoint-old": "no checkpoint",
        "tmp-checkpoint-500": "unfinished",
    }


def test_what_was_skipped_is_listed_with_its_reason(run):
    """Every directory but the complete ones has a line."""
    text = "\n".join(survey(run).lines())
    assert "newest complete checkpoint: checkpoint-100 (step 100)" in text
    assert "checkpoint-300: broken: 12 file(s) of 0 bytes" in text
    assert "checkpoint-400: broken: `latest` names global_step390, which does not exist" in text
    assert "tmp-checkpoint-500: unfinished" in text


def test_an_incomplete_one_is_refused_with_the_missing_files(run):
    """Asked for by name: optimizer, model and random-state files of ranks 2 and 3."""
    with pytest.raises(CheckpointError) as refused:
        check_whole(run / "checkpoint-200")
    text = str(refused.value)
    for rank in (2, 3):
        assert f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" in text
        assert f" zero_pp_rank_{rank}_mp_rank_00_model_states.pt" in text
        assert f"rng_state_{rank}.pth" in text
    assert "rank_1_" not in text
    assert "newest complete one is checkpoint-100" in text
    assert check_whole(run / "checkpoint-100").newest.step == 100


def test_a_renamed_checkpoint_is_broken(run, tmp_path):
    """trainer_state.json remembers its step."""
    shutil.copytree(run / "checkpoint-90", tmp_path / "checkpoint-900")
    (entry,) = survey(tmp_path).entries
    assert entry.problems == ("renamed: trainer_state.json says step 90",)
    assert survey(tmp_path).newest is None
