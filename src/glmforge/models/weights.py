"""Weight files of a model directory: found, checked before use, read shard by shard.

Owns the reading of safetensors and ``.bin`` checkpoints, single or sharded. Pickles are read with
``weights_only`` and never run code. `check_weights` compares names and shapes with a model before
anything is loaded; `fill` copies shard by shard, so that memory holds one shard besides the model
and a partitioned model is never whole in one process.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from glmforge.bin_files import read_bin, unreadable
from glmforge.errors import ModelError

_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_SINGLE = ("model.safetensors", "pytorch_model.bin")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor of a checkpoint: its shape, torch's name of its dtype, the file that holds it."""

    shape: tuple[int, ...]
    dtype: str
    file: Path


def weight_files(directory: Path) -> tuple[Path, ...]:
    """Return the weight files of a directory, safetensors before ``.bin``.

    Raises:
        ModelError: there are none, an index is damaged, or shards it names are not there.
    """
    for single in _SINGLE:
        index = directory / f"{single}.index.json"
        if index.is_file():
            return _indexed_files(index)
        if (directory / single).is_file():
            return (directory / single,)
    raise ModelError(
        f"{directory}: no weights there ({' or '.join(_SINGLE)}, or their .index.json with "
        "shards): download the model again, weights included"
    )


def _indexed_files(index: Path) -> tuple[Path, ...]:
    files = tuple(index.parent / name for name in sorted(set(_weight_map(index).values())))
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ModelError(
            f"{index.parent}: {len(missing)} of {len(files)} shards are not there: "
            f"{', '.join(missing)}; download them"
        )
    return files


def _weight_map(index: Path) -> dict[str, str]:
    """Return which shard an index says that each tensor is in.

    Raises:
        ModelError: it is not such a file, or a shard lies in another directory.
    """
    try:
        keys = json.loads(index.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{index}: not a weight index ({error}); download it again") from error
    found = keys.get("weight_map") if isinstance(keys, dict) else None
    if not isinstance(found, dict) or not found:
        raise ModelError(f"{index}: not a weight index (no weight_map); download it again")
    wrong = [
        f"{index}: weight_map puts {name} into {shard!r}, which is no file name; download it again"
        for name, shard in found.items()
        if not isinstance(shard, str) or PurePath(shard).name != shard
    ]
    if not isinstance(keys.get("metadata"), dict):
        wrong.append(f'{index}: has no "metadata", which transformers needs; add "metadata": {{}}')
    if wrong:
        raise ModelError(wrong)
    return found


def stored_tensors(directory: Path) -> dict[str, StoredTensor]:
    """Return name → shape and file of every tensor, reading headers only where that is possible.

    Raises:
        ModelError: a file is missing, torn, or a pickle of something else than tensors.
    """
    table: dict[str, StoredTensor] = {}
    problems: list[str] = []
    files = weight_files(directory)
    for file in files:
        for name, tensor in _tensors_of(file):
            if name in table:
                problems.append(
                    f"{directory}: {name} is in two shards, {table[name].file.name} and "
                    f"{file.name}: they are of different downloads; download the model again"
                )
            table[name] = tensor
    for single in _SINGLE:
        index = directory / f"{single}.index.json"
        if index.is_file() and files[0].suffix == PurePath(single).suffix:
            problems += [
                f"{index}: names {name} in {shard}, and no shard holds it; download the model again"
                for name, shard in _weight_map(index).items()
                if name not in table
            ]
    if problems:
        raise ModelError(problems)
    return table


def _tensors_of(file: Path) -> Iterator[tuple[str, StoredTensor]]:
    if file.suffix == ".safetensors":
        with _opened(file) as shard:
            for name in shard.keys():  # noqa: SIM118 (safe_open is no mapping)
                header = shard.get_slice(name)
                dtype = _DTYPES.get(header.get_dtype(), header.get_dtype())
                yield (
                    name,
                    StoredTensor(shape=tuple(header.get_shape()), dtype=dtype, file=file),
                )
    else:
        for name, tensor in read_bin(file, ModelError).items():
            dtype = str(tensor.dtype).removeprefix("torch.")
            yield name, StoredTensor(shape=tuple(tensor.shape), dtype=dtype, file=file)


def stream_tensors(directory: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of a checkpoint, one shard open at a time.

    Raises:
        ModelError: as `stored_tensors`.
    """
    for file in weight_files(directory):
        if file.suffix == ".safetensors":
            with _opened(file) as shard:
                for name in shard.keys():  # noqa: SIM118 (safe_open is no mapping)
                    yield name, shard.get_tensor(name)
        else:
            yield from read_bin(file, ModelError).items()


def _opened(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ModelError(unreadable(file, error)) from error


def check_weights(model: Any, table: Mapping[str, StoredTensor], directory: Path) -> None:
    """Compare a checkpoint with a model (one on the meta device will do).

    Raises:
        ModelError: tensors are missing, unexpected, of another shape or hold no floating point
            numbers; all are listed.
    """
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    ignored = [re.compile(p) for p in model._keys_to_ignore_on_load_unexpected or ()]
    tied = set(tied_names(model))
    missing = [name for name in expected if name not in table and name not in tied]
    unexpected = [
        name
        for name in table
        if name not in expected and not any(pattern.search(name) for pattern in ignored)
    ]
    misshaped = [
        f"{name} {list(table[name].shape)} instead of {list(shape)} ({table[name].file.name})"
        for name, shape in expected.items()
        if name in table and table[name].shape != shape
    ]
    integers = [
        f"{name} {table[name].dtype} ({table[name].file.name})"
        for name in expected
        if name in table and table[name].dtype not in _DTYPES.values()
    ]
    problems = [
        f"{directory}: {len(names)} tensors {what}: {', '.join(sorted(names))}"
        for what, names in (
            ("are missing", missing),
            (f"are not of {type(model).__name__}", unexpected),
            ("have another shape than config.json says", misshaped),
            ("are not stored in 16, 32 or 64 bit floating point", integers),
        )
        if names
    ]
    if problems:
        raise ModelError(problems)


def tied_names(model: Any) -> tuple[str, ...]:
    """Return the names of tensors that the model takes from others (a tied head)."""
    if not getattr(model.config, "tie_word_embeddings", False):
        return ()
    return tuple(model._tied_weights_keys or ())


def fill(model: Any, directory: Path, assign: Callable[[torch.nn.Parameter, Tensor], None]) -> None:
    """Hand every stored tensor to ``assign`` with its parameter, shard by shard.

    ``assign`` copies, whatever the parameter is (whole, or one rank's part). Names are those of
    the model; tied and ignored tensors are passed over. Check with `check_weights` before.
    """
    parameters = dict(model.named_parameters())
    tied = set(tied_names(model))
    for name, tensor in stream_tensors(directory):
        if name in parameters and name not in tied:
            assign(parameters[name], tensor)
