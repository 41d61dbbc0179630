"""From a run config and its DeepSpeed map to the batch sizes and the engine's settings.

One place for the plan, the early check and the run itself, so that all three judge a map alike.
"""

from collections.abc import Mapping
from typing import Any

from glmforge.config import RunConfig
from glmforge.config.from_deepspeed import read_map
from glmforge.errors import ConfigError
from glmforge.plan.batch import BatchSizes, batch_sizes
from glmforge.plan.deepspeed_config import EngineSettings, is_automatic

_ROWS = "per_device_train_batch_size"


def run_sizes(
    config: RunConfig, world_size: int, *, packing: bool, user_map: Mapping[str, Any] | None
) -> BatchSizes:
    """Return the batch sizes of a run; what the config leaves open comes from the map.

    Args:
        config: the run config.
        world_size: ranks.
        packing: whether rows are packed.
        user_map: the `deepspeed:` map, as it was written.
    """
    training = config.training
    return batch_sizes(
        training.per_device_train_batch_size,
        training.gradient_accumulation_steps,
        world_size,
        packing=packing,
        user_map=user_map,
        micro_is_open=_ROWS not in training.model_fields_set,
    )


def filled_notes(config: RunConfig) -> list[str]:
    """Name the settings (besides the batch, which has its equation) that the map decided.

    And the Trainer's blocks of "auto" in it, which name a kind that does not count here.
    """
    training = config.training
    fields = type(training).model_fields
    filled = [
        f"training.{name} is {getattr(training, name)}, from deepspeed"
        for name in ("precision", "max_grad_norm")
        if name not in training.model_fields_set
        and getattr(training, name) != fields[name].get_default()
    ]
    return [*filled, *_automatic_blocks(config)]


def _automatic_blocks(config: RunConfig) -> list[str]:
    try:
        user_map = read_map(config.deepspeed) or {}
    except ConfigError:
        return []  # it is a problem of the plan
    training, said = config.training, []
    for key, ours in (
        ("optimizer", f"training.optim={training.optim}"),
        ("scheduler", f"training.lr_scheduler_type={training.lr_scheduler_type}"),
    ):
        block = user_map.get(key)
        if isinstance(block, Mapping) and is_automatic(key, block):
            said.append(
                f"deepspeed.{key} leaves every value to the program: {ours} decides, whatever its "
                "type says"
            )
    return said


def engine_settings(config: RunConfig, sizes: BatchSizes, precision: str) -> EngineSettings:
    """Return what the run config decides about the engine."""
    return EngineSettings(
        sizes=sizes,
        precision=precision,
        max_grad_norm=config.training.max_grad_norm,
        micro_is_written=_ROWS in config.training.model_fields_set,
    )
