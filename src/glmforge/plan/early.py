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
from glmforge.config.from_deepspeed import read_map
from glmforge.errors import ModelError
from glmforge.models.families import family_of
from glmforge.plan.deepspeed_config import write_config
from glmforge.plan.settings import engine_settings, run_sizes


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
    derived = accumulation == "auto" and "gradient_accumulation_steps" not in _written(checked)
    if "train_batch_size" in checked and (world_size is None or (packed is None and derived)):
        checked["train_batch_size"] = "auto"
    sizes = run_sizes(config, world_size or 1, packing=bool(packed), user_map=checked)
    if precision is None:
        precision = training.precision if training.precision != "auto" else _possible(user_map)
    write_config(engine_settings(config, sizes, precision), checked)


def _written(user_map: Mapping[str, Any]) -> set[str]:
    """Return the keys that the map does not leave to the program."""
    return {key for key, value in user_map.items() if value != "auto"}


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


def _possible(user_map: Mapping[str, Any]) -> str:
    """Return a precision that the map does not switch off: the cards' own cannot be known here."""
    for name in ("bf16", "fp16"):
        section = user_map.get(name)
        if not (isinstance(section, Mapping) and section.get("enabled") is False):
            return name
    return "fp32"
