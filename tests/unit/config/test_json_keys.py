"""A key that stands twice in a DeepSpeed file is refused by name, however the file is read."""

from collections.abc import Callable
from pathlib import Path

import pytest

from glmforge.config.from_deepspeed import read_map
from glmforge.config.overrides import read_json_map
from glmforge.errors import ConfigError

FAULT = "has the key 'stage' twice in one map, and only the last would be read: keep one of them"


@pytest.fixture
def doubled(tmp_path: Path) -> Path:
    """A file whose inner map says stage 2 and stage 3."""
    file = tmp_path / "ds.json"
    file.write_text('{"zero_optimization": {"stage": 2, "overlap_comm": true, "stage": 3}}')
    return file


def test_both_readers_refuse_it(doubled: Path) -> None:
    """The run's, and that of the check of paths."""
    with pytest.raises(ConfigError, match="has the key 'stage' twice") as caught:
        read_map(str(doubled))
    assert caught.value.problems == (f"deepspeed: {doubled} {FAULT}",)
    assert read_json_map(doubled) == ({}, FAULT)


def test_a_setting_that_opens_the_file_refuses_it_too(
    doubled: Path, problems: Callable[..., list[str]]
) -> None:
    """Beside everything else that is wrong."""
    text = f"deepspeed: {doubled}\n"
    (said,) = (one for one in problems(text, "deepspeed.steps_per_print=1") if "twice" in one)
    assert said == f"command line: deepspeed '{doubled}' {FAULT}"


def test_the_same_key_in_two_maps_is_no_fault(tmp_path: Path) -> None:
    """Each map has its own."""
    file = tmp_path / "ds.json"
    file.write_text('{"bf16": {"enabled": true}, "fp16": {"enabled": false}}')
    assert read_map(str(file)) == {"bf16": {"enabled": True}, "fp16": {"enabled": False}}
