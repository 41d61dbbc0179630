"""What the DeepSpeed map says where the run config is silent.

Owns `read_map` and `fill_from_deepspeed`: a setting that the run config does not write takes its
value from the `deepspeed:` map, so that a default never contradicts what somebody wrote. A value
that cannot be right is left alone; `plan.deepspeed_config` reports it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glmforge.config.json_keys import DoubledKey, each_key_once
from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError


def read_map(value: Mapping[str, Any] | str | None) -> Mapping[str, Any] | None:
    """Return the user's DeepSpeed map, read from a JSON file where the config names one.

    Raises:
        ConfigError: the file is missing, is not JSON, holds no object, or a key twice in one map.
    """
    if value is None or isinstance(value, Mapping):
        return value
    path = Path(value)
    try:
        text = path.read_text(encoding="utf-8")
        loaded = json.loads(text, object_pairs_hook=each_key_once)
    except OSError as error:
        raise ConfigError(f"deepspeed: {path} cannot be read ({error.strerror})") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"deepspeed: {path} is not JSON ({error})") from error
    except DoubledKey as error:
        raise ConfigError(f"deepspeed: {path} {error}") from error
    if not isinstance(loaded, dict):
        raise ConfigError(f"deepspeed: {path} holds {type(loaded).__name__}, a map is needed")
    return loaded


def fill_from_deepspeed(config: RunConfig) -> RunConfig:
    """Take micro-batch, clipping and precision from the DeepSpeed map where they are not written.

    A filled setting stays out of ``model_fields_set``, which says what was written. An accumulation
    that is open depends on the number of processes too: `plan.batch` derives it.
    """
    try:
        user = read_map(config.deepspeed)
    except ConfigError:
        return config  # reported with all else that is wrong with the map
    if user is None:
        return config
    training = config.training
    said = {
        "per_device_train_batch_size": _rows(user.get("train_micro_batch_size_per_gpu")),
        "max_grad_norm": _norm(user.get("gradient_clipping")),
    }
    found: dict[str, Any] = {
        name: value
        for name, value in said.items()
        if value is not None and name not in training.model_fields_set
    }
    enabled = [name for name in ("bf16", "fp16") if _is_enabled(user.get(name))]
    if training.precision == "auto" and len(enabled) == 1:
        found["precision"] = enabled[0]
    if not found:
        return config
    filled = training.model_copy(update=found)
    filled.model_fields_set.difference_update(found)
    return config.model_copy(update={"training": filled})


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _rows(value: Any) -> int | None:
    return int(value) if _is_number(value) and value >= 1 and value == int(value) else None


def _norm(value: Any) -> float | None:
    return float(value) if _is_number(value) and 0 <= value < float("inf") else None


def _is_enabled(section: object) -> bool:
    return isinstance(section, Mapping) and section.get("enabled") is True
