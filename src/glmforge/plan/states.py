"""Weights, gradients and optimizer states of one rank under each ZeRO stage, on card and host.

Derived from DeepSpeed 0.19.8's own code (runtime/zero/stage_1_and_2.py, stage3.py, and
fp16/unfused_optimizer.py for stage 0): what is allocated once, what an update needs besides, and
what offloading moves to the host. Pure arithmetic.

Letters in formulas: P parameters, Pt trained ones, N ranks, e bytes of a weight.
"""

from dataclasses import dataclass

from glmforge.plan import gradients
from glmforge.plan.host import host_bytes
from glmforge.plan.shape import ModelShape
from glmforge.plan.weights import (
    EIGHT_BIT_BYTES,
    largest_trained,
    persistent_elements,
    sub_groups_on_card,
    trained_parameters,
)
from glmforge.plan.workload import Sized, Workload

NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""bitsandbytes' NF4 with double quantisation: 4 bits, an 8-bit scale for 64 weights, and an fp32
scale for 256 of those (Dettmers et al., QLoRA, arXiv 2305.14314, section 3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """States of one rank.

    ``weights`` … ``zero_buffers`` stay for the whole run. ``gradients`` are those that exist after
    a backward pass, ``resting_gradients`` those that exist before the first one of an update,
    ``own_gradients`` this rank's share, made when they are reduced; ``update`` is what the update
    needs besides them; ``to_host`` what a gradient on its way to the host takes; ``live`` are
    gathered weights of stage 3, ``secondary`` its second copy, there from forward to update (hpZ).
    """

    weights: Sized
    masters: Sized
    optimizer: Sized
    gradients: Sized
    resting_gradients: int
    own_gradients: Sized
    to_host: Sized
    backward_buffers: Sized
    zero_buffers: Sized
    update: Sized
    live: Sized
    secondary: Sized
    host: dict[str, Sized]

    @property
    def resting(self) -> int:
        """Bytes on the card that stay for the whole run, gradients left out."""
        held = (self.weights, self.masters, self.optimizer, self.zero_buffers)
        return sum(item.bytes for item in held)


def state_bytes(shape: ModelShape, work: Workload) -> StateBytes:
    """Work out the states of one rank."""
    trained = trained_parameters(shape, work)
    share = trained if work.zero_stage == 0 else -(-trained // work.world_size)
    stays = sub_groups_on_card(shape, work) if work.offload_optimizer else share
    over = "" if work.zero_stage == 0 else " / N"
    over += f" x {stays / share:.2f} (sub-groups on the card)" if 0 < stays < share else ""
    mixed = work.precision != "fp32"
    # In fp32 the weights are their own masters at stage 0; ZeRO keeps a flat copy all the same.
    has_masters = mixed or work.zero_stage > 0
    masters = 4 * stays if has_masters else 0
    moments = EIGHT_BIT_BYTES if work.eight_bit else 8.0
    states = round(moments * stays)
    held, resting = gradients.after_backward(shape, work)
    return StateBytes(
        weights=_weights(shape, work, trained),
        masters=Sized(bytes=masters, formula=f"4 Pt{over}" if masters else "0"),
        optimizer=Sized(
            bytes=states, formula=f"{moments:g} Pt{over} (two moments)" if states else "0"
        ),
        gradients=held,
        resting_gradients=resting,
        own_gradients=gradients.own(shape, work),
        to_host=gradients.to_host(shape, work),
        backward_buffers=_backward_buffers(work),
        zero_buffers=_zero_buffers(shape, work),
        update=gradients.update(shape, work),
        live=_live(shape, work),
        secondary=_secondary(shape, work, trained),
        host=host_bytes(shape, work, share),
    )


def _weights(shape: ModelShape, work: Workload, trained: int) -> Sized:
    e = work.element
    base = shape.parameters
    if work.method == "qlora":
        packed = shape.linear_elements
        size = round(packed * NF4_BYTES) + e * (base - packed)
        formula = f"{NF4_BYTES:.4f} x linear weights of the layers + e x the rest"
    else:
        size, formula = e * base, "eP"
    if work.is_low_rank:
        size += e * trained
        formula += " + e Pt"
    if work.zero_stage == 3:
        whole = e * persistent_elements(shape, work)
        divided = 0 if work.offload_param else -(-(size - whole) // work.world_size)
        formula = "0 (on the host)" if work.offload_param else f"({formula}) / N"
        if whole:
            formula += f", and {whole // e:,} elements whole (stage3_param_persistence_threshold)"
        size = whole + divided
    return Sized(bytes=size, formula=formula)


def _backward_buffers(work: Workload) -> Sized:
    """Return the reduction bucket that stages 1 and 2 take at each backward pass."""
    if gradients.are_whole_in_fp32(work):
        return Sized(bytes=0, formula="0 (all is added up in place)")
    if work.zero_stage == 3 and work.gradient_element != work.element:
        # stage3.py, `__avg_scatter_grads`: this rank's part of a bucket in the sums' format.
        return Sized(
            bytes=work.gradient_element * -(-work.reduce_bucket // work.world_size),
            formula="g x reduce_bucket_size / N",
        )
    if work.zero_stage not in (1, 2):
        return Sized(bytes=0, formula="0")
    copies = 2 if work.overlap_comm else 1
    return Sized(
        bytes=copies * work.element * work.reduce_bucket,
        formula=f"{copies} x e x reduce_bucket_size",
    )


def _zero_buffers(shape: ModelShape, work: Workload) -> Sized:
    e = work.element
    if work.zero_stage == 3:
        return Sized(bytes=e * work.reduce_bucket, formula="e x reduce_bucket_size (always there)")
    if work.zero_stage == 0 or not work.offload_optimizer:
        return Sized(bytes=0, formula="0")
    largest = largest_trained(shape, work)
    return Sized(bytes=e * largest, formula="e x largest trained weight (its gradient, on its way)")


def _live(shape: ModelShape, work: Workload) -> Sized:
    """Return gathered weights: none where one rank holds all, unless they come from the host."""
    if work.zero_stage != 3 or (work.world_size == 1 and not work.offload_param):
        return Sized(bytes=0, formula="0")
    divided = shape.parameters - persistent_elements(shape, work)
    elements = min(divided, max(work.max_live, shape.layer_parameters))
    elements += min(work.prefetch_bucket, divided - elements)
    return Sized(
        bytes=work.element * elements,
        formula="e x (stage3_max_live_parameters + prefetch bucket), at most eP",
    )


def _secondary(shape: ModelShape, work: Workload, trained: int) -> Sized:
    """Return hpZ's second copy of the weights, made as a forward pass lets go of them.

    partition_parameters.py, `_partition_param_sec`; `invalidate_secondary_tensor` after an update.
    """
    if work.zero_stage != 3 or work.secondary == 1 or work.offload_param:
        return Sized(bytes=0, formula="0")
    every = shape.parameters + (trained if work.is_low_rank else 0)
    return Sized(
        bytes=work.element * -(-every // work.secondary),
        formula="e (P + Pt of adapters) / zero_hpz_partition_size",
    )
