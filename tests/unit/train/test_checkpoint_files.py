"""Checkpoint directories: damage is named, the newest whole one is found, rotation keeps best."""

import json

import pytest

from glmforge.data.prepared import sha256_of
from glmforge.errors import CheckpointError
from glmforge.export.manifest import FORMAT_VERSION, MANIFEST, seal_of, verify
from glmforge.train.checkpoint import (
    is_whole,
    newest_complete,
    point_at_best,
    rotate,
    set_aside,
    sweep,
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
    manifest["seal"] = seal_of(manifest)
    (path / MANIFEST).write_text(json.dumps(manifest))
    return path


def flip(path, before, after):
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def test_a_whole_checkpoint_passes(tmp_path):
    """The manifest comes back."""
    assert verify(make(tmp_path, 7))["step"] == 7


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: (p / MANIFEST).unlink(), "never finished"),
        (lambda p: (p / MANIFEST).write_text("{"), "cannot be read"),
        (lambda p: (p / MANIFEST).write_text("{}"), "cannot be read"),
        (lambda p: (p / MANIFEST).write_text("[]"), "cannot be read"),
        (lambda p: flip(p / MANIFEST, '"step": 7', '"step": 9'), "content differs"),
        (lambda p: flip(p / MANIFEST, '"seal"', '"sead"'), "content differs"),
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
    assert found.manifest["step"] == 100
    assert found.damaged == ("step-1000000",)
    assert len(found.skipped) == 2
    assert "step-2000000: its save never ended" in found.skipped[0]
    assert "step-1000000" in found.skipped[1]


def test_renamed_checkpoints_are_named_with_their_step(tmp_path):
    """Under another number, or under no number: neither is taken for what it says."""
    make(tmp_path, 90)
    make(tmp_path, 100).rename(tmp_path / "step-000900")
    make(tmp_path, 110).rename(tmp_path / "good-one")
    found = newest_complete(tmp_path)
    assert found.path.name == "step-000090"
    assert found.damaged == ("step-000900",)
    said = "\n".join(found.skipped)
    assert "it is the checkpoint of step 100; call it step-000100 to go on from it" in said
    assert "it is the checkpoint of step 110; call it step-000110" in said


def test_damaged_ones_are_set_aside_and_never_counted_again(tmp_path):
    """They stay on the disk under another name; the save of the same step is free to be made."""
    for step in (2, 4):
        make(tmp_path, step)
    (tmp_path / "step-000004" / "state/rank-00000.pt").write_bytes(b"")
    assert not is_whole(tmp_path / "step-000004")
    assert "damaged-step-000004" in set_aside(tmp_path, newest_complete(tmp_path).damaged)[0]
    make(tmp_path, 4).joinpath("state/rank-00000.pt").write_bytes(b"")
    assert "damaged-step-000004-2" in set_aside(tmp_path, ["step-000004"])[0]
    assert rotate(tmp_path, keep_last=1) == []
    assert newest_complete(tmp_path).skipped == ()


def test_what_was_interrupted_is_swept(tmp_path):
    """Half-made saves and half-done deletions, not other files."""
    for name in (".tmp-step-000004", ".gone-step-000002", ".universal-step-000002", "notes"):
        (tmp_path / name).mkdir()
    sweep(tmp_path, saves=False)
    assert (tmp_path / ".tmp-step-000004").exists()
    sweep(tmp_path, saves=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".universal-step-000002", "notes"]


def test_nothing_to_resume_is_an_error_that_says_why(tmp_path):
    """It never ends in a fresh start."""
    make(tmp_path, 3).joinpath(MANIFEST).unlink()
    with pytest.raises(CheckpointError, match=r"no complete checkpoint[\s\S]*step-000003"):
        newest_complete(tmp_path)


def test_rotation_keeps_the_last_and_the_best(tmp_path):
    """Everything else that is whole goes."""
    for step in (1, 2, 3, 4, 5):
        make(tmp_path, step)
    assert rotate(tmp_path, keep_last=2, best_step=2) == ["step-000003", "step-000001"]
    assert sorted(p.name for p in tmp_path.glob("step-*")) == [
        "step-000002",
        "step-000004",
        "step-000005",
    ]


@pytest.mark.parametrize("pointer", [None, "step-000001\n", "step-00"])
def test_the_best_is_named_again_after_a_kill_before_its_name(tmp_path, pointer):
    """`best` names an older checkpoint then, or one that is deleted, or nothing."""
    make(tmp_path, 2)
    newest = make(tmp_path, 4)
    if pointer is not None:
        (tmp_path / "best").write_text(pointer)
    assert point_at_best(tmp_path, 4, verified=newest) is None
    assert (tmp_path / "best").read_text() == "step-000004\n"
    assert point_at_best(tmp_path, 2, verified=newest) is None
    assert (tmp_path / "best").read_text() == "step-000002\n"


def test_a_best_checkpoint_that_is_damaged_or_gone_is_told_and_is_no_longer_the_best(tmp_path):
    best, newest = make(tmp_path, 2), make(tmp_path, 4)
    (tmp_path / "best").write_text("step-000002\n")
    (best / "state/rank-00000.pt").write_bytes(b"shart")
    said = point_at_best(tmp_path, 2, verified=newest)
    assert said is not None
    assert "rank-00000.pt: its bytes differ from what was written" in said
    assert "set aside as damaged-step-000002" in said
    assert sorted(p.name for p in tmp_path.iterdir()) == ["damaged-step-000002", "step-000004"]
    said = point_at_best(tmp_path, 3, verified=newest)
    assert said == f"{tmp_path / 'step-000003'} is not there"


def test_where_nothing_was_best_nothing_is_named(tmp_path):
    newest = make(tmp_path, 4)
    (tmp_path / "best").write_text("step-000006\n")
    assert point_at_best(tmp_path, None, verified=newest) is None
    assert not (tmp_path / "best").exists()
