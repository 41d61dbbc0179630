"""The same bits from the same run: torch's deterministic kernels for the time of a training run.

`training.deterministic` switches them on. On GPUs it changes three things: the backward pass of
attention (flash attention adds up gradients in a fixed order), cuBLAS (fixed workspaces), and
kernels that torch.compile would choose by timing. What has no deterministic kernel stops the run.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from glmforge.distributed.env import fix_cublas_workspace


@contextmanager
def deterministic_kernels(wanted: bool) -> Iterator[None]:
    """Hold torch's deterministic mode for the time of a run where `wanted`.

    Enter it before anything is computed on a GPU: cuBLAS reads its variable once. New memory is
    not filled: nothing reads it before it is written, and DeepSpeed's buckets are large.
    """
    if not wanted:
        yield
        return
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    filled = torch.utils.deterministic.fill_uninitialized_memory
    fix_cublas_workspace()
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = filled
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
