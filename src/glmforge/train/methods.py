"""What training methods and optimizers need of the machine and of ZeRO, asked before any weight.

Used by ``prepare`` only. Owns the 4-bit format of QLoRA's base and the refusals that depend on the
device, the installed packages or DeepSpeed's settings; refusals that the config alone decides are
in ``config.rules``.
"""

import importlib.util
from collections.abc import Mapping
from typing import Any

import torch
from transformers import BitsAndBytesConfig

from glmforge.config import RunConfig
from glmforge.config.lengths import idle_steps, misfit_schedule
from glmforge.config.rules import idle_settings
from glmforge.distributed.zero import async_io_problem
from glmforge.errors import ConfigError
from glmforge.train.engine import cpu_adam_problem
from glmforge.train.trackers import tracker_problems


def four_bit(compute_dtype: torch.dtype) -> BitsAndBytesConfig:
    """Return QLoRA's format of the frozen base: NF4 with doubly quantized scales.

    Dettmers et al., arXiv 2305.14314. The language head stays in `compute_dtype`.
    """
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=compute_dtype,
    )


def check_layer_count(wanted: int, existing: int, directory: str) -> None:
    """Refuse to train more layers than there are.

    Raises:
        ConfigError: says how many there are.
    """
    if wanted > existing:
        raise ConfigError(
            f"freeze.num_trainable_layers is {wanted}, but {directory} has {existing} decoder "
            f"layers: write {existing} or less, or method: full to train everything"
        )


def check_lengths(
    config: RunConfig, total_steps: int, steps_per_epoch: int, *, begun: bool = False
) -> None:
    """Refuse what does not fit into the steps of a run, or never acts in them.

    Args:
        config: of the run.
        total_steps: updates of the whole run.
        steps_per_epoch: updates of an epoch.
        begun: the run goes on: only a `warmup_stable_decay` that does not fit stands in its way.

    Raises:
        ConfigError: every such setting, with the number of steps and what to write.
    """

    def get(name: str) -> object:
        section, _, key = name.partition(".")
        value = getattr(config, section)
        return getattr(value, key) if key else value

    problems = []
    if not begun or config.training.lr_scheduler_type == "warmup_stable_decay":
        problems += [text for _, text in misfit_schedule(get, total_steps)]
    if not begun:
        idle = idle_settings(get)
        problems += [
            f"{name} has no effect: {reason}"
            for name, reason in idle_steps(get, total_steps, steps_per_epoch)
            if name not in idle
        ]
    if problems:
        raise ConfigError(problems)


def check_requirements(
    config: RunConfig, device: torch.device, engine_config: Mapping[str, Any]
) -> None:
    """Refuse a method or an optimizer that this machine or this ZeRO stage cannot run.

    Args:
        config: the run's settings.
        device: of this rank.
        engine_config: the whole DeepSpeed config.

    Raises:
        ConfigError: every reason found.
    """
    zero = engine_config["zero_optimization"]
    users = {
        "method": ("qlora", config.method == "qlora", "method=lora"),
        "training.optim": (
            "adamw_bnb_8bit",
            config.training.optim == "adamw_bnb_8bit",
            "training.optim=adamw_torch",
        ),
    }
    problems = tracker_problems(config)
    for setting, (value, is_used, instead) in users.items():
        if is_used and device.type != "cuda":
            problems.append(
                f"{setting} is {value}, but this run is on the {device.type.upper()}, and "
                f"bitsandbytes is run on CUDA GPUs only here: write {instead}, or run on a GPU"
            )
        elif is_used and importlib.util.find_spec("bitsandbytes") is None:
            problems.append(
                f"{setting} is {value}, which needs bitsandbytes, and it is not installed: "
                f"pip install 'glmforge[gpu]', or write {instead}"
            )
    if config.method == "qlora" and zero["stage"] == 3:
        problems.append(
            "method is qlora with deepspeed.zero_optimization.stage 3: ZeRO-3 cuts every weight "
            "into flat parts, and a 4-bit weight is packed bytes whose scales lie beside it and "
            "would not be cut or gathered with it. A 4-bit base is small: write stage 2 (or 1, "
            "0), or method=lora to keep stage 3"
        )
    if config.training.optim == "adamw_bnb_8bit" and offloads(zero, "offload_optimizer"):
        problems.append(
            "training.optim is adamw_bnb_8bit, but deepspeed.zero_optimization.offload_optimizer "
            "lets DeepSpeed's CPU Adam do the updates: remove one of the two"
        )
    if offloads(zero, "offload_optimizer"):
        missing = cpu_adam_problem()
        problems += [missing] if missing else []
    sections = [zero.get(key) or {} for key in ("offload_optimizer", "offload_param")]
    if any(section.get("device") == "nvme" for section in sections):
        missing = async_io_problem()
        problems += [f"{missing}, or write device: cpu"] if missing else []
    if problems:
        raise ConfigError(problems)


def offloads(zero: Mapping[str, Any], key: str) -> bool:
    """Say whether ZeRO's section keeps optimizer states or parameters off the GPU."""
    return (zero.get(key) or {}).get("device", "none") != "none"
