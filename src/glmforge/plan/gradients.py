"""Gradients of one rank: what exists after a backward pass, before one, and during an update.

Derived from DeepSpeed 0.19.8's code, as ``states.py``. ``data_types.grad_accum_dtype`` is what
gradients are added up in: g bytes an element, where weights have e. Pure arithmetic.
"""

from glmforge.plan.shape import ModelShape
from glmforge.plan.weights import (
    largest_trained,
    sub_groups,
    sub_groups_on_card,
    trained_parameters,
)
from glmforge.plan.workload import Sized, Workload


def are_whole_in_fp32(work: Workload) -> bool:
    """Whether DeepSpeed takes its BF16_Optimizer, which adds up whole fp32 gradients.

    engine.py, `_do_optimizer_sanity_check`: bf16 weights, fp32 sums, stage 1, nothing offloaded.
    """
    on_card = not work.offload_optimizer
    return work.zero_stage == 1 and work.precision == "bf16" and work.sums_are_wide and on_card


def after_backward(shape: ModelShape, work: Workload) -> tuple[Sized, int]:
    """Return the gradients after a backward pass, and the bytes that exist before it."""
    trained, share = _counts(shape, work)
    e, g, stage = work.element, work.gradient_element, work.zero_stage
    accumulates = work.accumulation > 1
    if stage == 3:
        if work.offload_optimizer:
            size = 4 * sub_groups_on_card(shape, work)
            rest = "; 4 bytes of each sub-group on the card" if size else ""
            return Sized(bytes=size, formula=f"0 (on the host){rest}"), size
        name = "e" if g == e else "g"
        flat = Sized(bytes=g * share, formula=f"{name} Pt / N (a flat buffer, always there)")
        return flat, flat.bytes
    if stage == 2 and work.sums_are_wide:
        # stage_1_and_2.py, `_use_compact_grad_partition_buffer`: on the card, offloaded or not.
        size = g * share
        return Sized(bytes=size, formula="g Pt / N (fp32 sums)"), size if accumulates else 0
    if stage == 2 and work.offload_optimizer:
        return Sized(bytes=0, formula="0 (sent to the host as they come)"), 0
    if stage == 2:
        return Sized(bytes=e * share, formula="e Pt / N"), e * share if accumulates else 0
    if are_whole_in_fp32(work):
        # bf16_optimizer.py: a flat fp32 buffer of all, and the 16-bit ones set to zero, not freed.
        size = (e + g) * trained
        return Sized(bytes=size, formula="(e + g) Pt (fp32 sums of all, never freed)"), size
    if stage == 1 and work.sums_are_wide:
        return Sized(bytes=g * trained, formula="g Pt"), g * trained if accumulates else 0
    return Sized(bytes=e * trained, formula="e Pt"), e * trained if accumulates else 0


def own(shape: ModelShape, work: Workload) -> Sized:
    """Return the gradients that the update starts from."""
    trained, share = _counts(shape, work)
    if work.zero_stage == 0:
        return Sized(bytes=work.element * trained, formula="e Pt")
    if are_whole_in_fp32(work) or work.zero_stage == 3:
        return after_backward(shape, work)[0]
    if work.sums_are_wide and (work.zero_stage == 2 or not work.offload_optimizer):
        return Sized(bytes=work.gradient_element * share, formula="g Pt / N (fp32 sums)")
    if work.offload_optimizer:
        return Sized(bytes=0, formula="0 (on the host)")
    return Sized(bytes=work.element * share, formula="e Pt / N")


def update(shape: ModelShape, work: Workload) -> Sized:
    """Return what an update needs besides: gradients made flat, then fp32."""
    share = _counts(shape, work)[1]
    if work.offload_optimizer:
        return Sized(bytes=0, formula="0 (the host updates)")
    if work.zero_stage == 0:
        size = 4 * share if work.precision != "fp32" else 0
        return Sized(bytes=size, formula="4 Pt (fp32 gradients)" if size else "0")
    if work.zero_stage < 3 and work.sums_are_wide:
        return Sized(bytes=0, formula="0 (the sums are flat and fp32 already)")
    group, often = share, ""
    size = work.element
    if work.zero_stage == 3:
        group, often = (
            min(share, max(sub_groups(shape, work), default=0)),
            ", sub_group_size at a time",
        )
        size = work.gradient_element
    if size == 4:
        return Sized(bytes=4 * group, formula=f"4 Pt / N (flat gradients){often}")
    return Sized(
        bytes=(size + 4) * group,
        formula=f"(e + 4) Pt / N (gradients flat, then fp32){often}",
    )


def to_host(shape: ModelShape, work: Workload) -> Sized:
    """Return what stages 1 and 2 hold of a gradient while they offload it.

    stage_1_and_2.py: one larger than the bucket is cloned, and its norm is taken in fp64.
    """
    if not work.offload_optimizer or work.zero_stage not in (1, 2):
        return Sized(bytes=0, formula="0")
    return Sized(
        bytes=(8 + work.element) * largest_trained(shape, work),
        formula="(8 + e) x largest trained weight (a copy, and its norm in fp64)",
    )


def _counts(shape: ModelShape, work: Workload) -> tuple[int, int]:
    """Return the trained parameters, and this rank's share of them."""
    trained = trained_parameters(shape, work)
    return trained, trained if work.zero_stage == 0 else -(-trained // work.world_size)
