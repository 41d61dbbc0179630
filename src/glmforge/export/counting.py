"""Counts consolidated tensors against the model they are of, and writes what lies beside them.

The model is built on the meta device: names and shapes, no memory. Frozen tensors that a run left
out of its shards come from the base's own files, where that was asked for.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from safetensors import safe_open
from torch import Tensor
from transformers import GenerationConfig

from glmforge.adapters import check_match, wrap
from glmforge.errors import ExportError, ModelError
from glmforge.export.shards import Place
from glmforge.models import load_config, load_tokenizer
from glmforge.models.foreign import class_for
from glmforge.models.generation import write_stops
from glmforge.models.weights import StoredTensor, stored_tensors, stream_tensors, tied_names


@dataclass(frozen=True, slots=True, kw_only=True)
class InBase:
    """A tensor of the base's own files."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    stored: StoredTensor


def prepared_base(base: Path, dtype: torch.dtype) -> Any:
    """Return the model of a directory's config.json on the meta device."""
    config = load_config(base)
    config.dtype = dtype
    with torch.device("meta"):
        model = class_for(config)(copy.deepcopy(config))
    if (base / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(str(base))
    return model


def count_adapter(
    tensors: Mapping[str, Tensor], config: LoraConfig, base: Path, where: str
) -> None:
    """Compare an adapter's tensors with those that its configuration asks of the base.

    Raises:
        AdapterError: they are not the same.
    """
    model = prepared_base(base, torch.float32)
    wrapped = wrap(model, config, where)
    check_match(wrapped, tensors, where)


def model_places(
    places: Mapping[str, Place], model: Any, base: Path, *, with_base: bool, where: Path
) -> tuple[dict[str, Place | InBase], int]:
    """Return where each tensor of the model lies, in the model's order, and how many in the base.

    Raises:
        ExportError: tensors are missing, unexpected or of another shape; all are named.
    """
    tied = set(tied_names(model))
    expected = {n: tuple(t.shape) for n, t in model.state_dict().items() if n not in tied}
    wanted: dict[str, Place | InBase] = {n: places[n] for n in expected if n in places}
    missing = [name for name in expected if name not in places]
    if missing and with_base:
        stored = stored_tensors(base)
        wanted |= {name: _in_base(name, stored[name]) for name in missing if name in stored}
    problems = [
        f"{where}: {name} is {list(wanted[name].shape)}, the model needs {list(expected[name])}"
        for name in wanted
        if wanted[name].shape != expected[name]
    ]
    lost = [name for name in expected if name not in wanted]
    if lost:
        hint = (
            ""
            if with_base
            else (
                "; where they were frozen and left out of the shards, --with-base takes them from "
                "the base"
            )
        )
        problems.append(f"{where}: {len(lost)} of {len(expected)} tensors are missing: "
                        f"{_some(lost)}{hint}")  # fmt: skip
    ignored = tied | set(dict(model.named_buffers()))
    strange = [n for n in places if n not in expected and n not in ignored and not _computed(n)]
    if strange:
        problems.append(f"{where}: {len(strange)} tensors are not the model's: {_some(strange)}")
    if problems:
        raise ExportError(problems)
    from_base = sum(isinstance(place, InBase) for place in wanted.values())
    return {name: wanted[name] for name in expected}, from_base


def _in_base(name: str, stored: StoredTensor) -> InBase:
    return InBase(name=name, dtype=getattr(torch, stored.dtype), shape=stored.shape, stored=stored)


def _computed(name: str) -> bool:
    """Whether a tensor is a buffer of the vendor's code that ours computes."""
    return name.endswith("rotary_pos_emb.inv_freq") or name.endswith("rotary_emb.inv_freq")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def stored_in_base(place: InBase) -> Tensor:
    """Read one tensor of the base's files."""
    file = place.stored.file
    if file.suffix == ".safetensors":
        with safe_open(file, framework="pt") as opened:
            return opened.get_tensor(place.name)
    return dict(stream_tensors(file.parent))[place.name]


def write_settings(model: Any, base: Path, target: Path, dtype: torch.dtype) -> list[str]:
    """Write config.json, generation config and tokenizer beside the weights.

    Returns:
        Sentences on what could not be written.
    """
    config = model.config
    config.dtype = dtype
    config.architectures = [type(model).__name__]
    config.save_pretrained(str(target))
    try:
        tokenizer = load_tokenizer(base)
    except ModelError as error:
        model.generation_config.save_pretrained(str(target))
        return [f"no tokenizer was written: {error}"]
    write_stops(model, tokenizer)
    model.generation_config.save_pretrained(str(target))
    tokenizer.save_pretrained(str(target))
    return []
