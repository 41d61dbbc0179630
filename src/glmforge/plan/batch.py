"""The batch equation: train_batch_size = micro_batch x accumulation x world_size.

Pure arithmetic on plain numbers; the run config and a user's DeepSpeed map both pass through here,
so that one set of sizes reaches the loader and the engine.
"""

from dataclasses import dataclass

PACKED_ACCUMULATION = 1
UNPACKED_ACCUMULATION = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizes:
    """Rows per forward (`micro_batch`), forwards per update (`accumulation`), ranks."""

    micro_batch: int
    accumulation: int
    world_size: int

    @property
    def global_batch(self) -> int:
        """Rows per optimizer update over all ranks."""
        return self.micro_batch * self.accumulation * self.world_size

    def sentence(self) -> str:
        """The equation with its numbers."""
        return (
            f"{self.micro_batch} per_device_train_batch_size x {self.accumulation} "
            f"gradient_accumulation_steps x {self.world_size} process(es) = {self.global_batch}"
        )


def batch_sizes(
    micro_batch: int, accumulation: int | str, world_size: int, *, packing: bool
) -> BatchSizes:
    """Fill in `accumulation` where it is "auto": 1 with packed rows, else 8.

    A packed row holds several dialogues, so that packing with 8 accumulated rows would leave very
    few updates per epoch on the data sizes of this field.
    """
    if accumulation == "auto":
        accumulation = PACKED_ACCUMULATION if packing else UNPACKED_ACCUMULATION
    return BatchSizes(
        micro_batch=micro_batch, accumulation=int(accumulation), world_size=world_size
    )


def check_total(total: int, sizes: BatchSizes) -> str | None:
    """Return what is wrong with a written `train_batch_size`, or None when the equation holds.

    The sentence names the equation and the three ways to make it true.
    """
    if total == sizes.global_batch:
        return None
    per_step = sizes.micro_batch * sizes.world_size
    if total % per_step == 0:
        accumulation = f"gradient_accumulation_steps: {total // per_step}"
    else:
        below, above = total // per_step, total // per_step + 1
        near = [f"{n * per_step} ({n} steps)" for n in (below, above) if n > 0]
        accumulation = f"a total that {per_step} divides: {' or '.join(near)}"
    alone = sizes.micro_batch * sizes.accumulation
    if total % alone == 0:
        processes = f"start {total // alone} process(es)"
        if sizes.world_size == 1:
            processes += f" (one was started: --nproc {total // alone}, or a launcher)"
    else:
        processes = f"start a number of processes n with {alone} x n = {total} (none fits)"
    return (
        f"train_batch_size is {total}, but {sizes.sentence()}. Make it true with "
        f"train_batch_size: {sizes.global_batch} (or leave it out), or {accumulation}, or "
        f"{processes}"
    )
