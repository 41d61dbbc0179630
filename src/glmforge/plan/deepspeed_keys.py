"""What is wrong with the keys and values of a user's DeepSpeed map, at every level.

Owns the checks that need no run config: unknown and old keys, wrong kinds of value (by the table
of ``deepspeed_types.py``), options that DeepSpeed or this program ignores, and pairs that
DeepSpeed refuses with an assertion. ``deepspeed_config.py`` merges what passes.
"""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from glmforge.plan.deepspeed_types import TOP, Kind, Table

DEFAULT_STAGE = 2
_STAGE_3 = """stage3_prefetch_bucket_size stage3_param_persistence_threshold
    stage3_model_persistence_threshold stage3_max_live_parameters stage3_max_reuse_distance
    stage3_gather_16bit_weights_on_model_save stage3_module_granularity_threshold
    stage3_use_all_reduce_for_fetch_params stage3_allgather_sequential sub_group_size
    zero_hpz_partition_size zero_quantized_weights zero_quantized_nontrainable_weights
    zero_quantized_gradients""".split()
_STAGE_3_OFFLOAD = ("ratio", "super_offload", "cpuadam_cores_perc")
_MASTERS = (
    "is not used here: masters and moments are fp32 (or 8 bits: training.optim=adamw_bnb_8bit); "
    "remove it"
)
_PRECISION = "is not used here: training.precision decides; remove it"
_ELSEWHERE = {
    "device_map": "spreads one model over all cards of a process, and each of several processes "
    "would do so: remove it; each process takes its own card here",
    "amp": "was apex's mixed precision and is gone from DeepSpeed: write training.precision",
    "elasticity": "is gone from DeepSpeed: a run is resumed on other cards with --resume",
    "tensorboard": "is not needed: the run directory has a tensorboard folder",
    "zero_stage": "is no key of DeepSpeed: write zero_optimization: {stage: 2}",
    "activation_checkpointing": "does nothing here, for its own layers only would read it: remove "
    "it and write training.gradient_checkpointing",
    "zero_optimization.cpu_offload": "is an old spelling: write offload_optimizer: {device: cpu}",
    "zero_optimization.cpu_offload_param": "is an old spelling: write offload_param: {device: cpu}",
    "zero_optimization.cpu_offload_use_pin_memory": "is an old spelling: write pin_memory: true "
    "inside offload_optimizer",
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": "is an old spelling: it is "
    "called stage3_gather_16bit_weights_on_model_save now",
    "bf16.bf16_master_weights_and_grads": _MASTERS,
    "bf16.bf16_optimizer_states": _MASTERS,
    "fp16.fp16_master_weights_and_grads": _MASTERS,
    "data_types.param_dtype": _PRECISION,
    "data_types.buffer_dtype": _PRECISION,
}


def map_problems(user: Mapping[str, Any]) -> list[str]:
    """List what is wrong with a DeepSpeed map, whatever the run."""
    problems = list(_table_problems("", user, TOP))
    zero = user.get("zero_optimization", {})
    if not isinstance(zero, Mapping):
        return problems
    where = "deepspeed.zero_optimization"
    stage = zero.get("stage", DEFAULT_STAGE)
    if not is_stage(stage):
        return [*problems, f"{where}.stage is {stage!r}: 0, 1, 2 or 3 is needed"]
    stage = DEFAULT_STAGE if stage == "auto" else stage
    problems += _ignored(where, zero, stage)
    for name in ("offload_optimizer", "offload_param"):
        problems += _offload_problems(f"{where}.{name}", zero.get(name), name, stage)
    return problems + list(_scaling_problems(user, zero, stage))


def sound_part(values: Any, table: Kind | Table) -> dict[str, Any]:
    """Return the keys of a map whose values can be, at every level; {} of what is no map."""
    found: dict[str, Any] = {}
    if isinstance(table, Kind) or not isinstance(values, Mapping):
        return found
    for key, value in values.items():
        wanted = table.get(key)
        if wanted is None or (key == "stage" and not is_stage(value)):
            continue
        if isinstance(value, Mapping) and not isinstance(wanted, Kind):
            found[key] = sound_part(value, wanted)
        elif not list(_value_problems(str(key), value, wanted)):
            found[key] = value
    return found


