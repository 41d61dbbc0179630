"""Reads ``.bin`` files of tensors (``pytorch_model.bin``, ``adapter_model.bin``), running nothing.

Owns `read_bin`, and the words for files that cannot be read and tensors that cannot be used.
torch's ``weights_only`` builds tensors and refuses everything else; what is left is checked to be
one flat map of names to tensors.
"""

import pickle
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glmforge.errors import GlmForgeError

_ZIP, _PICKLES = b"PK\x03\x04", (b"\x80\x02", b"\x80\x04", b"\x80\x05")


def read_bin(file: Path, error: type[GlmForgeError]) -> dict[str, Tensor]:
    """Return the tensors of a ``.bin`` file, mapped from it where its format allows that.

    Args:
        file: as torch.save has written it, in the format of today or of before torch 1.6.
        error: the class to raise.

    Raises:
        error: the file is torn, could run code, or holds something else than tensors.
    """
    try:
        # Files older than torch 1.6 are no zip archives and cannot be mapped into memory.
        mapped = zipfile.is_zipfile(file)
        found = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as cause:
        if "Weights only load failed" in str(cause) and _is_pickle(file):
            raise error(
                f"{file}: holds more than tensors, and reading it could run code: refused. Use "
                "the safetensors files of this model, or convert them where you trust the file"
            ) from cause
        raise error(unreadable(file, cause)) from cause
    except (RuntimeError, EOFError, ValueError, OSError, LookupError) as cause:
        raise error(unreadable(file, cause)) from cause
    return _flat(file, found, error)


def _flat(file: Path, found: Any, error: type[GlmForgeError]) -> dict[str, Tensor]:
    if not isinstance(found, dict):
        raise error(
            f"{file}: holds a {type(found).__name__}, not a map of names to tensors: it is no "
            "weight file; take the one of the model"
        )
    others = {
        str(name): type(value).__name__
        for name, value in found.items()
        if not (isinstance(name, str) and isinstance(value, Tensor))
    }
    if others:
        listed = ", ".join(f"{name!r} ({kind})" for name, kind in sorted(others.items())[:5])
        more = f" and {len(others) - 5} more" if len(others) > 5 else ""
        raise error(
            f"{file}: besides tensors it holds {listed}{more}: it is a training checkpoint, not a "
            "weight file; save its tensors alone (torch.save of the model's state_dict)"
        )
    return found


def _is_pickle(file: Path) -> bool:
    with file.open("rb") as stream:
        start = stream.read(len(_ZIP))
    return start == _ZIP or start[:2] in _PICKLES


def unreadable(file: Path, cause: Exception) -> str:
    """Return what to say of a file whose bytes its reader did not take."""
    with file.open("rb") as stream:
        start = stream.read(64)
    if start.startswith(b"version https://git-lfs"):
        return f"{file}: only a git-lfs pointer; fetch the weights with `git lfs pull`"
    first_line = (str(cause).splitlines() or [type(cause).__name__])[0]
    return (
        f"{file}: cannot be read ({file.stat().st_size:,} bytes; {first_line}): the file is torn "
        "or cut short; download it again"
    )


def refuse_not_finite(
    tensors: Iterable[tuple[str, Tensor]], where: Path | str, error: type[GlmForgeError]
) -> None:
    """Look for weights that are NaN or infinite; reads each tensor once, allocates nothing.

    Args:
        tensors: name and tensor of each, such as ``model.named_parameters()``; what is not stored
            in floating point of 16 bits or more is passed over.
        where: directory or file, for the error.
        error: the class to raise.

    Raises:
        error: there are some; the first tensors are named.
    """
    wrong, total = [], 0
    for name, tensor in tensors:
        total += 1
        if not tensor.is_floating_point() or tensor.dtype.itemsize < 2 or tensor.is_meta:
            continue
        # A sum is finite only where all are; one that overflowed is looked at more closely.
        if not tensor.detach().sum(dtype=torch.float32).isfinite():
            count = int((~tensor.detach().isfinite()).sum())
            if count:
                wrong.append(f"{name} ({count:,} of {tensor.numel():,} values)")
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise error(
            f"{where}: {len(wrong)} of {total} tensors hold NaN or infinity: "
            f"{', '.join(wrong[:3])}{more}: the training that wrote them diverged, or the file is "
            "damaged; take an earlier checkpoint, or download it again"
        )
