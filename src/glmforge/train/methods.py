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
from glmforge.distributed.zero import async_io_problem
from glmforge.errors import ConfigError
from glmforge.train.engine import cpu_adam_problem
from glmforge.train.schedule import decay_count, warmup_count
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


def check_schedule(config: RunConfig, total_steps: int) -> None:
    """Refuse a `warmup_stable_decay` whose warm-up and fall do not fit into the run.

    Raises:
        ConfigError: gives the three numbers.
    """
    training = config.training
    if training.lr_scheduler_type != "warmup_stable_decay":
        return
    warmup = warmup_count(total_steps, training.warmup_steps, training.warmup_ratio)
    decay = decay_count(total_steps, training.decay_steps, training.decay_ratio)
    if warmup + decay > total_steps:
        raise ConfigError(
            f"training.lr_scheduler_type is warmup_stable_decay with {warmup} warm-up step(s) and "
            f"{decay} decay step(s), but the run has {total_steps} step(s): lower "
            "training.warmup_steps (or warmup_ratio) or training.decay_steps (or decay_ratio)"
        )


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
