"""Which value each key of a DeepSpeed map takes.

Owns the table `TOP` (deepspeed 0.19.8: runtime/config.py, runtime/zero/config.py,
offload_config.py, precision_config.py, comm/config.py, profiling/config.py, swap_tensor): every key
that a user may set, nested ones too, with its kind of value. ``deepspeed_keys.py`` judges by it.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Union


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of value: its test, and what is needed, in words."""

    accepts: Callable[[Any], bool]
    words: str


Table = Mapping[str, Union[Kind, "Table"]]
"""Keys of a map: a kind each, or the table of the map below."""


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _whole(least: int, words: str) -> Kind:
    return Kind(
        accepts=lambda value: _number(value) and value == int(value) and value >= least, words=words
    )


def _one_of(*values: str) -> Kind:
    return Kind(
        accepts=lambda value: isinstance(value, str) and value in values,
        words=f"one of {', '.join(values)} is needed",
    )


SWITCH = Kind(
    accepts=lambda value: isinstance(value, bool), words="true or false is needed, unquoted"
)
COUNT = _whole(0, "a whole number of 0 or more is needed, unquoted")
SIZE = _whole(1, "a whole number above 0 (at least one element) is needed, unquoted")
SHARE = Kind(
    accepts=lambda value: _number(value) and 0 <= value <= 1,
    words="a number from 0 to 1 is needed, unquoted",
)
FACTOR = Kind(
    accepts=lambda value: _number(value) and value > 0,
    words="a number above 0 is needed, unquoted",
)
SCALE = Kind(
    accepts=lambda value: _number(value) and value >= 0,
    words="a number of 0 (dynamic) or more is needed, unquoted",
)
TEXT = Kind(accepts=lambda value: isinstance(value, str) and bool(value), words="a text is needed")
TEXTS = Kind(
    accepts=lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value),
    words="a list of texts is needed",
)
STEPS = Kind(
    accepts=lambda value: value is None or SIZE.accepts(value),
    words="a whole number above 0 is needed, unquoted, or null for never",
)
FORMAT = _one_of("fp32", "fp16", "bf16")
ANY = Kind(accepts=lambda value: True, words="")
"""Judged elsewhere: by the batch equation, or with the run config."""


def _each(names: str, kind: Kind) -> dict[str, Kind]:
    return dict.fromkeys(names.split(), kind)


OFFLOAD_OPTIMIZER: Table = {
    "device": _one_of("none", "cpu", "nvme"),
    "nvme_path": TEXT,
    "buffer_count": SIZE,
    "ratio": SHARE,
    "cpuadam_cores_perc": SHARE,
    **_each("pin_memory pipeline_read pipeline_write fast_init super_offload", SWITCH),
}
OFFLOAD_PARAM: Table = {
    "device": _one_of("none", "cpu", "nvme"),
    "nvme_path": TEXT,
    "pin_memory": SWITCH,
    "max_in_cpu": COUNT,
    **_each("buffer_count buffer_size", SIZE),
}
ZERO: Table = {
    "stage": ANY,
    "offload_optimizer": OFFLOAD_OPTIMIZER,
    "offload_param": OFFLOAD_PARAM,
    "leaf_module": _each("classes names name_suffixes", TEXTS),
    **_each(
        """contiguous_gradients reduce_scatter use_multi_rank_bucket_allreduce allgather_partitions
        overlap_comm compute_grad_norm load_from_fp32_weights elastic_checkpoint
        ignore_unused_parameters round_robin_gradients parameter_alignment zero_quantized_weights
        zero_quantized_nontrainable_weights zero_quantized_gradients memory_efficient_linear
        pipeline_loading_checkpoint override_module_apply log_trace_cache_warnings
        enable_sanity_checks stage3_gather_16bit_weights_on_model_save
        stage3_use_all_reduce_for_fetch_params stage3_allgather_sequential""",
        SWITCH,
    ),
    **_each(
        "reduce_bucket_size allgather_bucket_size sub_group_size zero_hpz_partition_size", SIZE
    ),
    **_each(
        """stage3_prefetch_bucket_size stage3_param_persistence_threshold
        stage3_model_persistence_threshold stage3_max_live_parameters stage3_max_reuse_distance
        stage3_module_granularity_threshold""",
        COUNT,
    ),
}
TOP: Table = {
    **_each(
        """train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps
        gradient_clipping optimizer scheduler""",
        ANY,
    ),
    "bf16": _each("enabled immediate_grad_update check_grad_overflow", SWITCH),
    "fp16": {
        **_each("enabled auto_cast consecutive_hysteresis", SWITCH),
        **_each("loss_scale", SCALE),
        **_each("initial_scale_power", COUNT),
        **_each("loss_scale_window hysteresis min_loss_scale", SIZE),
    },
    "zero_optimization": ZERO,
    "aio": {
        **_each("block_size queue_depth intra_op_parallelism", SIZE),
        **_each("single_submit overlap_events use_gds", SWITCH),
    },
    "checkpoint": {
        "tag_validation": _one_of("Warn", "Ignore", "Fail", "WARN", "IGNORE", "FAIL"),
        "load_universal": SWITCH,
        "use_node_local_storage": SWITCH,
        "parallel_write": {"pipeline_stage": SWITCH},
    },
    "comms_logger": {**_each("enabled prof_all verbose debug", SWITCH), "prof_ops": TEXTS},
    "data_types": {"grad_accum_dtype": FORMAT, "keep_in_fp32_modules": TEXTS},
    "flops_profiler": {
        **_each("enabled detailed", SWITCH),
        **_each("profile_step top_modules", SIZE),
        "recompute_fwd_factor": SCALE,
        "module_depth": _whole(-1, "a whole number of -1 (the deepest) or more is needed"),
        "output_file": TEXT,
    },
    **_each("communication_data_type seq_parallel_communication_data_type", FORMAT),
    "gradient_predivide_factor": FACTOR,
    "steps_per_print": STEPS,
    **_each(
        """disable_allgather dump_state memory_breakdown prescale_gradients sparse_gradients
        wall_clock_breakdown zero_allow_untested_optimizer zero_force_ds_cpu_optimizer""",
        SWITCH,
    ),
}
