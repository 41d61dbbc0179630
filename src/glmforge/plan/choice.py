"""Which settings make a run what a workload is, as command-line overrides.

Owns the difference between a choice and what is written: the keys of the user's DeepSpeed map (or
file) that a choice leaves alone are left alone, those that it makes untrue or idle are changed.
"""

import json
from collections.abc import Mapping
from typing import Any

from glmforge.plan.deepspeed_config import zero_stage
from glmforge.plan.deepspeed_keys import idle_at
from glmforge.plan.request import OFFLOADS, offloads
from glmforge.plan.workload import Workload

_ZERO = "zero_optimization"


def checkpointing_setting(work: Workload) -> bool | int:
    """Return ``training.gradient_checkpointing``: on, off, or every so many layers."""
    every = work.checkpoint_every
    return every if work.checkpointing and every > 1 else work.checkpointing


def batch_settings(
    written: Mapping[str, Any], micro_batch: int, accumulation: int, world_size: int
) -> list[str]:
    """Return the overrides that split a step so, with the batch sizes that the map writes too.

    Args:
        written: the `deepspeed:` map, as it was written.
        micro_batch: rows of one forward pass of a rank.
        accumulation: forward passes of one update.
        world_size: ranks.
    """
    training = [
        f"training.per_device_train_batch_size={micro_batch}",
        f"training.gradient_accumulation_steps={accumulation}",
    ]
    return training + _sizes_of_map(written, micro_batch, accumulation, world_size)


def names_batch(written: Mapping[str, Any]) -> bool:
    """Whether the map writes one of the numbers of the batch equation."""
    return bool(_sizes_of_map(written, 0, 0, 0))


def _sizes_of_map(
    written: Mapping[str, Any], micro_batch: int, accumulation: int, world_size: int
) -> list[str]:
    sizes = {
        "train_batch_size": micro_batch * accumulation * world_size,
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulation,
    }
    return [
        f"deepspeed.{key}={size}"
        for key, size in sizes.items()
        if written.get(key, "auto") not in ("auto", size)
    ]


def settings_of(work: Workload, written: Mapping[str, Any]) -> list[str]:
    """Return the settings that make a run what a workload is, quoted for a shell.

    Args:
        work: the choice.
        written: the `deepspeed:` map, as it was written; keys that the choice leaves alone stay.
    """
    return [
        *batch_settings(written, work.micro_batch, work.accumulation, work.world_size),
        f"training.gradient_checkpointing={json.dumps(checkpointing_setting(work))}",
        *_zero_settings(work, written),
    ]


def _zero_settings(work: Workload, written: Mapping[str, Any]) -> list[str]:
    zero = written.get(_ZERO)
    zero = zero if isinstance(zero, Mapping) else {}
    said = []
    if zero_stage(written) != work.zero_stage:
        said.append(f"deepspeed.{_ZERO}.stage={work.zero_stage}")
    wanted = dict(zip(OFFLOADS, (work.offload_optimizer, work.offload_param), strict=True))
    kept = {key: value for key, value in zero.items() if wanted.get(key, True)}
    for key in OFFLOADS:
        if not wanted[key]:
            said += [f"deepspeed.{_ZERO}.{key}=null"] if offloads(zero, key) else []
        elif not offloads(zero, key):
            said += _offload_settings(f"deepspeed.{_ZERO}.{key}", zero.get(key), work)
    return said + [f"deepspeed.{_ZERO}.{key}=null" for key in idle_at(kept, work.zero_stage)]


def _offload_settings(name: str, section: Any, work: Workload) -> list[str]:
    """Switch an offload on, pinned as the account has it; what the section holds besides stays."""
    if section is not None and not isinstance(section, Mapping):  # "auto", or a fault
        rest = "" if work.pin_memory else ", pin_memory: false"
        return [f"'{name}={{device: cpu{rest}}}'"]
    said = [f"{name}.device=cpu"]
    pins = (section or {}).get("pin_memory", "auto")
    if (pins if pins != "auto" else True) != work.pin_memory:
        said.append(f"{name}.pin_memory={json.dumps(work.pin_memory)}")
    return said
