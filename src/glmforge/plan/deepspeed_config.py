"""The DeepSpeed config of a run, written whole: one source of truth, the run config.

A user's own DeepSpeed map (or JSON file) is merged in: what it leaves to "auto" is filled, what
contradicts the run config, what DeepSpeed would ignore, and unknown keys are reported together.
Plain values in, plain dict out; DeepSpeed is not imported.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glmforge.errors import ConfigError
from glmforge.plan.batch import BatchSizes, check_total
from glmforge.plan.deepspeed_keys import DEFAULT_STAGE, is_stage, map_problems, sound_part
from glmforge.plan.deepspeed_types import TOP

BUCKET_SHARE = 0.05
"""A bucket over this share of a card is named: it brings no speed and takes memory."""

_PREFETCH = "stage3_prefetch_bucket_size"
_BUCKETS = {
    "reduce_bucket_size": 200_000_000,
    "allgather_bucket_size": 200_000_000,
    _PREFETCH: 50_000_000,
}
"""Elements where the map does not say."""

_OURS = frozenset(
    """train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps
    gradient_clipping bf16 fp16 zero_optimization optimizer scheduler""".split()
)
_OPTIMIZERS = ("adam", "adamw")
_SCHEDULERS = ("warmuplr", "warmupdecaylr", "warmupcosinelr")


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
    stage = zero.get("stage", "auto") if isinstance(zero, Mapping) else "auto"
    return int(stage) if is_stage(stage) and stage != "auto" else DEFAULT_STAGE


def write_config(settings: EngineSettings, user_map: Mapping[str, Any] | None) -> dict[str, Any]:
    """Merge the run's own settings with the user's map into one config without "auto".

    Args:
        settings: batch sizes, precision and clipping of the run config.
        user_map: the `deepspeed:` map of the run config, or None.

    Raises:
        ConfigError: all contradictions, unknown or ignored keys and wrong types at once.
    """
    written = copy.deepcopy(dict(user_map or {}))
    problems = [*map_problems(written), *_conflicts(written, settings)]
    if problems:
        raise ConfigError(problems)
    user = _without_auto(written)
    config: dict[str, Any] = {
        "train_batch_size": settings.sizes.global_batch,
        "train_micro_batch_size_per_gpu": settings.sizes.micro_batch,
        "gradient_accumulation_steps": settings.sizes.accumulation,
        "gradient_clipping": settings.max_grad_norm,
        "bf16": {**user.get("bf16", {}), "enabled": settings.precision == "bf16"},
        "fp16": _fp16(settings.precision, user.get("fp16")),
        "zero_optimization": _zero(user.get("zero_optimization")),
        "zero_allow_untested_optimizer": True,
        "steps_per_print": None,
        "wall_clock_breakdown": False,
    }
    config.update({key: value for key, value in user.items() if key not in _OURS})
    return config


def write_sound_part(
    settings: EngineSettings, user_map: Mapping[str, Any] | None
) -> tuple[dict[str, Any], str]:
    """Write a config for the plan of a faulty map: with its ZeRO settings that can be.

    Returns:
        the config, and which map the account is of, in words.
    """
    zero = sound_part((user_map or {}).get("zero_optimization", {}), TOP["zero_optimization"])
    if zero:
        try:
            config = write_config(settings, {"zero_optimization": zero})
        except ConfigError:  # its parts contradict each other: all of that is reported already
            stage = zero_stage({"zero_optimization": zero})
            config = write_config(settings, {"zero_optimization": {"stage": stage}})
    else:
        config = write_config(settings, None)
    return config, (
        f"the account is of ZeRO-{config['zero_optimization']['stage']} with what is right in the "
        "deepspeed map: correct the map, then plan again"
    )


def _without_auto(values: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what a map leaves to the program, at every level."""
    return {
        key: _without_auto(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if value != "auto"
    }


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
        # A default is nobody's mistake, and less than that needs no advice.
        if zero[key] > _BUCKETS[key] and gib > BUCKET_SHARE * card_gib:
            said.append(
                f"deepspeed.zero_optimization.{key} is {_written(zero[key])} elements, a buffer of "
                f"{gib:.1f} GiB on a card of {card_gib:g} GiB: {_written(_BUCKETS[key])} "
                "(or auto) is enough"
            )
    return said


def _written(elements: float) -> str:
    return f"{elements:.0e}".replace("e+0", "e")


def is_automatic(key: str, block: Any) -> bool:
    """Whether a block made for the Trainer leaves every value to the program ("auto").

    Without values it is a user's own: DeepSpeed would build it with its own defaults.
    """
    if not isinstance(block, Mapping) or not isinstance(block.get("params"), Mapping):
        return False
    kind = str(block.get("type", "auto")).lower()
    known = (*(_OPTIMIZERS if key == "optimizer" else _SCHEDULERS), "auto")
    values = block["params"].values()
    written = any(value != "auto" for value in values)
    return kind in known and set(block) <= {"type", "params"} and bool(values) and not written


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
            here = "" if key == "gradient_clipping" else f"; here {sizes.sentence()}"
            problems.append(
                f"deepspeed.{key} is {value!r} ({type(value).__name__}): a number is needed, "
                f"without quotes{here}"
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
    for key in ("optimizer", "scheduler"):
        if key in user and user[key] != "auto" and not is_automatic(key, user[key]):
            problems.append(
                f"deepspeed.{key} would be a second {key}: this program builds it from the "
                "training section (learning_rate, weight_decay, lr_scheduler_type, ...); remove it"
            )
    problems += _precision_conflicts(user, settings.precision)
    return problems + _assertions(user, settings)


def _assertions(user: Mapping[str, Any], settings: EngineSettings) -> list[str]:
    """Name what DeepSpeed would refuse, in words of its own, after the model is loaded."""
    problems, stage = [], zero_stage(user)
    types, zero = (user.get(key) or {} for key in ("data_types", "zero_optimization"))
    sums = types.get("grad_accum_dtype", "auto") if isinstance(types, Mapping) else "auto"
    if stage == 0 and sums not in ("auto", settings.precision):
        problems.append(
            f"deepspeed.data_types.grad_accum_dtype is {sums}, but the run computes in "
            f"{settings.precision}, which DeepSpeed refuses without ZeRO: remove it, or write "
            "zero_optimization: {stage: 1} or more"
        )
    cards = zero.get("zero_hpz_partition_size", 1) if isinstance(zero, Mapping) else 1
    ranks = settings.sizes.world_size
    if stage == 3 and isinstance(cards, int) and cards > 1 and ranks % min(cards, ranks):
        problems.append(
            f"deepspeed.zero_optimization.zero_hpz_partition_size is {cards}, which does not "
            f"divide {ranks} ranks: choose the cards of one machine"
        )
    return problems


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
    flags = {
        key: user[key].get("enabled")
        for key in ("bf16", "fp16")
        if isinstance(user.get(key), Mapping)
    }
    problems = []
    enabled = [key for key, flag in flags.items() if flag is True]
    if len(enabled) == 2:
        problems.append("deepspeed.bf16 and deepspeed.fp16 are both enabled: choose one")
    elif enabled and enabled[0] != precision:
        problems.append(
            f"deepspeed.{enabled[0]} is enabled, but this run computes in {precision}: write "
            f"training.precision={enabled[0]}, or remove deepspeed.{enabled[0]}"
        )
    elif flags.get(precision) is False:
        problems.append(
            f"deepspeed.{precision}.enabled is false, but this run computes in {precision}: write "
            f"training.precision (fp32, or the other of bf16 and fp16), or remove deepspeed."
            f"{precision}"
        )
    return problems


def _zero(user_zero: Mapping[str, Any] | None) -> dict[str, Any]:
    zero: dict[str, Any] = {
        "stage": DEFAULT_STAGE,
        "overlap_comm": False,
        "contiguous_gradients": True,
        "reduce_bucket_size": _BUCKETS["reduce_bucket_size"],
        "allgather_bucket_size": _BUCKETS["allgather_bucket_size"],
    }
    zero.update(user_zero or {})
    if zero["stage"] == 3:
        zero.setdefault(_PREFETCH, _BUCKETS[_PREFETCH])
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
    section.update({k: v for k, v in (user_fp16 or {}).items() if k != "enabled"})
    return section
