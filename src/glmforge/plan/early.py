"""What the DeepSpeed map of a run contradicts, found before any process of the run starts.

Owns `check_map_early`, for the process that starts the ranks: it needs neither torch nor
transformers, and takes what it cannot know (cards of other machines, a number of ranks that a
hostfile decides later) as it would be right. The ranks check the same again, with all facts.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glmforge.config import RunConfig
from glmforge.errors import ModelError
from glmforge.models.families import family_of
from glmforge.plan.batch import batch_sizes
from glmforge.plan.deepspeed_config import EngineSettings, read_map, write_config

_SIZES = ("train_batch_size", "gradient_accumulation_steps")


def check_map_early(
    config: RunConfig, *, world_size: int | None, precision: str | None = None
) -> None:
    """Refuse a `deepspeed:` map that cannot be merged with the run config.

    Args:
        config: the run config.
        world_size: ranks of all machines, None where only the machines know.
        precision: what the ranks will compute in, None where it is not known.

    Raises:
        ConfigError: all that is wrong with the map, at once.
    """
    user_map = read_map(config.deepspeed)
    if user_map is None:
        return
    training = config.training
    checked = dict(user_map)
    packed = _is_packed(config)
    accumulation = training.gradient_accumulation_steps
    if (packed is None or world_size is None) and accumulation == "auto":
        checked = {key: value for key, value in checked.items() if key not in _SIZES}
    if world_size is None:
        checked.pop("train_batch_size", None)
    sizes = batch_sizes(
        training.per_device_train_batch_size,
        accumulation,
        world_size or 1,
        packing=bool(packed),
        user_map=checked,
    )
    if precision is None:
        precision = training.precision if training.precision != "auto" else _wanted(user_map)
    settings = EngineSettings(
        sizes=sizes, precision=precision, max_grad_norm=training.max_grad_norm
    )
    write_config(settings, checked)


def _is_packed(config: RunConfig) -> bool | None:
    """Say whether rows are packed; None where config.json does not tell the family."""
    if config.data.packing is False:
        return False
    path = Path(config.model.model_name_or_path) / "config.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return family_of(found).packing if isinstance(found, dict) else None
    except (OSError, ValueError, ModelError):
        return None  # the ranks say what is wrong with it


def _wanted(user_map: Mapping[str, Any]) -> str:
    """Return the precision that the map enables, bf16 where none."""
    section = user_map.get("fp16")
    enabled = isinstance(section, Mapping) and section.get("enabled") is True
    return "fp16" if enabled else "bf16"
