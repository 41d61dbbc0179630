"""`glmforge inspect` says what a run directory holds, of whichever program."""

import json

import pytest

from glmforge.errors import CheckpointError
from glmforge.export.manifest import FORMAT_VERSION, MANIFEST, seal_of
from glmforge.train.run_survey import run_facts


def make(checkpoints, step):
    path = checkpoints / f"step-{step:06d}"
    path.mkdir(parents=True)
    manifest = {"format_version": FORMAT_VERSION, "step": step, "world_size": 2, "files": {}}
    (path / MANIFEST).write_text(json.dumps(manifest | {"seal": seal_of(manifest)}))
    return path


def test_a_run_lists_its_checkpoints_newest_first(tmp_path):
    """Whole or not, with the reason, and how the run ended."""
    (tmp_path / "config.yaml").touch()
    for step in (2, 4, 6):
        make(tmp_path / "checkpoints", step)
    (tmp_path / "checkpoints" / "step-000006" / MANIFEST).unlink()
    facts = run_facts(tmp_path)
    assert facts.newest_complete == "step-000004"
    assert "no final.json" in facts.lines[0]
    assert [line.split(":")[0] for line in facts.lines[1:]] == [
        "step-000006",
        "step-000004",
        "step-000002",
    ]
    assert "never finished" in facts.lines[1]
    end = {"status": "complete", "step": 6, "total_steps": 6}
    (tmp_path / "final.json").write_text(json.dumps(end))
    assert run_facts(tmp_path).lines[0] == "complete: step 6 of 6"
    end = {"status": "failed", "rank": 1, "problem": "rank 1 of 2 died of signal 9 (SIGKILL)"}
    (tmp_path / "final.json").write_text(json.dumps(end))
    assert run_facts(tmp_path).lines[0] == "failed: rank 1 of 2 died of signal 9 (SIGKILL)"


def test_single_checkpoints_and_other_directories(tmp_path):
    """A checkpoint is verified; a model directory is none of these."""
    path = make(tmp_path / "checkpoints", 8)
    assert "whole: step 8, 2 process(es)" in run_facts(path).lines[0]
    (path / MANIFEST).write_text("{}")
    with pytest.raises(CheckpointError, match="cannot be read"):
        run_facts(path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    assert run_facts(tmp_path / "model") is None


def test_a_trainers_run_and_checkpoint(shared):
    """Case R02 through the command's own function."""
    run = shared / "cases" / "R02" / "run"
    assert run_facts(run).newest_complete == "checkpoint-100"
    assert run_facts(run / "checkpoint-100").lines[0] == "complete"
    with pytest.raises(CheckpointError, match="rng_state_2"):
        run_facts(run / "checkpoint-200")
