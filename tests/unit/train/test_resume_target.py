"""What --resume PATH names is said, whatever it is; nothing but the config's own run is taken."""

import pytest

from glmforge.errors import CheckpointError
from glmforge.train.resume_target import check_target


def refusal(named, directory):
    with pytest.raises(CheckpointError) as refused:
        check_target(named, directory)
    return str(refused.value)


def test_a_trainers_run_is_looked_through(shared, tmp_path):
    """Case R02: the newest complete checkpoint, what was skipped, and the way that there is."""
    run = shared / "cases" / "R02" / "run"
    text = refusal(run, tmp_path / "mine")
    assert "newest complete checkpoint: checkpoint-100 (step 100)" in text
    assert "skipped checkpoint-300" in text
    assert f"--init-from {run / 'checkpoint-100'}" in text


def test_a_trainers_checkpoint_is_refused_by_name(shared, tmp_path):
    """Case R02: an incomplete one with its missing files, a whole one with what may be done."""
    run = shared / "cases" / "R02" / "run"
    assert "rng_state_3.pth" in refusal(run / "checkpoint-200", tmp_path)
    text = refusal(run / "checkpoint-100", tmp_path)
    assert "transformers' Trainer wrote this" in text
    assert f"--init-from {run / 'checkpoint-100'}" in text


def test_other_places_are_no_run_of_the_config(tmp_path):
    """Absent, empty, another run; its own passes."""
    run = tmp_path / "run"
    run.mkdir()
    assert "no such directory" in refusal(tmp_path / "none", run)
    assert "no run in" in refusal(run, run)
    (run / "metrics.jsonl").touch()
    assert f"write training.output_dir={run}" in refusal(run, tmp_path / "other")
    check_target(run, run)


def test_a_checkpoint_that_was_never_finished_is_named(tmp_path):
    """By its own path; with no other one there is nothing to offer."""
    checkpoint = tmp_path / "run" / "checkpoints" / "step-000004"
    checkpoint.mkdir(parents=True)
    text = refusal(checkpoint, tmp_path / "run")
    assert "step-000004: no manifest.json: it was never finished" in text
    assert "no complete checkpoint" in text


def test_a_pointer_is_named_with_the_checkpoint_that_it_names(tmp_path):
    """`best` and `latest` are text files; export and --init-from say so in the same words."""
    from glmforge.errors import ExportError
    from glmforge.export.shards import find_tag
    from glmforge.export.sources import find_source

    (tmp_path / "checkpoints/step-000002").mkdir(parents=True)
    best = tmp_path / "checkpoints/best"
    best.write_text("step-000002\n")
    said = f"it is a file that names a checkpoint: give {best.with_name('step-000002')}"
    assert said in refusal(best, tmp_path / "mine")
    with pytest.raises(CheckpointError, match="names a checkpoint"):
        find_tag(best)
    with pytest.raises(ExportError, match="names a checkpoint"):
        find_source(best, None)
    best.write_text("step-000009\n")
    assert "no such directory" in refusal(best, tmp_path / "mine")
