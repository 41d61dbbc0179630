"""Writes safetensors files tensor by tensor, so that memory holds one tensor, and reads them back.

safetensors' own writer wants every tensor of a file at once. The format is a length, a JSON header
and the bytes (github.com/huggingface/safetensors, "Format"). What was written is compared with
what is read back by checksum, after the files were closed.
"""

import json
import math
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from glmforge.errors import ExportError

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A tensor to be written: its dtype and shape, and how it is had when its turn comes."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    read: Callable[[], Tensor]

    @property
    def num_bytes(self) -> int:
        """Its size in the file."""
        return math.prod(self.shape) * self.dtype.itemsize


def parse_size(text: str) -> int:
    """Return the bytes of a size such as "5GB" or "300MiB".

    Raises:
        ExportError: it is no size.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]i?B)\s*", text, re.IGNORECASE)
    size = 0 if found is None else int(float(found[1]) * _UNITS[found[2].upper()])
    if size < 1:
        raise ExportError(f"--max-shard-size {text}: write a number and KB, MB or GB, such as 5GB")
    return size


def write_tensors(
    directory: Path, tensors: Mapping[str, Planned], *, max_shard_size: str, stem: str = "model"
) -> dict[str, Any]:
    """Write `tensors` in their order as ``stem.safetensors``, or as shards and an index.

    Args:
        directory: exists.
        tensors: name → tensor; each is read once, written and let go.
        max_shard_size: no file is larger, unless one tensor alone is.
        stem: "model" or "adapter_model".

    Returns:
        name → checksum of the bytes, for `check_written`.
    """
    files = _split(tensors, parse_size(max_shard_size))
    checksums: dict[str, Any] = {}
    names: dict[str, str] = {}
    for number, group in enumerate(files, 1):
        file = f"{stem}.safetensors"
        if len(files) > 1:
            file = f"{stem}-{number:05d}-of-{len(files):05d}.safetensors"
        checksums |= _write_file(directory / file, {name: tensors[name] for name in group})
        names |= dict.fromkeys(group, file)
    if len(files) > 1:
        total = sum(tensor.num_bytes for tensor in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(names.items()))}
        path = directory / f"{stem}.safetensors.index.json"
        path.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return checksums


def check_written(directory: Path, checksums: Mapping[str, Any]) -> None:
    """Read every safetensors file of `directory` back, one tensor at a time.

    Raises:
        ExportError: every tensor that is absent or differs from what was written.
    """
    seen, problems = set(), []
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                seen.add(name)
                if _checksum(file.get_tensor(name)) != checksums.get(name):
                    problems.append(f"{path}: {name} is not what was written")
    problems += [f"{directory}: {name} was not written" for name in checksums.keys() - seen]
    if problems:
        raise ExportError(problems)


def _split(tensors: Mapping[str, Planned], limit: int) -> list[list[str]]:
    files: list[list[str]] = [[]]
    size = 0
    for name, tensor in tensors.items():
        if files[-1] and size + tensor.num_bytes > limit:
            files.append([])
            size = 0
        files[-1].append(name)
        size += tensor.num_bytes
    return files


def _write_file(path: Path, tensors: Mapping[str, Planned]) -> dict[str, Any]:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.num_bytes],
        }
        offset += tensor.num_bytes
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    checksums = {}
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, tensor in tensors.items():
            value = tensor.read().to(tensor.dtype).contiguous()
            if tuple(value.shape) != tensor.shape:
                raise ExportError(f"{name}: {list(value.shape)} instead of {list(tensor.shape)}")
            checksums[name] = _checksum(value)
            file.write(_bytes_of(value))
    return checksums


def _bytes_of(tensor: Tensor) -> memoryview:
    if not tensor.numel():
        return memoryview(b"")
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())


def _checksum(tensor: Tensor) -> tuple[int, str, tuple[int, ...]]:
    """Return what tells a damaged copy from a good one: CRC-32, dtype, shape."""
    return zlib.crc32(_bytes_of(tensor.contiguous())), str(tensor.dtype), tuple(tensor.shape)
