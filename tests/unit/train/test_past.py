"""What a run was is known from its own files or its checkpoint's copies."""

import json

import pytest

from glmforge.config import config_from_mapping
from glmforge.errors import CheckpointError
from glmforge.train.past import inputs_changed, past_of, restore_description
from glmforge.train.rundir import data_manifest, model_files, read_final, write_run_files

FILES = ("config.yaml", "deepspeed.json", "data.json", "versions.json")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run directory, and a checkpoint with copies of its files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m").mkdir()
    (tmp_path / "m/config.json").write_text("{}")
    (tmp_path / "t.jsonl").write_text('{"text": "a"}\n')
    directory = tmp_path / "run"
    write_run_files(
        directory,
        config_yaml=config().to_yaml(),
        deepspeed_config={"train_batch_size": 4, "zero_optimization": {"stage": 2}},
        manifest=manifest(tmp_path),
    )
    state = directory / "checkpoints/step-000002/state"
    state.mkdir(parents=True)
    for name in FILES:
        (state / name).write_bytes((directory / name).read_bytes())
    return directory


def config(train="t.jsonl"):
    values = {"model": {"model_name_or_path": "m"}, "data": {"train": train}}
    return config_from_mapping(values | {"training": {"output_dir": "run"}})


def manifest(place):
    from glmforge.data.prepared import sha256_of

    path = place / "t.jsonl"
    file = {"path": str(path), "bytes": path.stat().st_size, "sha256": sha256_of(path)}
    return data_manifest({"train": [file]}, {}, model=model_files(place / "m"), total_steps=4)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.write_text(""), "cannot be read"),
        (lambda path: path.write_text("[1, 2"), "cannot be read"),
        (lambda path: path.write_text("{}"), "lacks "),
        (lambda path: path.write_bytes(b"\xff\xfe\x00"), "cannot be read"),
    ],
)
def test_a_file_that_is_gone_or_torn_is_put_back_from_the_checkpoint(run, name, damage, said):
    whole = (run / name).read_bytes()
    damage(run / name)
    (line,) = restore_description(run, run / "checkpoints/step-000002")
    assert line.startswith(f"{run / name}: {said}")
    assert line.endswith(f"put back from {run / 'checkpoints/step-000002'}")
    assert (run / name).read_bytes() == whole
    assert restore_description(run, run / "checkpoints/step-000002") == ()


def test_versions_without_a_copy_are_written_anew(run):
    """Nothing depends on them: no run is refused for their sake."""
    before = json.loads((run / "versions.json").read_text())
    checkpoint = run / "checkpoints/step-000002"
    (checkpoint / "state/versions.json").unlink()
    (run / "versions.json").write_text("{")
    (line,) = restore_description(run, checkpoint)
    assert "versions.json: cannot be read" in line
    assert line.endswith("is missing; it says what is installed now")
    assert json.loads((run / "versions.json").read_text()) == before


def test_without_a_copy_every_file_is_named_with_what_to_do(run):
    checkpoint = run / "checkpoints/step-000002"
    (run / "data.json").write_text('{"hash":')
    (run / "deepspeed.json").unlink()
    for name in ("data.json", "deepspeed.json"):
        (checkpoint / "state" / name).unlink()
    with pytest.raises(CheckpointError) as caught:
        restore_description(run, checkpoint)
    text = str(caught.value)
    assert "data.json: cannot be read" in text
    assert "deepspeed.json: is missing" in text
    assert f"--init-from {run}" in text


def test_inputs_are_the_same_until_a_byte_of_them_is_another(run, tmp_path):
    """A finished run is complete only for the data and the base it was trained on."""
    assert not inputs_changed(run, config())
    moved = tmp_path / "other.jsonl"
    moved.write_bytes((tmp_path / "t.jsonl").read_bytes())
    assert not inputs_changed(run, config("other.jsonl"))
    moved.write_text('{"text": "b"}\n')
    assert inputs_changed(run, config("other.jsonl"))
    assert inputs_changed(run, config("gone.jsonl"))
    (tmp_path / "m/config.json").write_text('{"a": 1}')
    assert inputs_changed(run, config())


def test_inputs_of_a_run_whose_past_is_not_known_count_as_changed(run):
    (run / "config.yaml").rename(run / "kept")
    assert inputs_changed(run, config())
    (run / "kept").rename(run / "config.yaml")
    assert not inputs_changed(run, config())
    (run / "data.json").write_text(json.dumps({"hash": "a"}))
    assert inputs_changed(run, config())


@pytest.mark.parametrize("text", ["", "{", "[]", '{"step": 3}'])
def test_a_torn_end_is_no_end(run, text):
    """The run goes on from its last checkpoint and ends again."""
    (run / "final.json").write_text(text)
    assert read_final(run) is None


def test_a_run_is_compared_with_what_its_checkpoint_says(run):
    """The config.yaml of the run directory may have been edited: no part of a checkpoint is."""
    checkpoint = run / "checkpoints/step-000002"
    assert past_of(run, checkpoint) == checkpoint / "state"
    (checkpoint / "state/versions.json").unlink()
    assert past_of(run, checkpoint) == checkpoint / "state"
    (checkpoint / "state/data.json").write_text("{")
    assert past_of(run, checkpoint) == run
    assert past_of(run, run / "checkpoints/step-000004") == run
