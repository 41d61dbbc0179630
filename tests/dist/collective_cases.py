"""Exchanges between ranks that name CUDA devices, as on a machine with GPUs."""

import time
from pathlib import Path

import torch
import torch.distributed as dist

from glmforge.distributed.collectives import Ranks
from glmforge.distributed.env import read_world


def barrier_of_gpus(scratch: Path) -> object:
    """Return for how long rank 0 waited for a rank that came half a second late."""
    world = read_world()
    ranks = Ranks(world=world, device=torch.device("cuda", world.rank))
    ranks.barrier()
    if dist.get_rank() == 1:
        time.sleep(0.5)
    begin = time.perf_counter()
    ranks.barrier()
    return time.perf_counter() - begin
