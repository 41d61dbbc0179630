"""The cheap look at the files a config names, before any process starts."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from glmforge.config import load_config_file
from glmforge.errors import ConfigError

GOOD = """\
model:
  model_name_or_path: models/glm
data:
  train: train.jsonl
training:
  output_dir: run
"""

Problems = Callable[..., list[str]]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with everything that GOOD names."""
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "models" / "glm"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "train.jsonl").write_text("{}\n")
    return tmp_path


def test_a_complete_place_has_no_problem(place: Path, write: Callable[[str], Path]) -> None:
    before = sorted(place.rglob("*"))
    load_config_file(write(GOOD), check_paths=True)
    assert sorted(place.rglob("*")) == [place / "c.yaml", *before], "nothing is made"


def test_missing_files_are_all_named(place: Path, problems: Problems) -> None:
    found = problems(
        GOOD,
        "model.model_name_or_path=nowhere",
        "data.train=[a.jsonl, train.jsonl, b.jsonl]",
        "data.validation=v.jsonl",
        "deepspeed=ds.json",
        check_paths=True,
    )
    assert [problem.split(";")[0] for problem in found] == [
        "command line: model.model_name_or_path 'nowhere' does not exist",
        "command line: data.train 'a.jsonl' does not exist",
        "command line: data.train 'b.jsonl' does not exist",
        "command line: data.validation 'v.jsonl' does not exist",
        "command line: deepspeed 'ds.json' cannot be read: No such file or directory",
    ]


def test_faults_of_the_config_and_of_the_files_come_together(
    place: Path, problems: Problems
) -> None:
    (place / "train.jsonl").unlink()
    found = problems(GOOD + "  leraning_rate: 1\n", check_paths=True)
    assert len(found) == 2
    assert found[1].startswith("c.yaml:4: data.train 'train.jsonl' does not exist; the path is rel")


def test_a_model_directory_without_weights_is_refused_unless_from_scratch(
    place: Path, problems: Problems, write: Callable[[str], Path]
) -> None:
    (place / "models" / "glm" / "model.safetensors").unlink()
    (problem,) = problems(GOOD, check_paths=True)
    assert problem.startswith(
        "c.yaml:2: model.model_name_or_path 'models/glm' has no weights (*.safetensors or *.bin)"
    )
    overrides = ["model.from_scratch=true", "method=full"]
    load_config_file(write(GOOD), overrides, check_paths=True)


def test_a_directory_without_config_json_is_no_model(place: Path, problems: Problems) -> None:
    (place / "models" / "glm" / "config.json").unlink()
    (problem,) = problems(GOOD, check_paths=True)
    assert "has no config.json" in problem


def test_weights_that_are_only_git_lfs_pointers_are_named(place: Path, problems: Problems) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
    (place / "models" / "glm" / "model.safetensors").write_bytes(pointer)
    (problem,) = problems(GOOD, check_paths=True)
    assert "holds only a git-lfs pointer in model.safetensors" in problem


def test_missing_shards_of_an_index_are_counted(place: Path, problems: Problems) -> None:
    table = {"weight_map": {"a": "model.safetensors", "b": "two.safetensors"}}
    index = place / "models" / "glm" / "model.safetensors.index.json"
    index.write_text(json.dumps(table))
    (problem,) = problems(GOOD, check_paths=True)
    assert "is incomplete: 1 of 2 weight files" in problem
    assert "two.safetensors" in problem


def test_a_damaged_deepspeed_file_names_its_fault(place: Path, problems: Problems) -> None:
    (place / "ds.json").write_text('{"a": 1,}')
    (problem,) = problems(GOOD, "deepspeed=ds.json", check_paths=True)
    assert "is not valid JSON: line 1" in problem
    (place / "ds.json").write_text("[1]")
    (problem,) = problems(GOOD, "deepspeed=ds.json", check_paths=True)
    assert "must hold a JSON map" in problem


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "final.json", "checkpoints"])
def test_a_directory_that_holds_a_run_is_refused_without_resume(
    place: Path, problems: Problems, write: Callable[[str], Path], name: str
) -> None:
    (place / "run").mkdir()
    load_config_file(write(GOOD), check_paths=True)
    (place / "run" / name).mkdir()
    (problem,) = problems(GOOD, check_paths=True)
    assert "training.output_dir 'run' already holds a run; continue it with --resume" in problem
    load_config_file(write(GOOD), check_paths=True, resume="auto")


@pytest.fixture
def copied(place: Path) -> Path:
    """A run's directory that was copied: its config still names the one where it was begun."""
    run = place / "copy"
    (run / "checkpoints").mkdir(parents=True)
    (run / "data.json").write_text("{}")
    (run / "config.yaml").write_text(GOOD)
    return run


@pytest.mark.parametrize(
    ("original", "there"), [(True, "which holds a run too"), (False, "which holds no run")]
)
def test_the_config_of_a_run_that_was_moved_goes_on_with_no_other(
    place: Path, copied: Path, original: bool, there: str
) -> None:
    """It would begin a run where none is, or go on with the original, without a word."""
    if original:
        (place / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(ConfigError) as caught:
        load_config_file(copied / "config.yaml", check_paths=True, resume="auto")
    (problem,) = caught.value.problems
    assert f"training.output_dir 'run' is {place / 'run'}, read in {place}, {there}" in problem
    assert f"add training.output_dir={copied}" in problem
    run = load_config_file(
        copied / "config.yaml",
        [f"training.output_dir={copied}"],
        check_paths=True,
        resume="auto",
    )
    assert run.training.output_dir == str(copied)


def test_a_runs_own_config_goes_on_where_it_lies_and_begins_new_runs(
    place: Path, copied: Path
) -> None:
    """Only --resume is about the run that it lies in; a project's own config.yaml is no run's."""
    load_config_file(copied / "config.yaml", check_paths=True)
    copied.rename(place / "run")
    load_config_file(place / "run" / "config.yaml", check_paths=True, resume="auto")
    (place / "config.yaml").write_text(GOOD)
    (place / "checkpoints").mkdir()
    load_config_file(place / "config.yaml", check_paths=True, resume="auto")


@pytest.mark.parametrize("text", [None, "model: [", "\x00"])
def test_a_runs_config_that_is_lost_or_torn_is_had_again_from_a_checkpoint(
    place: Path, copied: Path, text: str | None
) -> None:
    """The command that a stopped run has printed names it."""
    for step in (2, 10):
        (copied / f"checkpoints/step-{step:06d}/state").mkdir(parents=True)
        (copied / f"checkpoints/step-{step:06d}/state/config.yaml").write_text(GOOD)
    if text is None:
        (copied / "config.yaml").unlink()
    else:
        (copied / "config.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config_file(copied / "config.yaml", resume="auto")
    copy = copied / "checkpoints/step-000010/state/config.yaml"
    assert f"The run's checkpoints have it: cp {copy} {copied / 'config.yaml'}" in str(caught.value)


def test_a_run_that_cannot_be_written_is_not_judged_before_it_is_looked_at(
    place: Path, write: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finished one on a read-only disk answers that it is complete."""
    (place / "run" / "checkpoints").mkdir(parents=True)
    monkeypatch.setattr("os.access", lambda *_: False)
    load_config_file(write(GOOD), check_paths=True, resume="auto")


def test_an_output_directory_that_is_a_file_is_refused(place: Path, problems: Problems) -> None:
    (place / "run").write_text("")
    (problem,) = problems(GOOD, check_paths=True)
    assert "training.output_dir 'run' is a file" in problem
