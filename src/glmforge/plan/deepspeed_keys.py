"""The keys of a DeepSpeed map below its top level, and what is wrong with a user's.

Owns the tables (deepspeed 0.19.8: runtime/zero/config.py, zero/offload_config.py and
precision_config.py) and the checks of nested maps: unknown keys, options that the stage ignores,
texts for numbers, values out of range. ``deepspeed_config.py`` merges what passes.
"""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

_ALWAYS = """stage contiguous_gradients reduce_scatter reduce_bucket_size
    use_multi_rank_bucket_allreduce allgather_partitions allgather_bucket_size overlap_comm
    compute_grad_norm load_from_fp32_weights elastic_checkpoint offload_param offload_optimizer
    sub_group_size ignore_unused_parameters round_robin_gradients parameter_alignment
    zero_hpz_partition_size zero_quantized_weights zero_quantized_nontrainable_weights
    zero_quantized_gradients memory_efficient_linear pipeline_loading_checkpoint
    override_module_apply log_trace_cache_warnings enable_sanity_checks leaf_module""".split()
_STAGE_3 = """stage3_prefetch_bucket_size stage3_param_persistence_threshold
    stage3_model_persistence_threshold stage3_max_live_parameters stage3_max_reuse_distance
    stage3_gather_16bit_weights_on_model_save stage3_module_granularity_threshold
    stage3_use_all_reduce_for_fetch_params stage3_allgather_sequential sub_group_size
    zero_hpz_partition_size zero_quantized_weights zero_quantized_nontrainable_weights
    zero_quantized_gradients""".split()
_REMOVED = {
    "cpu_offload": "write offload_optimizer: {device: cpu}",
    "cpu_offload_param": "write offload_param: {device: cpu}",
    "cpu_offload_use_pin_memory": "write pin_memory: true inside offload_optimizer",
    "stage3_gather_fp16_weights_on_model_save": "it is called "
    "stage3_gather_16bit_weights_on_model_save now",
}
_NESTED: dict[str, frozenset[str]] = {
    "zero_optimization": frozenset([*_ALWAYS, *_STAGE_3]),
    "offload_optimizer": frozenset(
        """device nvme_path buffer_count pin_memory pipeline_read pipeline_write fast_init ratio
        super_offload cpuadam_cores_perc""".split()
    ),
    "offload_param": frozenset(
        "device nvme_path buffer_count buffer_size max_in_cpu pin_memory".split()
    ),
    "bf16": frozenset("enabled immediate_grad_update check_grad_overflow".split()),
    "fp16": frozenset(
        """enabled auto_cast loss_scale initial_scale_power loss_scale_window hysteresis
        consecutive_hysteresis min_loss_scale""".split()
    ),
}
_COUNTS = """reduce_bucket_size allgather_bucket_size sub_group_size stage3_prefetch_bucket_size
    stage3_param_persistence_threshold stage3_max_live_parameters stage3_max_reuse_distance
    buffer_count buffer_size max_in_cpu initial_scale_power loss_scale_window hysteresis""".split()
_SWITCHES = """contiguous_gradients reduce_scatter allgather_partitions overlap_comm
    round_robin_gradients pin_memory pipeline_read pipeline_write fast_init auto_cast
    consecutive_hysteresis stage3_gather_16bit_weights_on_model_save""".split()
DEVICES = ("none", "cpu", "nvme")


def nested_problems(user: Mapping[str, Any], stage: int) -> list[str]:
    """List what is wrong inside the maps of a DeepSpeed config.

    Args:
        user: the user's whole map.
        stage: its (checked) ZeRO stage.
    """
    problems: list[str] = []
    zero = user.get("zero_optimization")
    for name in ("bf16", "fp16"):
        if isinstance(user.get(name), Mapping):
            problems += _map_problems(f"deepspeed.{name}", user[name], _NESTED[name])
    if not isinstance(zero, Mapping):
        return problems
    where = "deepspeed.zero_optimization"
    problems += _map_problems(where, zero, _NESTED["zero_optimization"])
    problems += _ignored(where, zero, stage)
    for name in ("offload_optimizer", "offload_param"):
        problems += _offload_problems(f"{where}.{name}", zero.get(name), _NESTED[name])
    return problems


def _map_problems(where: str, values: Mapping[str, Any], known: frozenset[str]) -> Iterator[str]:
    for key, value in values.items():
        if key in _REMOVED:
            yield f"{where}.{key} is an old spelling: {_REMOVED[key]}"
        elif key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "DeepSpeed does not know it: remove it"
            yield f"{where}.{key} is not a key of this map: {hint}"
        elif value != "auto":
            yield from _value_problems(f"{where}.{key}", key, value)


def _value_problems(name: str, key: str, value: Any) -> Iterator[str]:
    if key in _COUNTS:
        if isinstance(value, bool) or not isinstance(value, int | float):
            yield f"{name} is {value!r} ({type(value).__name__}): a number is needed, unquoted"
        elif value < 0 or value != int(value):
            yield f"{name} is {value}: a whole number of 0 or more is needed"
        elif key == "reduce_bucket_size" and value == 0:
            yield f"{name} is 0: at least one element is needed, 2e8 is usual"
    elif key in _SWITCHES and not isinstance(value, bool):
        yield f"{name} is {value!r}: true or false is needed, unquoted"
    elif key == "ratio" and (isinstance(value, bool) or not 0 <= float(value) <= 1):
        yield f"{name} is {value!r}: a number from 0 to 1 is needed"


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


def _offload_problems(where: str, value: Any, known: frozenset[str]) -> Iterator[str]:
    if value is None or value == "auto":
        return
    if not isinstance(value, Mapping):
        yield f"{where} is {value!r}: a map is needed, such as device: cpu"
        return
    yield from _map_problems(where, value, known)
    device = value.get("device", "none")
    if device not in DEVICES:
        yield f"{where}.device is {device!r}: {', '.join(DEVICES)} are possible"
    elif device == "nvme" and not value.get("nvme_path"):
        yield f"{where}.device is nvme: nvme_path (a directory on that disk) is needed too"
    if device != "nvme" and value.get("nvme_path"):
        yield f"{where}.nvme_path does nothing while device is {device}"
