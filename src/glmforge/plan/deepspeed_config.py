"""The DeepSpeed config of a run, written whole: one source of truth, the run config.

A user's own DeepSpeed map (or JSON file) is merged in: what it leaves to "auto" is filled, what
contradicts the run config, what DeepSpeed would ignore, and unknown keys are reported together.
Plain values in, plain dict out; DeepSpeed is not imported.
"""

import copy
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glmforge.errors import ConfigError
from glmforge.plan.batch import BatchSizes, check_total
from glmforge.plan.deepspeed_keys import nested_problems

DEFAULT_STAGE = 2
BUCKET_SHARE = 0.05
"""A bucket over this share of a card is named: it brings no speed and takes memory."""

# Top-level keys of deepspeed.ai/docs/config-json that a user's map may set. DeepSpeed itself
# ignores any other in silence.
_PASSED_ON = frozenset(
    """activation_checkpointing aio checkpoint comms_logger communication_data_type
    data_types disable_allgather dump_state flops_profiler gradient_predivide_factor
    memory_breakdown prescale_gradients
    seq_parallel_communication_data_type sparse_gradients steps_per_print
    wall_clock_breakdown zero_allow_untested_optimizer zero_force_ds_cpu_optimizer
    """.split()
)
_OURS = frozenset(
    """train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps
    gradient_clipping bf16 fp16 zero_optimization""".split()
)
_OPTIMIZER_KEYS = ("optimizer", "scheduler")
_ELSEWHERE = {
    "device_map": "spreads one model over all cards of a process, and each of several processes "
    "would do so: remove it; each process takes its own card here",
    "amp": "was apex's mixed precision and is gone from DeepSpeed: write training.precision",
    "elasticity": "is gone from DeepSpeed: a run is resumed on other cards with --resume",
    "tensorboard": "is not needed: the run directory has a tensorboard folder",
    "zero_stage": "is no key of DeepSpeed: write zero_optimization: {stage: 2}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What the run config decides about the engine.

    ``micro_is_written``: the run config names the rows of a forward pass, it is no default.
    """

    sizes: BatchSizes
    precision: str
    max_grad_norm: float
    micro_is_written: bool = True


def zero_stage(user_map: Mapping[str, Any] | None) -> int:
    """Return the ZeRO stage that a (checked) user map asks for; 2 where it does not say."""
    zero = (user_map or {}).get("zero_optimization", {})
    return int(zero.get("stage", DEFAULT_STAGE)) if isinstance(zero, Mapping) else DEFAULT_STAGE


def write_config(settings: EngineSettings, user_map: Mapping[str, Any] | None) -> dict[str, Any]:
    """Merge the run's own settings with the user's map into one config without "auto".

    Args:
        settings: batch sizes, precision and clipping of the run config.
        user_map: the `deepspeed:` map of the run config, or None.

    Raises:
        ConfigError: all contradictions, unknown or ignored keys and wrong types at once.
    """
    user = copy.deepcopy(dict(user_map or {}))
    problems = [*_unknown(user), *_conflicts(user, settings), *_zero_problems(user)]
    if problems:
        raise ConfigError(problems)
    config: dict[str, Any] = {
        "train_batch_size": settings.sizes.global_batch,
        "train_micro_batch_size_per_gpu": settings.sizes.micro_batch,
        "gradient_accumulation_steps": settings.sizes.accumulation,
        "gradient_clipping": settings.max_grad_norm,
        "bf16": {"enabled": settings.precision == "bf16"},
        "fp16": _fp16(settings.precision, user.get("fp16")),
        "zero_optimization": _zero(user.get("zero_optimization")),
        "zero_allow_untested_optimizer": True,
        "steps_per_print": None,
        "wall_clock_breakdown": False,
    }
    config.update({key: value for key, value in user.items() if key in _PASSED_ON})
    return config


def bucket_warnings(config: Mapping[str, Any], card_gib: float) -> list[str]:
    """Say which communication buckets of a written config are large for a card.

    Args:
        config: what `write_config` returned.
        card_gib: memory of one card, in GiB.
    """
    zero = config["zero_optimization"]
    size = 4 if not (config["bf16"]["enabled"] or config["fp16"]["enabled"]) else 2
    keys = ["reduce_bucket_size"] if zero["stage"] > 0 else []
    keys += ["stage3_prefetch_bucket_size"] if zero["stage"] == 3 else ["allgather_bucket_size"]
    said = []
    for key in keys:
        gib = zero[key] * size / 2**30
        if gib > BUCKET_SHARE * card_gib:
            said.append(
                f"deepspeed.zero_optimization.{key} is {zero[key]:.0e} elements, a buffer of "
                f"{gib:.1f} GiB on a card of {card_gib:g} GiB: 2e8 (or auto) is enough"
            )
    return said


def _is_automatic(block: Any) -> bool:
    """Whether a block made for the Trainer leaves every value to the program ("auto")."""
    if not isinstance(block, Mapping) or not isinstance(block.get("params", {}), Mapping):
        return False
    return all(value == "auto" for value in block.get("params", {}).values())


def _unknown(user: Mapping[str, Any]) -> list[str]:
    known = _PASSED_ON | _OURS | set(_OPTIMIZER_KEYS)
    problems = []
    for key in user:
        if key in known:
            continue
        if key in _ELSEWHERE:
            problems.append(f"deepspeed.{key} {_ELSEWHERE[key]}")
            continue
        near = difflib.get_close_matches(key, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "DeepSpeed would ignore it: remove it"
        problems.append(f"deepspeed.{key} is not a key of DeepSpeed's config: {hint}")
    return problems


def _conflicts(user: Mapping[str, Any], settings: EngineSettings) -> list[str]:
    sizes = settings.sizes
    problems = _rows_problems(user, settings)
    expected = {
        "train_micro_batch_size_per_gpu": (
            sizes.micro_batch,
            "training.per_device_train_batch_size",
        ),
        "gradient_accumulation_steps": (sizes.accumulation, "training.gradient_accumulation_steps"),
        "gradient_clipping": (settings.max_grad_norm, "training.max_grad_norm"),
    }
    for key in ("train_batch_size", *expected):
        value = user.get(key, "auto")
        if value == "auto":
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            problems.append(
                f"deepspeed.{key} is {value!r} ({type(value).__name__}): a number is needed, "
                f"without quotes; here {sizes.sentence()}"
            )
        elif key != "gradient_clipping" and (value <= 0 or value != int(value)):
            problems.append(
                f"deepspeed.{key} is {value}: a whole number above 0 is needed; here "
                f"{sizes.sentence()}"
            )
        elif key == "train_batch_size":
            wrong = check_total(int(value), sizes)
            problems += [f"deepspeed.{wrong}"] if wrong else []
        elif value != expected[key][0]:
            ours, name = expected[key]
            equation = "" if key == "gradient_clipping" else f" ({sizes.sentence()})"
            problems.append(
                f"deepspeed.{key} is {value}, but {name} is {ours}{equation}: set it in one "
                f"place (leave it out of deepspeed, or write {name}={value})"
            )
    for key in _OPTIMIZER_KEYS:
        if key in user and not _is_automatic(user[key]):
            problems.append(
                f"deepspeed.{key} would be a second {key}: this program builds it from the "
                "training section (learning_rate, weight_decay, lr_scheduler_type, ...); remove it"
            )
    return problems + _precision_conflicts(user, settings.precision)


def _rows_problems(user: Mapping[str, Any], settings: EngineSettings) -> list[str]:
    """Refuse an accumulation in the map while nobody says how many rows it accumulates."""
    value = user.get("gradient_accumulation_steps", "auto")
    named = "train_batch_size" in user or "train_micro_batch_size_per_gpu" in user
    if settings.micro_is_written or named or value == "auto":
        return []
    return [
        f"deepspeed.gradient_accumulation_steps is {value}, but neither train_batch_size nor "
        "train_micro_batch_size_per_gpu is given, and training.per_device_train_batch_size is not "
        f"written (with its default {settings.sizes.sentence()}): write one of the three"
    ]


def _precision_conflicts(user: Mapping[str, Any], precision: str) -> list[str]:
    problems, enabled = [], []
    for key in ("bf16", "fp16"):
        section = user.get(key)
        if section is None:
            continue
        if not isinstance(section, Mapping):
            problems.append(
                f"deepspeed.{key} is {section!r}: a map is needed, such as enabled: true"
            )
            continue
        flag = section.get("enabled", "auto")
        if flag not in (True, False, "auto"):
            problems.append(f"deepspeed.{key}.enabled is {flag!r}: true, false or auto is needed")
        elif flag is True:
            enabled.append(key)
    if len(enabled) == 2:
        problems.append("deepspeed.bf16 and deepspeed.fp16 are both enabled: choose one")
    elif enabled and enabled[0] != precision:
        problems.append(
            f"deepspeed.{enabled[0]} is enabled, but this run computes in {precision}: write "
            f"training.precision={enabled[0]}, or remove deepspeed.{enabled[0]}"
        )
    return problems


def _zero_problems(user: Mapping[str, Any]) -> list[str]:
    zero = user.get("zero_optimization", {})
    if not isinstance(zero, Mapping):
        return [f"deepspeed.zero_optimization is {zero!r}: a map is needed, such as stage: 2"]
    stage = zero.get("stage", DEFAULT_STAGE)
    if isinstance(stage, bool) or stage not in (0, 1, 2, 3):
        return [f"deepspeed.zero_optimization.stage is {stage!r}: 0, 1, 2 or 3 is needed"]
    problems = []
    for key in ("offload_param", "offload_optimizer"):
        section = zero.get(key)
        device = section.get("device", "none") if isinstance(section, Mapping) else "none"
        needed = (3,) if key == "offload_param" else (1, 2, 3)
        if device != "none" and stage not in needed:
            problems.append(
                f"deepspeed.zero_optimization.{key} does nothing at stage {stage}: it needs stage "
                f"{' or '.join(map(str, needed))}; remove it or change the stage"
            )
    return problems + nested_problems(user, int(stage))


def _zero(user_zero: Mapping[str, Any] | None) -> dict[str, Any]:
    zero: dict[str, Any] = {
        "stage": DEFAULT_STAGE,
        "overlap_comm": False,
        "contiguous_gradients": True,
        "reduce_bucket_size": 200_000_000,
        "allgather_bucket_size": 200_000_000,
    }
    zero.update({k: v for k, v in (user_zero or {}).items() if v != "auto"})
    if zero["stage"] == 3:
        zero.setdefault("stage3_prefetch_bucket_size", 50_000_000)
        zero.setdefault("stage3_param_persistence_threshold", 100_000)
        zero.setdefault("stage3_max_live_parameters", 1_000_000_000)
        zero.setdefault("stage3_max_reuse_distance", 1_000_000_000)
    for key, value in zero.items():
        if key.endswith(("_size", "_parameters", "_distance", "_threshold")):
            zero[key] = int(value)  # YAML reads 2e8 as a float
    return zero


def _fp16(precision: str, user_fp16: Mapping[str, Any] | None) -> dict[str, Any]:
    """fp16 with a dynamic loss scale starting at 2^16, as DeepSpeed's documentation has it."""
    if precision != "fp16":
        return {"enabled": False}
    section: dict[str, Any] = {
        "enabled": True,
        "loss_scale": 0,
        "initial_scale_power": 16,
        "loss_scale_window": 1000,
        "hysteresis": 2,
        "min_loss_scale": 1,
    }
    section.update({k: v for k, v in (user_fp16 or {}).items() if v != "auto" and k != "enabled"})
    return section
