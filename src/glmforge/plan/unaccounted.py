"""Settings that change memory and are not in the account: said, never passed over.

Each names which way the real peak goes, so that a plan that fits by little is read with care.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from glmforge.config import RunConfig
from glmforge.plan.workload import Workload

_QUANTISED = (
    "zero_quantized_weights",
    "zero_quantized_nontrainable_weights",
    "zero_quantized_gradients",
)


def unaccounted(config: RunConfig, engine: Mapping[str, Any], work: Workload) -> list[str]:
    """Return a sentence for each setting of a run that the account leaves out.

    Args:
        config: the run config.
        engine: the whole DeepSpeed config of the run.
        work: what the account is of.
    """
    return [f"not in the account: {what}" for what in _found(config, engine, work)]


def _found(config: RunConfig, engine: Mapping[str, Any], work: Workload) -> Iterator[str]:
    if work.is_low_rank and config.lora.use_dora:
        yield (
            "lora.use_dora, which forms each adapted weight once more in every forward pass: a "
            "card needs more than planned"
        )
    dtype = (engine.get("data_types") or {}).get("grad_accum_dtype")
    if dtype is not None and dtype != work.precision:
        yield (
            f"deepspeed.data_types.grad_accum_dtype {dtype}: gradients take "
            f"{4 if dtype == 'fp32' else 2} bytes in place of {work.element}"
        )
    zero = engine["zero_optimization"]
    where = "deepspeed.zero_optimization"
    if zero.get("zero_hpz_partition_size", 1) > 1:
        yield (
            f"{where}.zero_hpz_partition_size {zero['zero_hpz_partition_size']}: a second copy of "
            "the weights is divided by that many cards only, more than planned"
        )
    for key in _QUANTISED:
        if zero.get(key):
            yield f"{where}.{key}: buffers of quantised values come on top"
    optimizer = zero.get("offload_optimizer") or {}
    if work.offload_optimizer and optimizer.get("ratio", 1) < 1:
        yield (
            f"{where}.offload_optimizer.ratio {optimizer['ratio']:g}: the rest of the optimizer's "
            "states stays on the card, more than planned there and less on the host"
        )
    if work.offload_optimizer and optimizer.get("super_offload"):
        yield f"{where}.offload_optimizer.super_offload: buffers of its own, more than planned"
    for name in ("offload_optimizer", "offload_param"):
        if (zero.get(name) or {}).get("device") == "nvme":
            yield f"{where}.{name}.device nvme: counted as host memory, of which it takes less"
