"""What is to be computed: the settings of a run that its memory and time depend on.

Owns `Workload`, plain numbers and switches; ``plan/request.py`` fills one from a run config, the
advisor varies one, the account reads one.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

Method = Literal["lora", "qlora", "freeze", "full"]
Precision = Literal["bf16", "fp16", "fp32"]

GIB = 2**30


def beside(value: float, limit: float) -> str:
    """Write a number with as many decimals as show on which side of a limit it lies (1 to 3)."""
    for places in (1, 2):
        text = f"{value:.{places}f}"
        if (float(text) > limit) == (value > limit):
            return text
    return f"{value:.3f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """Bytes and the formula that gave them."""

    bytes: int
    formula: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One configuration of a run, for one model.

    ``micro_batch`` is rows of ``row_tokens`` tokens in one forward pass, ``accumulation`` forward
    passes of one update. Buckets and live parameters are DeepSpeed's settings, in elements.
    ``repeats_heads``: the packed attention kernel at hand takes no grouped heads, so that keys and
    values are repeated to all query heads (torch before 2.12 without flash-attn).
    ``checkpoint_every`` n: with checkpointing, the first of every n layers is computed again.
    ``persistence``: at stage 3, weights of so few elements stay whole on every card, as long as
    they are ``all_persistent`` elements together at most.
    ``trained_layers`` is of method freeze; ``eight_bit``: optimizer states of bitsandbytes.
    ``gradient_bytes`` are of an element of the gradients' sums (``grad_accum_dtype``), 0: as of the
    weights. ``secondary`` cards share the second copy of stage 3's weights (hpZ), 1: there is none.
    ``on_host`` is ``offload_optimizer.ratio``, the share of stage 3's sub-groups on the host.
    ``async_save``: checkpoints are copied into host memory before they are written.
    """

    method: Method
    precision: Precision = "bf16"
    world_size: int = 1
    zero_stage: int = 2
    offload_optimizer: bool = False
    offload_param: bool = False
    pin_memory: bool = False
    micro_batch: int = 1
    accumulation: int = 1
    row_tokens: int = 2048
    checkpointing: bool = True
    checkpoint_every: int = 1
    compiled: bool = True
    packed: bool = False
    repeats_heads: bool = False
    lora_r: int = 8
    lora_targets: tuple[str, ...] = ()
    lora_dropout: float = 0.0
    use_dora: bool = False
    trained_layers: int = 0
    eight_bit: bool = False
    reduce_bucket: int = 200_000_000
    prefetch_bucket: int = 50_000_000
    max_live: int = 1_000_000_000
    sub_group: int = 1_000_000_000
    persistence: int = 100_000
    all_persistent: int = 2**63 - 1
    overlap_comm: bool = False
    gradient_bytes: int = 0
    secondary: int = 1
    on_host: float = 1.0
    async_save: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of one forward pass of one rank, padding included."""
        return self.micro_batch * self.row_tokens

    @property
    def element(self) -> int:
        """Bytes of one weight or activation."""
        return 4 if self.precision == "fp32" else 2

    @property
    def gradient_element(self) -> int:
        """Bytes of one element of the gradients' sums."""
        return self.gradient_bytes or self.element

    @property
    def sums_are_wide(self) -> bool:
        """Whether gradients of 16 bits are added up in fp32."""
        return self.gradient_element > self.element

    @property
    def is_low_rank(self) -> bool:
        """Whether adapters are trained and the base is frozen."""
        return self.method in ("lora", "qlora")

    @property
    def offload(self) -> str:
        """What lies in host memory: none, optimizer, or optimizer+parameters."""
        if self.offload_param:
            return "optimizer+parameters" if self.offload_optimizer else "parameters"
        return "optimizer" if self.offload_optimizer else "none"

    def but(self, **changes: Any) -> "Workload":
        """Return the same workload with some settings changed."""
        return replace(self, **changes)

    def checkpointing_words(self) -> str:
        """Name what is computed again in backward."""
        if not self.checkpointing:
            return "no checkpointing"
        every = self.checkpoint_every
        return "checkpointing" if every == 1 else f"checkpointing of one layer in {every}"

    def sentence(self) -> str:
        """Name the configuration in one line."""
        parts = [
            self.method,
            f"ZeRO-{self.zero_stage}",
            *([f"offload {self.offload}"] if self.offload != "none" else []),
            f"micro-batch {self.micro_batch} x {self.row_tokens} tokens",
            f"accumulation {self.accumulation}",
            self.checkpointing_words(),
        ]
        return ", ".join(parts)
