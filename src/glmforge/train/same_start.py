"""Ranks that were started with different settings are told, before anything is done.

They would train all the same, each with its own learning rate or number of micro-batches: a
silently wrong run, or a collective that never ends. A launcher of others (torchrun, srun) starts
whatever each machine has, so the ranks compare themselves.
"""

import importlib.metadata
import socket
from collections.abc import Mapping

from glmforge.config import RunConfig
from glmforge.distributed.collectives import Ranks, process_group
from glmforge.distributed.env import World
from glmforge.errors import ConfigError
from glmforge.launch.sameness import compared_settings, difference
from glmforge.train.engine import pick_precision


def check_same_start(
    config: RunConfig, world: World, options: Mapping[str, str | bool | None]
) -> None:
    """Compare all ranks; a collective, to be called before anything that one rank may refuse.

    Args:
        config: of this rank.
        world: who this rank is.
        options: of this rank's start that change the run, such as ``--resume``.

    Raises:
        ConfigError: on every rank, where one differs from rank 0.
    """
    if world.world_size > 1:
        with process_group(world) as ranks:
            compare_ranks(config, ranks, options)


def compare_ranks(
    config: RunConfig, ranks: Ranks, options: Mapping[str, str | bool | None]
) -> None:
    """Compare version, settings, options, device and number format over all ranks; a collective.

    Args:
        config: of this rank.
        ranks: all ranks.
        options: of this rank's start that change the run, such as ``--resume``.

    Raises:
        ConfigError: on every rank, where one differs from rank 0: what, with both values.
    """
    mine = {"the version of glmforge": importlib.metadata.version("glmforge")}
    mine |= compared_settings(config, options)
    mine |= {
        "the device": ranks.device.type,
        "the number format of training.precision": _number_format(config, ranks),
    }
    everyone = ranks.gather_objects((socket.gethostname(), mine))
    host, first = everyone[0]
    for rank, (other_host, other) in enumerate(everyone):
        found = difference(other, f"on rank {rank} ({other_host})", first, f"on rank 0 ({host})")
        if found is not None:
            raise ConfigError(found)


def _number_format(config: RunConfig, ranks: Ranks) -> str:
    try:
        return pick_precision(config.training.precision, ranks.device)
    except ConfigError as error:
        return f"impossible ({error})"  # refused later on every rank, if it is so on every rank
