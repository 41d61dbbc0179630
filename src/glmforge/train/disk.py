"""Disk space for checkpoints: known before the run, checked again before each save.

A save that does not fit is not begun: the run stops with the numbers, the older checkpoints whole.
Arithmetic on parameter counts and file sizes only; ``checkpoint`` writes.
"""

import os
import shutil
from pathlib import Path

from torch import nn

from glmforge.errors import CheckpointError

GIB = 2**30
STATE_BYTES = 12
"""Per trained parameter: fp32 copy and Adam's two fp32 moments (arXiv 1910.02054, section 3.1)."""
SLACK_BYTES = 64 * 2**20
"""Random states, manifests, and what the file system itself takes."""


def checkpoint_bytes(model: nn.Module, *, exclude_frozen: bool) -> int:
    """Estimate one checkpoint's size on all ranks together, in bytes.

    Args:
        model: the engine's module, under any ZeRO stage.
        exclude_frozen: the frozen base is not saved (LoRA), but the portable adapter is.
    """
    trained = saved = 0
    for parameter in model.parameters():
        count = int(getattr(parameter, "ds_numel", parameter.numel()))
        if parameter.requires_grad:
            trained += count * STATE_BYTES
            saved += count * parameter.element_size() * (2 if exclude_frozen else 1)
        elif not exclude_frozen:
            saved += count * parameter.element_size()
    return trained + saved + SLACK_BYTES


def size_words(size: int) -> str:
    """Write a number of bytes in the largest unit in which it is at least one tenth."""
    unit, name = (GIB, "GiB") if size >= GIB / 10 else (2**20, "MiB")
    return f"{size / unit:.2f} {name}" if size < unit else f"{size / unit:,.1f} {name}"


def directory_bytes(directory: Path) -> int:
    """Return the size of all files under `directory`."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def free_bytes(directory: Path) -> int:
    """Return the free space of the file system that `directory` is, or will be, on."""
    while not directory.exists():
        directory = directory.parent
    return shutil.disk_usage(directory).free


def check_before_run(directory: Path, one: int, *, keep: int) -> str | None:
    """Refuse a run that could not save twice; warn where its checkpoints may not all fit.

    Args:
        directory: the run directory.
        one: bytes of one checkpoint.
        keep: newest checkpoints that stay beside the best one and the one being written.

    Returns:
        A warning, or None.

    Raises:
        CheckpointError: two checkpoints (an old one and the one being written) do not fit.
    """
    left_over = (directory / "checkpoints").glob(".*-step-*")  # a run that goes on removes them
    free = free_bytes(directory) + sum(directory_bytes(each) for each in left_over)
    most = one * (keep + 2)
    if free < 2 * one:
        raise CheckpointError(
            f"{os.path.abspath(directory)}: a checkpoint takes about {size_words(one)} and two "
            f"must fit at a time, but {size_words(free)} are free: free some, or put "
            "training.output_dir on another disk. The run was not begun"
        )
    if free < most:
        return (
            f"disk: up to {keep + 2} checkpoints of about {size_words(one)} may exist at a time "
            f"({size_words(most)}), {size_words(free)} are free: lower "
            "training.save_total_limit or free some space"
        )
    return None


def check_before_save(directory: Path, one: int) -> None:
    """Refuse to begin a save that does not fit.

    Raises:
        CheckpointError: less than `one` bytes are free.
    """
    free = free_bytes(directory)
    if free < one:
        raise CheckpointError(
            f"{os.path.abspath(directory)}: the next checkpoint takes about {size_words(one)} "
            f"and {size_words(free)} are free. The save was not begun, the older checkpoints "
            "are whole: free some space and go on with --resume auto"
        )
