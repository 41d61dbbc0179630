"""What only DeepSpeed knows: its start, its partitioned parameters, its missing CPU kernel.

Owns every use of DeepSpeed that is not the engine itself (``train/engine.py`` is the other of the
two modules that import it). Sits between the engine and those who read weights: checkpoints,
adapters, export.
"""

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from glmforge.distributed.collectives import Ranks


@contextmanager
def deepspeed_running() -> Iterator[None]:
    """Bind DeepSpeed to the process group that exists, for the time of a run.

    Its CPU all-reduce kernel is left out: on CPU hosts DeepSpeed compiles `deepspeed_shm_comm`
    when its communication layer starts, 1.5 minutes cold, and a killed build leaves a lock on
    which later runs hang in silence. Results are the same without it. This can go when DeepSpeed
    offers a switch (deepspeed 0.19.8 has none).
    ZeRO-3 replaces `torch.nn.functional.linear` for the whole process and leaves it so; the
    original is put back at the end, or a later run of this process would compute other bits.
    """
    linear = functional.linear
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    # Its logger keeps the standard output of this moment, which is for results here.
    with redirect_stdout(sys.stderr):
        import deepspeed
        import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(verbose=False, dist_init_required=None)
    try:
        yield
    finally:
        functional.linear = linear


def async_io_problem() -> str | None:
    """Return why DeepSpeed cannot offload to a disk (NVMe) here, or None where it may."""
    with redirect_stdout(sys.stderr):
        from deepspeed.ops.op_builder import AsyncIOBuilder

        if AsyncIOBuilder().is_compatible(verbose=False):
            return None
    return (
        "offloading to nvme needs DeepSpeed's async_io, which cannot be built here: the headers of "
        "libaio are missing (apt install libaio-dev)"
    )


@contextmanager
def whole(parameters: Iterable[nn.Parameter], writer: int | None = None) -> Iterator[None]:
    """Hold the full values of ZeRO-3-partitioned `parameters`; a no-op for all others.

    Every rank must enter and leave together: it is a collective.

    Args:
        parameters: of any module.
        writer: the rank whose changes are kept; None keeps none.
    """
    partitioned = [p for p in parameters if hasattr(p, "ds_id")]
    if not partitioned:
        yield
        return
    import deepspeed

    with deepspeed.zero.GatheredParameters(partitioned, modifier_rank=writer):
        yield


@contextmanager
def partitioned_construction(engine_config: Mapping[str, Any]) -> Iterator[None]:
    """Cut every parameter into the ranks' parts as soon as its module is made (ZeRO-3).

    Dtypes are the model's own: DeepSpeed would cast every tensor made meanwhile, the rotary
    frequencies too, and 0.19.8 reads `dtype=float32` as bfloat16 on a CPU (tests/dist holds both).

    Args:
        engine_config: the whole DeepSpeed config of the run.
    """
    import deepspeed

    placed = [deepspeed.zero.DeepSpeedTensorOverride.device]
    with deepspeed.zero.Init(config_dict_or_path=dict(engine_config), tensor_overrides=placed):
        yield


def assign_partitioned(parameter: nn.Parameter, stored: torch.Tensor) -> None:
    """Write a stored tensor into a partitioned parameter, which is whole for that moment only.

    A collective: every rank names the same parameter. Rank 0's tensor is the one that is used.
    """
    with whole([parameter], writer=0), torch.no_grad():
        assert parameter.shape == stored.shape
        parameter.copy_(stored)


def assign_from_main(parameter: nn.Parameter, stored: torch.Tensor | None, ranks: Ranks) -> None:
    """Write rank 0's whole tensor into a parameter, partitioned or not, on every rank.

    A collective: every rank names the same parameter; only rank 0 needs `stored`.
    """
    is_partitioned = hasattr(parameter, "ds_id")
    with whole([parameter], writer=0), torch.no_grad():
        if ranks.is_main:
            assert stored is not None
            parameter.copy_(stored)
    if not is_partitioned:
        ranks.share(parameter.data)


@contextmanager
def partitions_announced(engine_config: Mapping[str, Any]) -> Iterator[None]:
    """Let PEFT know that weights are partitioned, so that it gathers each one that it measures.

    DoRA starts from the norms of the base's rows. PEFT asks transformers, which knows of ZeRO-3 for
    as long as somebody holds an `HfDeepSpeedConfig` (its public switch).
    """
    if engine_config["zero_optimization"]["stage"] != 3:
        yield
        return
    from transformers.integrations import HfDeepSpeedConfig

    held = HfDeepSpeedConfig(dict(engine_config))
    yield
    del held


def full_shape(parameter: nn.Parameter) -> torch.Size:
    """Return the shape of the whole parameter, partitioned or not."""
    return torch.Size(getattr(parameter, "ds_shape", parameter.shape))


def gather_state(
    module: nn.Module, *, only_trainable: bool, keep: bool
) -> dict[str, torch.Tensor] | None:
    """Collect a module's weights whole, one parameter at a time, on the CPU.

    Args:
        module: any module, under any ZeRO stage.
        only_trainable: leave out frozen parameters and buffers.
        keep: whether this rank wants the result; the others only take part in the gathering.

    Returns:
        name → CPU tensor (a copy) where `keep`, else None.
    """
    found: dict[str, torch.Tensor] = {}
    for name, parameter in module.named_parameters():
        if only_trainable and not parameter.requires_grad:
            continue
        with whole([parameter]):
            if keep:
                found[name] = parameter.detach().to("cpu", copy=True)
    if not only_trainable:
        persistent = module.state_dict().keys()
        for name, buffer in module.named_buffers():
            if keep and name in persistent:
                found[name] = buffer.detach().to("cpu", copy=True)
    return found if keep else None
