"""Checkpoint directories: damage is named, the newest whole one is found, rotation keeps best."""

import json

import pytest

from glmforge.errors import CheckpointError
from glmforge.train.checkpoint import (
    FORMAT_VERSION,
    MANIFEST,
    newest_complete,
    rotate,
    sha256_of,
    verify,
    write_pointer,
)


def make(directory, step, content=b"shard"):
    path = directory / f"step-{step:06d}"
    (path / "state").mkdir(parents=True)
    (path / "state" / "rank-00000.pt").write_bytes(content)
    entry = {"bytes": len(content), "sha256": sha256_of(path / "state" / "rank-00000.pt")}
    manifest = {
        "format_version": FORMAT_VERSION,
        "step": step,
        "world_size": 1,
        "files": {"state/rank-00000.pt": entry},
    }
    (path / MANIFEST).write_text(json.dumps(manifest))
    return path


def test_a_whole_checkpoint_passes(tmp_path):
    """The manifest comes back."""
    assert verify(make(tmp_path, 7))["step"] == 7


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: (p / MANIFEST).unlink(), "never finished"),
        (lambda p: (p / MANIFEST).write_text("{"), "cannot be read"),
        (lambda p: (p / MANIFEST).write_text("{}"), "cannot be read"),
        (lambda p: (p / "state/rank-00000.pt").unlink(), "rank-00000.pt: missing"),
        (lambda p: (p / "state/rank-00000.pt").write_bytes(b"sha"), "3 bytes, 5 were written"),
        (lambda p: (p / "state/rank-00000.pt").write_bytes(b"shart"), "differ from what was"),
    ],
)
def test_damage_is_named(tmp_path, damage, message):
    """Missing, torn and flipped files each get their own sentence."""
    path = make(tmp_path, 7)
    damage(path)
    with pytest.raises(CheckpointError, match=message):
        verify(path)


def test_the_newest_whole_one_is_found_by_number(tmp_path):
    """Not by text order; what was passed over is said; strangers are ignored."""
    for step in (90, 100, 1000000):
        make(tmp_path, step)
    (tmp_path / "step-1000000" / "state/rank-00000.pt").write_bytes(b"")
    (tmp_path / ".tmp-step-2000000").mkdir()
    (tmp_path / "step-old").mkdir()
    found = newest_complete(tmp_path)
    assert found.path.name == "step-000100"
    assert len(found.skipped) == 1
    assert "step-1000000" in found.skipped[0]


def test_nothing_to_resume_is_an_error_that_says_why(tmp_path):
    """It never ends in a fresh start."""
    make(tmp_path, 3).joinpath(MANIFEST).unlink()
    with pytest.raises(CheckpointError, match=r"no complete checkpoint[\s\S]*step-000003"):
        newest_complete(tmp_path)


def test_rotation_keeps_the_last_and_the_best(tmp_path):
    """Everything else that is whole goes."""
    for step in (1, 2, 3, 4, 5):
        make(tmp_path, step)
    write_pointer(tmp_path / "best", "step-000002")
    assert rotate(tmp_path, keep_last=2) == ["step-000003", "step-000001"]
    assert sorted(p.name for p in tmp_path.glob("step-*")) == [
        "step-000002",
        "step-000004",
        "step-000005",
    ]
