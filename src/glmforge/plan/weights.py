"""Which weights a run has, one by one, and which of them it trains.

Owns the lists that rounding and grouping need: torch rounds each pinned buffer up on its own, and
stage 3 updates its weights in groups of whole ones. Pure arithmetic.
"""

from collections.abc import Iterator

from glmforge.plan.shape import ModelShape
from glmforge.plan.workload import Workload

EIGHT_BIT_BYTES = 2 + 2 * 4 / 256
"""bitsandbytes' 8-bit Adam: a byte a moment, and an fp32 scale for each 256 (Dettmers et al.,
arXiv 2110.02861)."""


def trained_parameters(shape: ModelShape, work: Workload) -> int:
    """Return how many parameters are trained."""
    if work.method == "full":
        return shape.parameters
    if work.method == "freeze":
        return work.trained_layers * shape.layer_parameters + shape.hidden
    found = shape.lora_parameters(work.lora_targets, work.lora_r)
    return found + (shape.lora_outputs(work.lora_targets) if work.use_dora else 0)


def matrices(shape: ModelShape) -> Iterator[tuple[int, int]]:
    """Yield (elements, how many) of the base's weight matrices in the order of the model.

    Norms and biases are left out.
    """
    yield shape.embedding, 1
    for linear, count in shape.everywhere:
        yield linear.in_features * linear.out_features, count
    if shape.experts is not None:
        for stacked in shape.experts.weights:
            yield stacked, shape.experts.layers
    if shape.head:
        yield shape.head, 1


def trained_weights(shape: ModelShape, work: Workload) -> list[tuple[int, int]]:
    """List (elements, how many) of the trained weight matrices."""
    if work.method == "full":
        return list(matrices(shape))
    if work.method == "freeze":
        sizes = [linear.in_features * linear.out_features for linear in shape.linears]
        return [(size, work.trained_layers) for size in sizes]
    return [
        (work.lora_r * width, count)
        for one, count in shape.everywhere
        if one.name in work.lora_targets
        for width in (one.in_features, one.out_features)
    ]


def largest_trained(shape: ModelShape, work: Workload) -> int:
    """Return the elements of the biggest trained weight."""
    return max((size for size, _ in trained_weights(shape, work)), default=0)


def persistent_elements(shape: ModelShape, work: Workload) -> int:
    """Return the weights that stage 3 leaves whole on every card, in elements.

    partition_parameters.py: those of at most stage3_param_persistence_threshold elements, as long
    as all of them are no more than stage3_model_persistence_threshold. Norms and biases are few.
    """
    if work.zero_stage != 3 or (work.world_size == 1 and not work.offload_param):
        return 0
    small = [(size, count) for size, count in matrices(shape) if size <= work.persistence]
    found = sum(size * count for size, count in small)
    if found <= work.all_persistent:
        return found
    found = 0
    for elements in _in_order(shape):
        if elements <= work.persistence and found + elements <= work.all_persistent:
            found += elements
    return found


def sub_groups(shape: ModelShape, work: Workload) -> list[int]:
    """Return the elements of one rank in each sub-group of stage 3, in their order.

    stage3.py, `_create_fp16_sub_groups`: one is closed when it has reached sub_group_size, so that
    its last weight goes beyond it. What is not decayed (norms, biases, DoRA's magnitudes) is a
    group of the optimizer of its own, the last.
    """
    ranks = work.world_size
    total = trained_parameters(shape, work)
    if work.method == "full":
        weights = list(_in_order(shape))
    else:
        weights = [size for size, count in trained_weights(shape, work) for _ in range(count)]
    found, size = [], 0
    for elements in weights:
        size += -(-elements // ranks)
        if size >= work.sub_group:
            found.append(size)
            size = 0
    found += [size] if size else []
    rest = -(-(total - sum(weights)) // ranks)
    return found + ([rest] if rest > 0 else [])


def sub_groups_on_host(shape: ModelShape, work: Workload) -> list[int]:
    """Return the sub-groups that stage 3 offloads.

    stage3.py, `_create_fp32_partitions`: of n sub-groups the first int((1 - ratio) n) stay on the
    card: whole ones, so that a single one is offloaded whatever the ratio.
    """
    every = sub_groups(shape, work)
    return every[int((1 - work.on_host) * len(every)) :]


def sub_groups_on_card(shape: ModelShape, work: Workload) -> int:
    """Return the elements of one rank whose states stay on the card while others are offloaded."""
    if work.zero_stage != 3 or work.on_host == 1:
        return 0
    return sum(sub_groups(shape, work)) - sum(sub_groups_on_host(shape, work))


def _in_order(shape: ModelShape) -> Iterator[int]:
    """Yield the weight matrices layer by layer, embedding first and head last."""
    head = [shape.head] if shape.head else []
    within = list(matrices(shape))[1 : -1 if head else None]
    yield shape.embedding
    for layer in range(shape.layers):
        for size, count in within:
            each, more = divmod(count, shape.layers)
            yield from [size] * (each + (layer < more))
    yield from head