def is_stage(value: object) -> bool:
    """Whether a value names a ZeRO stage ("auto": the usual one)."""
    return value == "auto" or (type(value) is int and value in (0, 1, 2, 3))


def _table_problems(inside: str, values: Mapping[str, Any], table: Table) -> Iterator[str]:
    """Judge each key and value of a map; `inside` is the dotted name of the map, or nothing."""
    for key, value in values.items():
        short = f"{inside}.{key}" if inside else str(key)
        name = f"deepspeed.{short}"
        if short in _ELSEWHERE:
            yield f"{name} {_ELSEWHERE[short]}"
        elif key not in table:
            near = difflib.get_close_matches(str(key), table, n=1)
            ours = f"deepspeed.{inside}" if inside else "DeepSpeed's config"
            hint = f"did you mean {near[0]}?" if near else "DeepSpeed would ignore it: remove it"
            yield f"{name} is not a key of {ours}: {hint}"
        elif value != "auto":
            yield from _value_problems(short, value, table[key])


def _value_problems(short: str, value: Any, wanted: Kind | Table) -> Iterator[str]:
    if isinstance(wanted, Kind):
        if not wanted.accepts(value):
            kind = f" ({type(value).__name__})" if isinstance(value, str) else ""
            yield f"deepspeed.{short} is {value!r}{kind}: {wanted.words}"
    elif isinstance(value, Mapping):
        yield from _table_problems(short, value, wanted)
    elif not (value is None and "device" in wanted):  # offload_...: null is none
        first = "device: cpu" if "device" in wanted else "enabled: true"
        first = "stage: 2" if "stage" in wanted else first
        yield f"deepspeed.{short} is {value!r}: a map is needed, such as {first}"


def idle_at(zero: Mapping[str, Any], stage: int) -> list[str]:
    """Return the dotted keys of a ``zero_optimization`` map that are refused at a stage below 3."""
    if stage == 3:
        return []
    section = zero.get("offload_optimizer")
    inner = section if isinstance(section, Mapping) else {}
    return [
        *(key for key in zero if key in _STAGE_3),
        *(f"offload_optimizer.{key}" for key in _STAGE_3_OFFLOAD if key in inner),
    ]


def _ignored(where: str, zero: Mapping[str, Any], stage: int) -> Iterator[str]:
    """Name what DeepSpeed takes at this stage and never reads."""
    if stage == 3:
        return
    for key in zero:
        if key in _STAGE_3:
            yield (
                f"{where}.{key} does nothing at stage {stage}: it is for stage 3; remove it or "
                "change the stage"
            )


def _offload_problems(where: str, value: Any, name: str, stage: int) -> Iterator[str]:
    if not isinstance(value, Mapping):
        return
    device = value.get("device", "none")
    path = value.get("nvme_path", "auto")
    needed = (3,) if name == "offload_param" else (1, 2, 3)
    if device == "nvme" and path == "auto":
        yield f"{where}.device is nvme: nvme_path (a directory on that disk) is needed too"
    if device != "nvme" and path != "auto":
        yield f"{where}.nvme_path does nothing while device is {device}"
    if device not in ("none", "auto") and stage not in needed:
        yield (
            f"{where} does nothing at stage {stage}: it needs stage "
            f"{' or '.join(map(str, needed))}; remove it or change the stage"
        )
        return
    for key in _STAGE_3_OFFLOAD:
        if key in value and stage != 3:
            yield f"{where}.{key} does nothing at stage {stage}: it is for stage 3; remove it"


def _scaling_problems(
    user: Mapping[str, Any], zero: Mapping[str, Any], stage: int
) -> Iterator[str]:
    """Name what ZeRO refuses while gradients are scattered as they are reduced."""
    if stage < 2 or zero.get("reduce_scatter", True) is False:
        return
    factor = user.get("gradient_predivide_factor", 1)
    if factor != 1 and not isinstance(factor, str):  # a text is a problem already
        yield (
            f"deepspeed.gradient_predivide_factor is {factor!r}, which ZeRO-{stage} refuses while "
            "it scatters gradients: remove it, or write zero_optimization.reduce_scatter: false"
        )
    if user.get("prescale_gradients") is True:
        yield (
            f"deepspeed.prescale_gradients is true, which ZeRO-{stage} refuses while it scatters "
            "gradients: remove it, or write zero_optimization.reduce_scatter: false"
        )
