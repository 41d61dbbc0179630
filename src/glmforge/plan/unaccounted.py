"""Settings that change memory and are not in the account: said, never passed over.

Each names which way the real peak goes, so that a plan that fits by little is read with care.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from glmforge.plan.workload import Workload

_QUANTISED = (
    "zero_quantized_weights",
    "zero_quantized_nontrainable_weights",
    "zero_quantized_gradients",
)


def unaccounted(engine: Mapping[str, Any], work: Workload) -> list[str]:
    """Return a sentence for each setting of a run that the account leaves out.

    Args:
        engine: the whole DeepSpeed config of the run.
        work: what the account is of.
    """
    return [f"not in the account: {what}" for what in _found(engine, work)]


def _found(engine: Mapping[str, Any], work: Workload) -> Iterator[str]:
    narrow = work.gradient_element < work.element and work.zero_stage in (1, 2)
    if narrow or (work.sums_are_wide and work.zero_stage == 1 and work.offload_optimizer):
        yield (
            "deepspeed.data_types.grad_accum_dtype: DeepSpeed keeps gradients in both formats for "
            f"a while at stage {work.zero_stage}, which is not worked out here: a card needs more"
        )
    zero = engine["zero_optimization"]
    where = "deepspeed.zero_optimization"
    for key in _QUANTISED:
        if zero.get(key):
            yield f"{where}.{key}: buffers of quantised values come on top"
    optimizer = zero.get("offload_optimizer") or {}
    if work.offload_optimizer and optimizer.get("super_offload"):
        yield f"{where}.offload_optimizer.super_offload: buffers of its own, more than planned"
    for name in ("offload_optimizer", "offload_param"):
        if (zero.get(name) or {}).get("device") == "nvme":
            yield f"{where}.{name}.device nvme: counted as host memory, of which it takes less"
