"""Ranks started with different settings are told on every rank, whoever started them."""

import dataclasses
from typing import Any

import pytest
import torch

from glmforge.config import RunConfig, config_from_mapping
from glmforge.distributed.collectives import Ranks
from glmforge.distributed.env import World
from glmforge.errors import ConfigError
from glmforge.train.same_start import compare_ranks


def run(**training: Any) -> RunConfig:
    return config_from_mapping(
        {
            "model": {"model_name_or_path": "model"},
            "data": {"train": "train.jsonl"},
            "training": {"output_dir": "run"} | training,
        }
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Others(Ranks):
    """Rank 0 of several; what the others say is made by `change` from what this one says."""

    change: Any

    def gather_objects(self, value: Any) -> list[Any]:
        _, mine = value
        return [value, value, ("elsewhere", self.change(mine))]


def ranks(change: Any) -> Others:
    world = World(rank=0, world_size=3, local_world_size=3, launcher="torchrun")
    return Others(world=world, device=torch.device("cpu"), change=change)


def test_ranks_that_are_alike_go_on() -> None:
    """Nothing is raised, and nothing is returned that a caller might have to look at."""
    assert compare_ranks(run(), ranks(lambda mine: dict(mine)), {"--resume": None}) is None


@pytest.mark.parametrize(
    ("name", "value", "ours"),
    [
        ("training.gradient_accumulation_steps", "2", '"auto"'),
        ("training.learning_rate", "0.5", "5e-05"),
        ("--resume", '"auto"', "null"),
        ("the device", "cuda", "cpu"),
        ("the number format of training.precision", "bf16", "fp32"),
    ],
)
def test_a_rank_that_differs_is_named_with_both_values(name: str, value: str, ours: str) -> None:
    others = ranks(lambda mine: mine | {name: value})
    with pytest.raises(ConfigError) as caught:
        compare_ranks(run(), others, {"--resume": None})
    assert f"{name} is {value} on rank 2 (elsewhere) and {ours} on rank 0 (" in str(caught.value)
