"""Uneven ranks: each rank's own time in a step, and the rank that makes the others wait.

A step takes the same time on every rank, because they wait for each other. What a rank takes for
itself is measured where nothing is exchanged: making the batch, and the forward pass (which at
ZeRO-3 includes gathering weights). `ForwardClock` measures, `Pace` compares.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

WINDOW_STEPS = 20
WARM_UP_STEPS = 5
"""Steps at the start that are not compared: kernels are compiled and memory is got in them."""
SLOW_FACTOR = 1.5
SLOW_SECONDS = 0.02
"""A rank is slow that takes so many times as long as the others, and so much longer a step."""


class ForwardClock:
    """Measures the forward passes of training on one rank, without waiting for the GPU."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        """Begin to measure a model (the outermost module)."""
        self._on_gpu = device.type == "cuda"
        self._seconds = 0.0
        self._started: Any = None
        self._events: list[tuple[Any, Any]] = []
        module.register_forward_pre_hook(self._begin)
        module.register_forward_hook(self._end)

    def _mark(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _begin(self, module: nn.Module, inputs: Any) -> None:
        self._started = self._mark() if module.training else None

    def _end(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if self._started is None:
            return
        if self._on_gpu:
            self._events.append((self._started, self._mark()))
        else:
            self._seconds += time.perf_counter() - self._started
        self._started = None

    def take(self) -> float:
        """Return the seconds since the last call; on a GPU the step must be done there."""
        seconds = self._seconds
        seconds += sum(begin.elapsed_time(end) for begin, end in self._events) / 1000
        self._seconds, self._events = 0.0, []
        return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimes:
    """One rank's own time in one step.

    ``computed_tokens`` counts padding and fillers too: they take time like any other token.
    """

    data_seconds: float
    forward_seconds: float
    computed_tokens: float


@dataclass(slots=True, kw_only=True)
class Pace:
    """Compares the ranks over windows of steps."""

    seen: int = 0
    window: list[list[RankTimes]] = field(default_factory=list)
    named: set[int] = field(default_factory=set)

    def observe(self, times: Sequence[RankTimes]) -> list[str]:
        """Take one step of all ranks; return a sentence for each rank newly found slow."""
        self.seen += 1
        if len(times) < 2 or self.seen <= WARM_UP_STEPS:
            return []
        self.window.append(list(times))
        if len(self.window) < WINDOW_STEPS:
            return []
        ranks = [list(steps) for steps in zip(*self.window)]
        self.window = []
        data = [sum(step.data_seconds for step in steps) / WINDOW_STEPS for steps in ranks]
        forward = _per_token([_sums(steps) for steps in ranks])
        slow = {
            rank: text
            for rank in range(len(ranks))
            if (text := _slow(rank, data, "makes its batches")) is not None
            or (text := _slow(rank, forward, "does its forward passes")) is not None
        }
        said = [text for rank, text in slow.items() if rank not in self.named]
        self.named = set(slow)
        return said


def _sums(steps: Sequence[RankTimes]) -> tuple[float, float]:
    """Sum one rank's forward seconds and computed tokens."""
    return sum(one.forward_seconds for one in steps), sum(one.computed_tokens for one in steps)


def _per_token(sums: Sequence[tuple[float, float]]) -> list[float]:
    """Return each rank's forward seconds a step, as if all had computed the same tokens."""
    usual = statistics.mean(tokens for _, tokens in sums) / WINDOW_STEPS
    return [seconds / max(1.0, tokens) * usual for seconds, tokens in sums]


def _slow(rank: int, seconds: Sequence[float], what: str) -> str | None:
    """Say that a rank takes much longer than the others, or None."""
    others = statistics.median(value for other, value in enumerate(seconds) if other != rank)
    mine = seconds[rank]
    if mine < SLOW_FACTOR * others or mine - others < SLOW_SECONDS:
        return None
    look = (
        "another program on its machine's disk or CPU?"
        if what == "makes its batches"
        else "nvidia-smi there shows clocks, temperature and other programs"
    )
    return (
        f"rank {rank} is slow: it {what} in {mine:.2f} s a step where the others take "
        f"{others:.2f} s, and all wait for it ({look})"
    )
