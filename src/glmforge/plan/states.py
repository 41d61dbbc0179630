"""Weights, gradients and optimizer states of one rank under each ZeRO stage, on card and host.

Derived from DeepSpeed 0.19.8's own code (runtime/zero/stage_1_and_2.py, stage3.py, and
fp16/unfused_optimizer.py for stage 0): what is allocated once, what an update needs besides, and
what offloading moves to the host. Pure arithmetic.

Letters in formulas: P parameters, Pt trained ones, N ranks, e bytes of a weight.
"""

from dataclasses import dataclass

from glmforge.plan.shape import ModelShape
from glmforge.plan.workload import Workload

NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""bitsandbytes' NF4 with double quantisation: 4 bits, an 8-bit scale for 64 weights, and an fp32
scale for 256 of those (Dettmers et al., QLoRA, arXiv 2305.14314, section 3)."""

EIGHT_BIT_BYTES = 2 + 2 * 4 / 256
"""bitsandbytes' 8-bit Adam: a byte a moment, and an fp32 scale for each 256 (Dettmers et al.,
arXiv 2110.02861)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """Bytes and the formula that gave them."""

    bytes: int
    formula: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """States of one rank.

    ``weights`` … ``zero_buffers`` stay for the whole run. ``gradients`` are those that exist after
    a backward pass, ``resting_gradients`` those that exist before the first one of an update,
    ``own_gradients`` this rank's share, made when they are reduced; ``update`` is what the update
    needs besides them; ``to_host`` what a gradient on its way to the host takes; ``live`` are
    gathered weights of stage 3.
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
    host: dict[str, Sized]

    @property
    def resting(self) -> int:
        """Bytes on the card that stay for the whole run, gradients left out."""
        held = (self.weights, self.masters, self.optimizer, self.zero_buffers)
        return sum(item.bytes for item in held)


def trained_parameters(shape: ModelShape, work: Workload) -> int:
    """Return how many parameters are trained."""
    if work.method == "full":
        return shape.parameters
    if work.method == "freeze":
        return work.trained_layers * shape.layer_parameters + shape.hidden
    return shape.lora_parameters(work.lora_targets, work.lora_r)


def state_bytes(shape: ModelShape, work: Workload) -> StateBytes:
    """Work out the states of one rank."""
    trained = trained_parameters(shape, work)
    ranks = work.world_size
    share = trained if work.zero_stage == 0 else -(-trained // ranks)
    on_card = not work.offload_optimizer
    over = "" if work.zero_stage == 0 else " / N"
    mixed = work.precision != "fp32"
    # In fp32 the weights are their own masters at stage 0; ZeRO keeps a flat copy all the same.
    has_masters = mixed or work.zero_stage > 0
    masters = 4 * share if has_masters and on_card else 0
    moments = EIGHT_BIT_BYTES if work.eight_bit else 8.0
    states = round(moments * share) if on_card else 0
    gradients, resting = _gradients(work, trained, share)
    return StateBytes(
        weights=_weights(shape, work, trained),
        masters=Sized(bytes=masters, formula=f"4 Pt{over}" if masters else "0"),
        optimizer=Sized(
            bytes=states, formula=f"{moments:g} Pt{over} (two moments)" if states else "0"
        ),
        gradients=gradients,
        resting_gradients=resting,
        own_gradients=_own_gradients(work, trained, share),
        to_host=_to_host(shape, work, trained),
        backward_buffers=_backward_buffers(work),
        zero_buffers=_zero_buffers(shape, work, trained),
        update=_update(shape, work, share),
        live=_live(shape, work),
        host=_host(shape, work, trained, share, has_masters=has_masters),
    )


def _weights(shape: ModelShape, work: Workload, trained: int) -> Sized:
    e = work.element
    base = shape.parameters
    if work.method == "qlora":
        packed = shape.layers * shape.layer_linear
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


def persistent_elements(shape: ModelShape, work: Workload) -> int:
    """Return the weights that stage 3 leaves whole on every card, in elements.

    partition_parameters.py: those of at most stage3_param_persistence_threshold elements, as long
    as all of them are no more than stage3_model_persistence_threshold. Norms and biases are few.
    """
    if work.zero_stage != 3 or (work.world_size == 1 and not work.offload_param):
        return 0
    found = 0
    sizes = [linear.in_features * linear.out_features for linear in shape.linears]
    for elements in (shape.embedding, *(sizes * shape.layers), shape.head):
        if elements <= work.persistence and found + elements <= work.all_persistent:
            found += elements
    return found


def _gradients(work: Workload, trained: int, share: int) -> tuple[Sized, int]:
    """Return the gradients after a backward pass, and those that exist before it."""
    e, stage = work.element, work.zero_stage
    accumulates = work.accumulation > 1
    if work.offload_optimizer and stage == 2:
        return Sized(bytes=0, formula="0 (sent to the host as they come)"), 0
    if stage == 3:
        if work.offload_optimizer:
            return Sized(bytes=0, formula="0 (on the host)"), 0
        return Sized(bytes=e * share, formula="e Pt / N (a flat buffer, always there)"), e * share
    if stage == 2:
        return Sized(bytes=e * share, formula="e Pt / N"), e * share if accumulates else 0
    return Sized(bytes=e * trained, formula="e Pt"), e * trained if accumulates else 0


def _own_gradients(work: Workload, trained: int, share: int) -> Sized:
    """Return the gradients that the update starts from."""
    if work.offload_optimizer:
        return Sized(bytes=0, formula="0 (on the host)")
    if work.zero_stage == 0:
        return Sized(bytes=work.element * trained, formula="e Pt")
    return Sized(bytes=work.element * share, formula="e Pt / N")


def _to_host(shape: ModelShape, work: Workload, trained: int) -> Sized:
    """Return what stages 1 and 2 hold of a gradient while they offload it.

    stage_1_and_2.py: one larger than the bucket is cloned, and its norm is taken in fp64.
    """
    if not work.offload_optimizer or work.zero_stage not in (1, 2):
        return Sized(bytes=0, formula="0")
    return Sized(
        bytes=(8 + work.element) * _largest_trained(shape, work, trained),
        formula="(8 + e) x largest trained weight (a copy, and its norm in fp64)",
    )


def _largest_trained(shape: ModelShape, work: Workload, trained: int) -> int:
    return min(trained, shape.hidden * 64 if work.is_low_rank else shape.largest)


def _backward_buffers(work: Workload) -> Sized:
    """Return the reduction bucket that stages 1 and 2 take at each backward pass."""
    if work.zero_stage not in (1, 2):
        return Sized(bytes=0, formula="0")
    copies = 2 if work.overlap_comm else 1
    return Sized(
        bytes=copies * work.element * work.reduce_bucket,
        formula=f"{copies} x e x reduce_bucket_size",
    )


def _zero_buffers(shape: ModelShape, work: Workload, trained: int) -> Sized:
    e = work.element
    if work.zero_stage == 3:
        return Sized(bytes=e * work.reduce_bucket, formula="e x reduce_bucket_size (always there)")
    if work.zero_stage == 0 or not work.offload_optimizer:
        return Sized(bytes=0, formula="0")
    largest = _largest_trained(shape, work, trained)
    return Sized(bytes=e * largest, formula="e x largest trained weight (its gradient, on its way)")


def _update(shape: ModelShape, work: Workload, share: int) -> Sized:
    """Return what an update needs besides: gradients made flat, then fp32."""
    if work.offload_optimizer:
        return Sized(bytes=0, formula="0 (the host updates)")
    if work.zero_stage == 0:
        size = 4 * share if work.precision != "fp32" else 0
        return Sized(bytes=size, formula="4 Pt (fp32 gradients)" if size else "0")
    group = _sub_group(shape, work, share) if work.zero_stage == 3 else share
    if work.precision == "fp32":
        return Sized(bytes=4 * group, formula="4 Pt / N (flat gradients)")
    return Sized(
        bytes=(work.element + 4) * group,
        formula="(e + 4) Pt / N (gradients flat, then fp32)"
        + (", sub_group_size at a time" if work.zero_stage == 3 else ""),
    )


def _sub_group(shape: ModelShape, work: Workload, share: int) -> int:
    """Return the elements of stage 3's largest sub-group.

    stage3.py, `_create_fp16_sub_groups`: one is closed when it has reached sub_group_size, so that
    its last weight goes beyond it.
    """
    if work.method != "full":
        return min(share, work.sub_group)
    layer = [linear.in_features * linear.out_features for linear in shape.linears]
    largest = size = 0
    for elements in (shape.embedding, *(layer * shape.layers), shape.head):
        size += -(-elements // work.world_size)
        largest = max(largest, size)
        size = 0 if size >= work.sub_group else size
    return min(share, largest)


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


def _host(
    shape: ModelShape, work: Workload, trained: int, share: int, *, has_masters: bool
) -> dict[str, Sized]:
    """Return what offloading puts into the machine's memory, for one rank."""
    e, found = work.element, {}
    if work.offload_optimizer:
        masters = 4 if has_masters else 0
        found["optimizer states"] = Sized(
            bytes=_pinned(masters * share, work) + 8 * share + _pinned(4 * share, work),
            formula="(4 + 8 + 4) Pt / N (masters, moments, fp32 gradients)",
        )
        if work.zero_stage in (1, 2):
            staging = _pinned(e * share, work)
            if work.accumulation > 1:
                staging += _pinned(e * trained, work)
            found["gradients and staging"] = Sized(
                bytes=staging,
                formula="e Pt / N, and e Pt where updates accumulate",
            )
        else:
            found["gradients and staging"] = Sized(
                bytes=_pinned(e * share, work), formula="e Pt / N"
            )
    if work.offload_param:
        all_weights = shape.parameters + (trained if work.is_low_rank else 0)
        found["weights"] = Sized(
            bytes=_pinned(e * -(-all_weights // work.world_size), work), formula="e P / N"
        )
    return found


def _pinned(size: int, work: Workload) -> int:
    """Return what torch really takes for one pinned buffer: the next power of two.

    Masters and gradients are pinned, each on its own; Adam's moments are not (cpu_adam.py).
    """
    return 1 << (size - 1).bit_length() if work.pin_memory and size else size
