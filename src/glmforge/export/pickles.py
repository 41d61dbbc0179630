"""Reads training checkpoints (``*.pt``) without running anything that they name.

DeepSpeed pickles objects of its own classes beside the tensors. torch's restricted unpickler builds
the tensors; every other class or function in the file, whatever its name, is replaced by `Inert`,
which keeps its arguments and does nothing. So no file is trusted, and DeepSpeed is not needed.
Tensors are mapped from the file: memory is used for what is read of them.
"""

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from glmforge.errors import CheckpointError

# What torch's readers raise on bytes that are no checkpoint.
_BROKEN = (RuntimeError, ValueError, LookupError, TypeError, AttributeError)


class Inert:
    """Stands for an object of an unknown class: it holds what it was made of, and does nothing."""

    args: tuple[Any, ...]

    def __new__(cls, *args: Any, **_: Any) -> "Inert":
        """Keep the arguments."""
        made = object.__new__(cls)
        made.args = args
        return made

    def __init__(self, *args: Any, **_: Any) -> None:
        del args

    def __setstate__(self, state: Any) -> None:
        """Take no state over."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Take no items over (an object of a class made from dict)."""


def read_inert(path: Path) -> Any:
    """Return what a ``.pt`` file holds, tensors on the CPU and mapped from the file.

    Raises:
        CheckpointError: the file is torn, or is no file of tensors.
    """
    try:
        mapped = zipfile.is_zipfile(path)
        # The old format is not understood by the look-up; its file must hold tensors alone.
        names = get_unsafe_globals_in_checkpoint(str(path)) if mapped else []
        with safe_globals([(Inert, name) for name in names]):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except (pickle.UnpicklingError, OSError, EOFError, *_BROKEN) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        size = path.stat().st_size
        raise CheckpointError(
            f"{path}: cannot be read ({size:,} bytes; {reason}): it is torn, or no file that torch "
            "has written; copy it again, or take another checkpoint"
        ) from error
