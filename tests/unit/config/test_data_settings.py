"""The settings of `data:`, which say how files become training rows."""

from collections.abc import Callable
from pathlib import Path

import pytest

from glmforge.config import config_from_mapping, load_config_file
from glmforge.config.schema import WeightedSource
from glmforge.data.rules import REPAIRS
from glmforge.data.sources import DATA_ENDINGS
from glmforge.data.templates import LABELS
from glmforge.data.truncation import POLICIES

GOOD = """\
model: {model_name_or_path: models/glm}
training: {output_dir: run}
data:
  train: [a.jsonl, {path: b.jsonl, weight: 0.5}]
"""

Write = Callable[[str], Path]
Problems = Callable[..., list[str]]


def test_sources_may_have_weights_and_come_back_from_yaml(write: Write) -> None:
    config = load_config_file(write(GOOD), ["data.columns={query: ask}", "data.repair=[trim]"])
    assert config.data.train == ["a.jsonl", WeightedSource(path="b.jsonl", weight=0.5)]
    assert load_config_file(write(config.to_yaml())) == config


def test_the_config_knows_every_choice_that_the_data_room_has(write: Write) -> None:
    for name, choices in (("labels", LABELS), ("truncation", POLICIES)):
        for choice in choices:
            config = load_config_file(write(GOOD), [f"data.{name}={choice}"])
            assert getattr(config.data, name) == choice
    config = load_config_file(write(GOOD), [f"data.repair=[{', '.join(REPAIRS)}]"])
    assert config.data.repair == list(REPAIRS)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["data.group_by_length=true"], "data.group_by_length has no effect: rows are packed"),
        (["data.pad_to_multiple_of=8"], "data.pad_to_multiple_of has no effect: rows are packed"),
        (
            ["data.validation=v.jsonl", "data.validation_size=5"],
            "data.validation_size has no effect: data.validation is given",
        ),
    ],
)
def test_settings_without_effect_are_faults(
    problems: Problems, overrides: list[str], problem: str
) -> None:
    (found,) = problems(GOOD, *overrides)
    assert found.startswith(f"command line: {problem}")


def test_padding_can_be_set_where_rows_are_not_packed(write: Write) -> None:
    more = ["data.packing=false", "data.group_by_length=true", "data.pad_to_multiple_of=8"]
    config = load_config_file(write(GOOD), more)
    assert load_config_file(write(config.to_yaml())) == config


def test_a_validation_share_evaluates(write: Write) -> None:
    config = load_config_file(write(GOOD), ["data.validation_size=0.1", "training.eval_steps=5"])
    assert config.training.eval_steps == 5


def test_missing_files_are_named_and_hub_names_are_left_to_the_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problems: Problems
) -> None:
    monkeypatch.chdir(tmp_path)
    found = problems(
        GOOD,
        "data.train=[owner/set, data/a.jsonl, {path: b.txt}]",
        "model.model_name_or_path=nowhere",
        check_paths=True,
    )
    named = [problem.split(";")[0] for problem in found if "data.train" in problem]
    assert named == [
        "command line: data.train 'data/a.jsonl' does not exist",
        "command line: data.train 'b.txt' does not exist",
    ]


def test_the_endings_of_data_files_are_the_same_for_config_and_reader() -> None:
    from glmforge.config.paths import DATA_ENDINGS as of_the_config

    assert set(of_the_config) == set(DATA_ENDINGS)


def test_the_settings_may_come_from_python() -> None:
    config = config_from_mapping(
        {
            "model": {"model_name_or_path": "m"},
            "training": {"output_dir": "r"},
            "data": {"train": {"path": "a.jsonl", "weight": 2.0}, "validation_size": 10},
        }
    )
    assert config.data.train == WeightedSource(path="a.jsonl", weight=2.0)
