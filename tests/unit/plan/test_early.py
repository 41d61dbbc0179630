"""A DeepSpeed map is refused by the process that starts the ranks, which has no torch."""

import json
from pathlib import Path
from typing import Any

import pytest

from glmforge.config import RunConfig, config_from_mapping
from glmforge.errors import ConfigError
from glmforge.plan.early import check_map_early


def config(directory: Path, deepspeed: Any, *overrides: str) -> RunConfig:
    values = {
        "model": {"model_name_or_path": str(directory)},
        "data": {"train": "train.jsonl"},
        "training": {"output_dir": "run", "per_device_train_batch_size": 2},
        "deepspeed": deepspeed,
    }
    return config_from_mapping(values, overrides)


def write_model(directory: Path, **keys: Any) -> Path:
    (directory / "config.json").write_text(json.dumps(keys), encoding="utf-8")
    return directory


FIRST = {"model_type": "chatglm", "inner_hidden_size": 64, "max_sequence_length": 64}


def test_the_equation_is_checked_for_the_processes_asked_for(tmp_path: Path) -> None:
    """A guide's situation: 2 GPUs, micro-batch 2: 32 needs accumulation 8."""
    accumulated = "training.gradient_accumulation_steps=8"
    check_map_early(config(tmp_path, {"train_batch_size": 32}, accumulated), world_size=2)
    with pytest.raises(ConfigError, match="= 4"):
        check_map_early(
            config(tmp_path, {"train_batch_size": 32}, "training.gradient_accumulation_steps=1"),
            world_size=2,
        )


def test_automatic_accumulation_asks_the_family(tmp_path: Path) -> None:
    """ChatGLM-6B does not pack, so that 8 rows are accumulated; an unknown model is passed over."""
    write_model(tmp_path, **FIRST, num_layers=2)
    with pytest.raises(ConfigError, match="x 8 gradient_accumulation_steps"):
        check_map_early(config(tmp_path, {"train_batch_size": 3}), world_size=1)
    check_map_early(config(tmp_path, {"train_batch_size": 4}), world_size=1)  # derived: 2
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    check_map_early(config(tmp_path, {"train_batch_size": 3}), world_size=1)


def test_the_number_of_ranks_may_be_open(tmp_path: Path) -> None:
    """Several machines: each says its own number."""
    check_map_early(
        config(tmp_path, {"train_batch_size": 7}, "training.gradient_accumulation_steps=1"),
        world_size=None,
    )


def test_precision_is_compared_where_it_is_known(tmp_path: Path) -> None:
    """fp16 asked for by the map; the run config says bf16."""
    asked = {"fp16": {"enabled": True}}
    check_map_early(config(tmp_path, asked), world_size=1)
    run = config(tmp_path, asked, "training.precision=bf16")
    with pytest.raises(ConfigError, match="fp16 is enabled, but this run computes in bf16"):
        check_map_early(run, world_size=1, precision="bf16")


def test_no_map_is_nothing_to_check(tmp_path: Path) -> None:
    """The usual case."""
    check_map_early(config(tmp_path, None), world_size=1)
