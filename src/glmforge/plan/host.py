"""What offloading and background checkpoints put into the memory of a machine, for one rank.

Derived from DeepSpeed 0.19.8's code: which buffers there are, and which of them are pinned, each on
its own. Pure arithmetic.
"""

from glmforge.plan.shape import ModelShape
from glmforge.plan.weights import (
    EIGHT_BIT_BYTES,
    largest_trained,
    matrices,
    sub_groups_on_host,
    trained_parameters,
    trained_weights,
)
from glmforge.plan.workload import Sized, Workload


def host_bytes(shape: ModelShape, work: Workload, share: int) -> dict[str, Sized]:
    """Return what lies on the host by name; empty where nothing is offloaded or held there."""
    found = {}
    if work.async_save:
        found["checkpoint's copy"] = _checkpoint(shape, work, share)
    if work.offload_optimizer:
        parts = _of_stage_3 if work.zero_stage == 3 else _of_stages_1_and_2
        found.update(parts(shape, work, share))
    if work.offload_param:
        found["weights"] = _weights(shape, work, share)
    return found


def _checkpoint(shape: ModelShape, work: Workload, share: int) -> Sized:
    """`training.async_save` keeps a copy of a rank's shards, in buffers of just their size.

    Below ZeRO-3 rank 0 holds the weights for all: what is here is a rank's on average.
    """
    saved = trained_parameters(shape, work) if work.is_low_rank else shape.parameters
    moments = EIGHT_BIT_BYTES if work.eight_bit else 8
    return Sized(
        bytes=int((4 + moments) * share + work.element * saved / work.world_size),
        formula=f"(4 + {moments:g}) Pt / N, and e {'Pt' if work.is_low_rank else 'P'} / N",
    )


def pinned(size: int, work: Workload) -> int:
    """Return what torch takes for one pinned buffer: the next power of two.

    The documentation of `torch.cuda.host_memory_stats` says so of its block sizes.
    """
    return 1 << (size - 1).bit_length() if work.pin_memory and size else size


def _of_stages_1_and_2(shape: ModelShape, work: Workload, share: int) -> dict[str, Sized]:
    """stage_1_and_2.py pins masters, fp32 gradients, the 16-bit copy and each sum of gradients."""
    e = work.element
    found = {
        "optimizer states": Sized(
            bytes=pinned(4 * share, work) + 8 * share + pinned(4 * share, work),
            formula="(4 + 8 + 4) Pt / N (masters, moments, fp32 gradients)",
        ),
        "gradients and staging": Sized(
            bytes=pinned(e * share, work) + pinned(e * largest_trained(shape, work), work),
            formula="e Pt / N, and e x largest trained weight",
        ),
    }
    if work.accumulation > 1 and not (work.zero_stage == 2 and work.sums_are_wide):
        weights = trained_weights(shape, work)
        rest = trained_parameters(shape, work) - sum(size * count for size, count in weights)
        size = sum(pinned(e * size, work) * count for size, count in weights) + e * max(0, rest)
        found["accumulated gradients"] = Sized(
            bytes=size, formula="e Pt (of whole weights, a buffer each)"
        )
    return found


def _of_stage_3(shape: ModelShape, work: Workload, share: int) -> dict[str, Sized]:
    """stage3.py pins fp32 gradients by sub-group and the flat buffer of gradients, no masters."""
    groups = sub_groups_on_host(shape, work)
    g = work.gradient_element
    return {
        "optimizer states": Sized(
            bytes=12 * sum(groups) + sum(pinned(4 * size, work) for size in groups),
            formula="(4 + 8 + 4) Pt / N (masters, moments, fp32 gradients by sub-group)"
            + (f", {len(groups)} sub-groups of them" if work.on_host < 1 else ""),
        ),
        "gradients and staging": Sized(bytes=pinned(g * share, work), formula="g Pt / N"),
    }


def _weights(shape: ModelShape, work: Workload, share: int) -> Sized:
    """partition_parameters.py pins each weight's part; stage3.py copies trained ones into one.

    torch keeps the freed buffers. The second copy of hpZ lies beside them.
    """
    e, trained = work.element, trained_parameters(shape, work)
    every = list(matrices(shape))
    rest = shape.parameters - sum(size * count for size, count in every)
    if work.is_low_rank:
        rest += trained

    def parts(ranks: int) -> int:
        whole = sum(pinned(e * -(-size // ranks), work) * count for size, count in every)
        return whole + e * -(-max(0, rest) // ranks)

    size = parts(work.world_size) + pinned(e * share, work)
    formula = "e P / N (a buffer each), and e Pt / N (trained ones in one)"
    if work.secondary > 1:
        size += parts(work.secondary)
        formula += ", and e P / zero_hpz_partition_size"
    return Sized(bytes=size, formula=formula)
