"""How fast a configuration is expected to be: tokens a second of all cards together.

A matrix-product floor (each token meets each weight so many times, at the rate that an H200 keeps
up) divided by the share of that floor that was measured for the path at hand, plus what grows with
forward passes, ranks and offloading. For ranking configurations and for the expected hours; the
constants name where they were measured (one NVIDIA H200, torch 2.11, bf16, 2026-11-30).
"""

from dataclasses import dataclass
from typing import Literal

from glmforge.plan.activations import graph_layers
from glmforge.plan.shape import ModelShape
from glmforge.plan.weights import trained_parameters
from glmforge.plan.workload import Workload

Links = Literal["nvlink", "pcie"]

MATRIX_FLOPS = 659e12
"""bf16 products of 8192 x 8192 matrices, sustained for 3 s on an H200 (power-limited)."""

FLOOR_SHARE = {
    ("low-rank", True, False): 0.853,
    ("low-rank", True, True): 0.605,
    ("low-rank", False, False): 0.575,
    ("low-rank", False, True): 0.44,
    ("full", True, False): 0.69,
    ("full", True, True): 0.61,
    ("full", False, False): 0.58,
    ("full", False, True): 0.54,
}
"""Share of the floor reached at 16,384 tokens a forward pass, by (method, compiled, checkpointing).
LoRA: this program on a 6B shape (21,300 tokens/s, 15,250 with checkpointing) and hand-made plain
modules; "full" compiled: this program on two cards (9,970 tokens/s a card with checkpointing); full
eager without checkpointing taken from LoRA's."""

STAGE_3_SHARE = {"low-rank": 0.97, "full": 0.80}
"""Speed of compiled layers under ZeRO-3, whose hooks cut them into pieces, by that under ZeRO-2,
both without communication: 1.10 s against 1.07 (LoRA, 6B), 0.96 against 0.75 (full), two H200."""

LAYER_SECONDS = {True: 0.001, False: 0.004}
"""What a layer costs a forward and backward pass whatever its rows, by compiled. Eager: from two
measured micro-batches (2,048 tokens 0.268 s, 16,384 tokens 1.353 s, 28 layers); compiled: estimated
from kernel counts."""

SCALING = 0.988
"""Speed of a card among several without ZeRO-3, by one alone: 1.976 of 2 measured."""

GATHER_BYTES = {"nvlink": 259e9, "pcie": 20e9}
"""All-gather of a rank's weights, bytes a second: NVLink measured on two H200, PCIe estimated."""

HOST_LINK_BYTES = 20e9
HOST_ADAM_PARAMETERS = 1.0e9
"""Copies between card and host (bytes a second), and updates of DeepSpeed's CPU Adam (parameters a
second and machine): estimates, not measured."""

QLORA_SHARE = 0.75
"""QLoRA turns each weight back into 16 bit before each product: an estimate, not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What one optimizer step takes: seconds by cause, and tokens a second of all ranks."""

    compute_seconds: float
    gather_seconds: float
    offload_seconds: float
    tokens: int

    @property
    def step_seconds(self) -> float:
        """Length of a step."""
        return self.compute_seconds + self.gather_seconds + self.offload_seconds

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all ranks, padding included, a second."""
        return self.tokens / self.step_seconds


def predict_speed(shape: ModelShape, work: Workload, links: Links = "nvlink") -> Speed:
    """Estimate one optimizer step on cards like the H200 that the constants are of."""
    kind = "low-rank" if work.is_low_rank else "full"
    # Each weight: 2 operations a token forward, 2 for the gradient behind it, 2 for its own.
    passes = 4.0 if work.is_low_rank else 2 + 4 * graph_layers(shape, work) / shape.layers
    compiled = work.compiled
    share = FLOOR_SHARE[kind, compiled, False]
    if work.checkpointing:
        again = 1 / work.checkpoint_every
        share = 1 / ((1 - again) / share + again / FLOOR_SHARE[kind, compiled, True])
    share *= QLORA_SHARE if work.method == "qlora" else 1.0
    share *= STAGE_3_SHARE[kind] if compiled and work.zero_stage == 3 else 1.0
    flops = passes * shape.matrix_parameters * work.tokens
    flops += 6 * work.row_tokens * shape.query_width * shape.layers * work.tokens
    rate = MATRIX_FLOPS * share / (8 if work.precision == "fp32" else 1)
    forward = flops / rate + shape.layers * LAYER_SECONDS[compiled]
    compute = forward * work.accumulation
    if work.world_size > 1:
        compute /= SCALING
    return Speed(
        compute_seconds=compute,
        gather_seconds=_gather_seconds(shape, work, links),
        offload_seconds=_offload_seconds(shape, work),
        tokens=work.tokens * work.accumulation * work.world_size,
    )


def _gather_seconds(shape: ModelShape, work: Workload, links: Links) -> float:
    """Return what gathering weights (stage 3) and full gradients costs, not hidden by anything."""
    ranks = work.world_size
    if ranks == 1:
        return 0.0
    others = (ranks - 1) / ranks
    moved = 0.0
    if work.zero_stage == 3:
        passes = 3 if work.checkpointing else 2  # forward, again where recomputed, backward
        moved += passes * work.element * shape.parameters * others * work.accumulation
    trained = trained_parameters(shape, work)
    every = work.accumulation if work.zero_stage >= 2 else 1
    moved += 2 * work.element * trained * others * every
    return moved / GATHER_BYTES[links]


def _offload_seconds(shape: ModelShape, work: Workload) -> float:
    trained = trained_parameters(shape, work)
    share = -(-trained // work.world_size)
    seconds = 0.0
    if work.offload_optimizer:
        seconds += 2 * work.element * share / HOST_LINK_BYTES + trained / HOST_ADAM_PARAMETERS
    if work.offload_param:
        weights = work.element * shape.parameters / work.world_size
        seconds += 2 * weights * work.accumulation / HOST_LINK_BYTES
    return seconds
