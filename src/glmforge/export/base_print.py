"""base.json: samples of the weights that an adapter was trained on, so that no other base passes.

Shapes alone do not tell one training's weights from another's. Training writes the file into the
run and into every adapter directory (PEFT reads only its own two files); whoever puts an adapter
on a base compares here. 16 numbers of each tensor are read, whatever the shards and the dtype:
numbers are compared in the coarser of the two formats that they were stored in.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from glmforge.bin_files import read_bin
from glmforge.errors import AdapterError, ModelError
from glmforge.models import load_config
from glmforge.models.hub import resolve_directory
from glmforge.models.layouts import MODULES, chatglm_name, find_place, glm_names
from glmforge.models.weights import stored_tensors

BASE_PRINT = "base.json"
_RUN = 8
"""Numbers in a row, at a third and at two thirds of each tensor."""
_MOST = 512
"""Tensors sampled at most: of more, every second, third, ... by name."""
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A few numbers of one tensor."""

    shape: tuple[int, ...]
    values: Tensor
    """fp32, [n]."""


def sample_of(tensor: Tensor) -> Sample:
    """Return the numbers at fixed places of a tensor; only those are read from a mapped file."""
    flat = tensor.reshape(-1)
    count = flat.numel()
    if count > 2 * _RUN:
        starts = (count // 3, min(2 * count // 3, count - _RUN))
        flat = torch.cat([flat[start : start + _RUN] for start in starts])
    return Sample(shape=tuple(tensor.shape), values=flat.float().clone())


def base_samples(base: Path, names: Sequence[str] | None = None) -> dict[str, Sample]:
    """Return samples of a model directory's tensors.

    Args:
        base: with weights.
        names: of the tensors wanted, those that are there; None: as many as a print has.

    Raises:
        ModelError: the weight files are not there or damaged.
    """
    table = stored_tensors(base)
    step = max(1, -(-len(table) // _MOST))
    wanted = sorted(table)[::step] if names is None else [name for name in names if name in table]
    files: dict[Path, list[str]] = {}
    for name in wanted:
        files.setdefault(table[name].file, []).append(name)
    found = {name: sample for file, part in files.items() for name, sample in _read(file, part)}
    return {name: found[name] for name in wanted}


def _read(file: Path, names: Sequence[str]) -> list[tuple[str, Sample]]:
    if file.suffix == ".safetensors":
        with safe_open(file, framework="pt") as opened:
            return [(name, sample_of(opened.get_tensor(name))) for name in names]
    tensors = read_bin(file, ModelError)
    return [(name, sample_of(tensors[name])) for name in names]


def write_base_print(base: str | Path, directory: Path) -> None:
    """Write base.json of a model into a directory.

    Args:
        base: model directory or hub id, as the user names it.
        directory: exists.
    """
    _write(directory / BASE_PRINT, str(base), base_samples(resolve_directory(base)))


def _write(path: Path, base: str, samples: Mapping[str, Sample]) -> None:
    rows = (
        f"  {json.dumps(name)}: {json.dumps({'shape': each.shape, 'values': _numbers(each)})}"
        for name, each in samples.items()
    )
    head = f'{{\n "format": {_FORMAT},\n "base": {json.dumps(base, ensure_ascii=False)},\n'
    text = f'{head} "tensors": {{\n' + ",\n".join(rows) + "\n }\n}\n"
    path.write_text(text, encoding="utf-8")


def _numbers(sample: Sample) -> list[float]:
    # Nine digits give every fp32 number back.
    return [float(f"{value:.9g}") for value in sample.values.tolist()]


def _stored(path: Path) -> tuple[str, dict[str, Sample]]:
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != _FORMAT:
            raise AdapterError(
                f"{path}: format {found['format']}, this program reads {_FORMAT}: use the newer "
                "glmforge that wrote it"
            )
        samples = {
            name: Sample(shape=tuple(each["shape"]), values=torch.tensor(each["values"]))
            for name, each in found["tensors"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise AdapterError(
            f"{path}: cannot be read ({type(error).__name__}: {error}): copy it from the run "
            "again; without it the base cannot be checked"
        ) from error
    return str(found["base"]), samples


class BaseState(StrEnum):
    """What is known of an adapter's base; the values end "the base's weights are ..."."""

    SAME = "those that the adapter was trained on"
    OTHER = "not those that the adapter was trained on (--other-base)"
    UNCHECKED = "perhaps not those that the adapter was trained on: base.json does not tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseCheck:
    """An adapter's base compared with the one that it was trained on."""

    state: BaseState
    note: str | None
    """A sentence for people, where the base is not known to be the same."""


def check_base(adapter: Path, base: Path, *, other_base: bool = False) -> BaseCheck:
    """Compare a base with the one that an adapter was trained on.

    Args:
        adapter: a directory that should hold base.json.
        base: a model directory.
        other_base: let another base pass, with a note.

    Raises:
        AdapterError: it is another base, or base.json cannot be read.
        ModelError: the base's files are missing or damaged.
    """
    path = adapter / BASE_PRINT
    if not path.is_file():
        return BaseCheck(
            state=BaseState.UNCHECKED,
            note=f"the base cannot be checked: {adapter} has no {BASE_PRINT} (made elsewhere, or "
            f"by an older version): whether it was trained on {base} is not known",
        )
    if not any(any(base.glob(pattern)) for pattern in ("*.safetensors", "*.bin")):
        return BaseCheck(
            state=BaseState.UNCHECKED,
            note=f"the base cannot be checked: {base} has no weights",
        )
    load_config(base)  # says more of a base that is of no use, such as an int4 export
    name, samples = _stored(path)
    here = base_samples(base, list(samples))
    common = [each for each in samples if each in here]
    if not common:
        return BaseCheck(
            state=BaseState.UNCHECKED,
            note=f"the base cannot be checked: {base} has none of the tensor names in {path} "
            f"(of {name})",
        )
    other = [each for each in common if not same_numbers(samples[each], here[each])]
    if not other:
        return BaseCheck(state=BaseState.SAME, note=None)
    first = other[0]
    what = (
        f"{adapter}: {base} is not the base it was trained on ({name}): {len(other)} of "
        f"{len(common)} tensors differ, the first is {first}: "
        f"{_difference(samples[first], here[first])}"
    )
    if other_base:
        return BaseCheck(state=BaseState.OTHER, note=f"{what}; used all the same (--other-base)")
    raise AdapterError(
        f"{what}. Give that base with --base DIR; `glmforge export {adapter} OUT --base {base} "
        "--other-base` writes it for this one knowingly"
    )


def _difference(trained: Sample, here: Sample) -> str:
    if trained.shape != here.shape:
        return (
            f"{list(trained.shape)} in training and {list(here.shape)} here (a base of another "
            "size)"
        )
    at = int((trained.values - here.values).abs().argmax())
    return f"{trained.values[at]:.6g} in training and {here.values[at]:.6g} here"


def same_numbers(one: Sample, other: Sample) -> bool:
    """Whether two samples are of the same tensor, at most stored in another dtype."""
    if one.shape != other.shape or one.values.shape != other.values.shape:
        return False
    a, b = one.values, other.values
    formats = {_format_of(a), _format_of(b)}
    if formats == {torch.float16, torch.bfloat16}:  # neither holds the other
        return torch.allclose(a, b, rtol=2**-7, atol=2**-23, equal_nan=True)
    coarser = min(formats, key=_FINENESS.index)
    return torch.equal(_rounded(a, coarser), _rounded(b, coarser))


_FINENESS = (torch.bfloat16, torch.float16, torch.float32)


def _format_of(values: Tensor) -> torch.dtype:
    """The coarsest format that holds the numbers."""
    return next(
        dtype for dtype in _FINENESS if torch.equal(_rounded(values, dtype), _known(values))
    )


def _rounded(values: Tensor, dtype: torch.dtype) -> Tensor:
    return _known(values.to(dtype).float())


def _known(values: Tensor) -> Tensor:
    return torch.nan_to_num(values, nan=0.0)


def copy_base_print(source: Path | None, target: Path) -> None:
    """Copy base.json along with an adapter, where there is one."""
    if source is not None and (source / BASE_PRINT).is_file():
        shutil.copyfile(source / BASE_PRINT, target / BASE_PRINT)


def convert_base_print(directory: Path, layout: str) -> None:
    """Put base.json of a directory under the names of the other layout ("chatglm", "transformers").

    The query, key and value weights, fused in one layout only, are left out.
    """
    path = directory / BASE_PRINT
    if not path.is_file():
        return
    name, samples = _stored(path)
    converted = {}
    for old, sample in samples.items():
        place = find_place(old, layout="glm" if layout == "chatglm" else "chatglm")
        if place is not None and len(MODULES[place.row][1]) == 1:
            new = chatglm_name(place) if layout == "chatglm" else glm_names(place)[0]
            converted[new] = sample
    _write(path, name, converted)
