"""The process group of a run and the few small exchanges that a step needs.

Owns: start and end of the torch process group, and collectives on plain Python values (floats,
picklable objects). Does not own gradients: DeepSpeed reduces those. Sits under everything that
runs on several ranks; with a world size of 1 every call is a plain local operation.
"""

import atexit
import datetime
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from glmforge.distributed.env import (
    World,
    choose_interface,
    let_segments_grow,
    torch_variables_set,
)
from glmforge.errors import GlmForgeError, LaunchError

T = TypeVar("T")

COLLECTIVE_TIMEOUT = datetime.timedelta(minutes=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The ranks of a run, seen from this one, with the device that this rank computes on."""

    world: World
    device: torch.device

    @property
    def rank(self) -> int:
        return self.world.rank

    @property
    def world_size(self) -> int:
        return self.world.world_size

    @property
    def is_main(self) -> bool:
        """True on rank 0, the only rank that writes shared files and prints."""
        return self.world.rank == 0

    def barrier(self) -> None:
        """Wait until every rank has come here.

        Over gloo on every rank: torch's own barrier picks a backend by its arguments, and ranks
        that pick different ones wait for each other for ever.
        """
        self.gather_floats([0.0])

    def gather_floats(self, values: Sequence[float]) -> list[list[float]]:
        """Return every rank's `values` (same count on each), in rank order, on every rank."""
        mine = torch.tensor(list(values), dtype=torch.float64)
        if self.world_size == 1:
            return [mine.tolist()]
        parts = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(parts, mine)
        return [part.tolist() for part in parts]

    def gather_objects(self, value: Any) -> list[Any]:
        """Return every rank's picklable `value`, in rank order, on every rank."""
        if self.world_size == 1:
            return [value]
        parts: list[Any] = [None] * self.world_size
        dist.all_gather_object(parts, value)
        return parts

    def on_main(self, work: Callable[[], T]) -> T:
        """Run `work` on rank 0 and return its picklable result on every rank.

        Raises:
            GlmForgeError: what `work` raised, on every rank.
        """
        result: T | None = None
        failure: GlmForgeError | None = None
        if self.is_main:
            try:
                result = work()
            except GlmForgeError as error:
                failure = error
        result, failure = self.agree((result, failure))
        if failure is not None:
            raise failure
        return cast(T, result)

    def agree(self, value: Any) -> Any:
        """Return rank 0's picklable `value` on every rank."""
        if self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def share(self, tensor: torch.Tensor) -> None:
        """Overwrite `tensor` with rank 0's, on every rank."""
        if self.world_size > 1:
            dist.broadcast(tensor, src=0)


def pick_device(world: World) -> torch.device:
    """Return this rank's device: its own CUDA device where there is one, else the CPU.

    Raises:
        LaunchError: more ranks on this machine than visible CUDA devices.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if world.launcher == "slurm" and count == 1:
        return torch.device("cuda", 0)  # srun --gpus-per-task=1 shows each task its own device
    if world.local_rank >= count:
        raise LaunchError(
            f"rank {world.rank} is process {world.local_rank} of this machine, but only {count} "
            f"CUDA device(s) are visible: start at most {count} processes here (--nproc {count}) "
            "or make more devices visible with CUDA_VISIBLE_DEVICES"
        )
    return torch.device("cuda", world.local_rank)


@contextmanager
def process_group(world: World) -> Iterator[Ranks]:
    """Start torch's process group for `world` and yield the ranks.

    The group lives until the process ends: DeepSpeed keeps references to it, so that a second run
    in the same process needs the same one. A group that the caller started is used as it is.

    Small values travel over gloo on the CPU; tensors on CUDA devices over NCCL.
    """
    device = pick_device(world)
    if device.type == "cuda":
        let_segments_grow()
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        # A launched process finds the others through the launcher's variables (env://); one
        # process alone needs neither an address nor a port.
        alone = world.world_size == 1
        choose_interface(world)
        meeting = {"store": dist.HashStore()} if alone else {"init_method": "env://"}
        dist.init_process_group(
            backend,
            rank=world.rank,
            world_size=world.world_size,
            timeout=COLLECTIVE_TIMEOUT,
            **meeting,
        )
        atexit.register(_end_group)
    with torch_variables_set(world):
        yield Ranks(world=world, device=device)


def leave(status: int) -> None:
    """End a rank whose work is done and said, without taking torch's native threads apart.

    That may abort ("terminate called without an active exception", once in some 60 runs on gloo),
    and a run that has finished would end as one whose rank died. What Python runs at exit is run.
    Returns where this process has no group: then the interpreter ends it as usual.

    Args:
        status: the exit status of the process.
    """
    if not dist.is_initialized():
        return
    atexit.unregister(_end_group)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # nobody reads it any more
            stream.flush()
    os._exit(status)


def _end_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
