"""The batch equation: train_batch_size = micro_batch x accumulation x world_size.

Pure arithmetic on plain numbers; the run config and a user's DeepSpeed map both pass through here,
so that one set of sizes reaches the loader and the engine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PACKED_ACCUMULATION = 1
UNPACKED_ACCUMULATION = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizes:
    """Rows per forward (`micro_batch`), forwards per update (`accumulation`), ranks.

    ``origin`` says where an accumulation comes from that the run config leaves open,
    ``micro_origin`` the same of a micro-batch.
    """

    micro_batch: int
    accumulation: int
    world_size: int
    origin: str = field(default="", compare=False)
    micro_origin: str = field(default="", compare=False)

    @property
    def global_batch(self) -> int:
        """Rows per optimizer update over all ranks."""
        return self.micro_batch * self.accumulation * self.world_size

    def sentence(self) -> str:
        """The equation with its numbers."""
        origin = f" ({self.origin})" if self.origin else ""
        micro_origin = f" ({self.micro_origin})" if self.micro_origin else ""
        return (
            f"{self.micro_batch} per_device_train_batch_size{micro_origin} x {self.accumulation} "
            f"gradient_accumulation_steps{origin} x {self.world_size} process(es) = "
            f"{self.global_batch}"
        )


def batch_sizes(
    micro_batch: int,
    accumulation: int | str,
    world_size: int,
    *,
    packing: bool,
    user_map: Mapping[str, Any] | None = None,
    micro_is_open: bool = False,
) -> BatchSizes:
    """Fill in `accumulation` where it is "auto", and `micro_batch` where it was not written.

    It is what the user's DeepSpeed map says of it, or what its `train_batch_size` leaves, or else 1
    with packed rows and 8 without: a packed row holds several dialogues, so that 8 accumulated ones
    would leave very few updates per epoch on the data sizes of this field.

    Args:
        micro_batch: rows per forward pass of a rank.
        accumulation: of the run config.
        world_size: ranks.
        packing: whether rows are packed.
        user_map: the `deepspeed:` map, as it was written.
        micro_is_open: `micro_batch` is a default: the map's decides, or what its total leaves.
    """
    micro_origin = origin = ""
    if micro_is_open:
        micro_batch, micro_origin = _open_rows(micro_batch, accumulation, world_size, user_map)
    if accumulation == "auto":
        accumulation = PACKED_ACCUMULATION if packing else UNPACKED_ACCUMULATION
        written = _whole(user_map, "gradient_accumulation_steps")
        total, per_step = _whole(user_map, "train_batch_size"), micro_batch * world_size
        if written:
            accumulation, origin = written, "from deepspeed"
        elif total and total % per_step == 0:
            accumulation, origin = total // per_step, f"derived: {total} / {per_step}"
    return BatchSizes(
        micro_batch=micro_batch,
        accumulation=int(accumulation),
        world_size=world_size,
        origin=origin,
        micro_origin=micro_origin,
    )


def _open_rows(
    default: int, accumulation: int | str, world_size: int, user_map: Mapping[str, Any] | None
) -> tuple[int, str]:
    """Return the rows of a forward pass that the map asks for, and where they come from."""
    written = _whole(user_map, "train_micro_batch_size_per_gpu")
    if written:
        return written, "from deepspeed"
    total = _whole(user_map, "train_batch_size")
    if accumulation == "auto":
        accumulation = _whole(user_map, "gradient_accumulation_steps")
    per_row = int(accumulation) * world_size
    if total and per_row and total % per_row == 0:
        return total // per_row, f"derived: {total} / {per_row}"
    return default, ""


def _whole(user_map: Mapping[str, Any] | None, key: str) -> int:
    """Return a whole number above 0 of the map; 0 where there is none, which is judged later."""
    value = (user_map or {}).get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        return 0
    return max(0, int(value))


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
        near = [n for n in (below, above) if n > 0]
        words = [f"{n * per_step} ({n} step{'' if n == 1 else 's'})" for n in near]
        accumulation = f"a total that {per_step} divides: {' or '.join(words)}"
        if [n * per_step for n in near] == [sizes.global_batch]:
            accumulation = ""  # the first way again
    alone = sizes.micro_batch * sizes.accumulation
    if total % alone == 0:
        processes = f"start {total // alone} process(es)"
        if sizes.world_size == 1:
            processes += f" (one was started: --nproc {total // alone}, or a launcher)"
    else:
        processes = f"start a number of processes n with {alone} x n = {total} (none fits)"
    reason = (
        ""
        if total % per_step == 0
        else (
            f" ({total} is not a multiple of {sizes.micro_batch} x {sizes.world_size} = {per_step})"
        )
    )
    return (
        f"train_batch_size is {total}, but {sizes.sentence()}{reason}. Make it true with "
        f"train_batch_size: {sizes.global_batch} (or leave it out), or "
        + (f"{accumulation}, or " if accumulation else "")
        + processes
    )
