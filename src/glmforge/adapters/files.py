"""An adapter's two files, read and judged before any model is opened.

Owns what can be said of the files alone: a configuration written by a newer PEFT, tensors that are
empty (saved under ZeRO-3 without gathering) or all zero, a rank that is not the stated one, and
the two spellings of names that other programs leave. Whether they fit a model is lora.py's.
"""

import dataclasses
import json
import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from glmforge.bin_files import read_bin, refuse_not_finite, unreadable
from glmforge.errors import AdapterError

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
BIN_NAME = "adapter_model.bin"
"""What PEFT wrote before 0.7."""
_PREFIX = "base_model.model."
_NAMED = re.compile(r"\.(lora_A|lora_B|lora_embedding_A|lora_embedding_B)\.[^.]+(\.weight)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFiles:
    """What the two files of an adapter directory hold."""

    path: Path
    """The weights file."""
    config: LoraConfig
    tensors: Mapping[str, torch.Tensor]


def read_adapter(directory: Path) -> AdapterFiles:
    """Read an adapter directory and check what needs no model.

    Raises:
        AdapterError: a file is missing or damaged, made by a newer PEFT, holds empty tensors,
            NaN or infinity, or its rank is not the one that adapter_config.json states.
    """
    path = weights_path(directory)
    config = read_adapter_config(directory / CONFIG_NAME)
    if path.suffix == ".bin":
        tensors = read_bin(path, AdapterError)
    else:
        try:
            tensors = load_file(path)
        except (SafetensorError, OSError) as error:
            raise AdapterError(unreadable(path, error)) from error
    _refuse_empty(path, tensors)
    refuse_not_finite(tensors.items(), path, AdapterError)
    refuse_other_rank(path, directory / CONFIG_NAME, config, tensors)
    return AdapterFiles(path=path, config=config, tensors=tensors)


def weights_path(directory: Path) -> Path:
    """Return the weights file of an adapter directory: safetensors, else PEFT's older ``.bin``.

    Raises:
        AdapterError: one of the two files is not there.
    """
    found = next((p for n in (WEIGHTS_NAME, BIN_NAME) if (p := directory / n).is_file()), None)
    if found is None or not (directory / CONFIG_NAME).is_file():
        missing = CONFIG_NAME if found else f"{WEIGHTS_NAME} and no {BIN_NAME}"
        raise AdapterError(f"{directory}: no {missing} in it: not an adapter directory")
    return found


def read_adapter_config(path: Path) -> LoraConfig:
    """Return the LoRA configuration of a file, whatever PEFT wrote it.

    Keys that the installed PEFT does not know are left out where they are null, false or empty
    (a warning lists them): a newer PEFT writes all its defaults.

    Raises:
        AdapterError: not a LoRA configuration, an unknown key that has a value, or a value that
            is no number where one is needed.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise AdapterError(f"{path}: cannot be read ({error})") from error
    kind = values.get("peft_type", "LORA") if isinstance(values, dict) else None
    if kind != "LORA":
        raise AdapterError(f"{path}: peft_type is {kind!r}; only LORA adapters are opened here")
    known = {each.name for each in dataclasses.fields(LoraConfig) if each.init}
    unknown = {key: value for key, value in values.items() if key not in known}
    meant = sorted(key for key, value in unknown.items() if value not in (None, False, "", [], {}))
    if meant:
        raise AdapterError(
            f"{path}: {', '.join(f'{key}={unknown[key]!r}' for key in meant)}: the installed PEFT "
            "does not know it: the adapter was made with a newer version; upgrade (pip install -U "
            "peft), or remove it knowingly"
        )
    if unknown:
        warnings.warn(
            f"{path}: left out {', '.join(sorted(unknown))}: unknown to the installed PEFT, and "
            "empty",
            stacklevel=2,
        )
    _check_values(path, values)
    return LoraConfig(**{key: value for key, value in values.items() if key in known})


def _check_values(path: Path, values: Mapping[str, Any]) -> None:
    """Refuse numbers that are text, not finite or out of range: PEFT fails on them much later."""
    ranks = {"r": values.get("r", 8)} | _pattern(values, "rank_pattern")
    scales = {"lora_alpha": values.get("lora_alpha", 8)} | _pattern(values, "alpha_pattern")
    problems = [
        f"{path}: {name} is {value!r}: write a whole number above 0"
        for name, value in ranks.items()
        if type(value) is not int or value < 1
    ]
    numbers = scales | {"lora_dropout": values.get("lora_dropout", 0.0)}
    problems += [
        f"{path}: {name} is {value!r}: write a number"
        for name, value in numbers.items()
        if type(value) not in (int, float) or not math.isfinite(value)
    ]
    for name in ("target_modules", "modules_to_save"):
        value = values.get(name)
        if isinstance(value, list) and all(isinstance(each, str) for each in value):
            continue
        if value is not None and not (isinstance(value, str) and name == "target_modules"):
            problems.append(f"{path}: {name} is {value!r}: write a list of module names")
    if problems:
        raise AdapterError(problems)


def _pattern(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = values.get(name) or {}
    if not isinstance(found, dict):
        return {name: found}
    return {f"{name}[{key!r}]": value for key, value in found.items()}


def zero_alpha(config: LoraConfig) -> bool:
    """Say whether every lora_alpha is zero, so that the adapter changes nothing."""
    return not any((config.lora_alpha, *(config.alpha_pattern or {}).values()))


def _refuse_empty(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    if not tensors:
        raise AdapterError(f"{path}: holds no tensor")
    empty = [name for name, tensor in tensors.items() if tensor.numel() == 0]
    if empty:
        raise AdapterError(
            f"{path}: {len(empty)} of {len(tensors)} LoRA tensors are empty: partitioned weights "
            "were saved without gathering. Take the adapter from the sharded checkpoint (the "
            "directory with its global_step folder) instead: glmforge consolidate CHECKPOINT OUT"
        )


def refuse_other_rank(
    path: Path, settings: Path, config: LoraConfig, tensors: Mapping[str, torch.Tensor]
) -> None:
    """Compare the ranks of an adapter's tensors with those of its configuration.

    Args:
        path: where the tensors are from, for the error.
        settings: the file of the configuration, for the error.
        config: as read from it.
        tensors: under the names of PEFT's files.

    Raises:
        AdapterError: a tensor has a rank that the configuration does not state.
    """
    ranks = {
        (tensor.shape[0] if ".lora_A." in name else tensor.shape[1]): name
        for name, tensor in tensors.items()
        if (".lora_A." in name or ".lora_B." in name) and tensor.dim() == 2
    }
    stated = {config.r, *(config.rank_pattern or {}).values()}
    wrong = sorted(rank for rank in ranks if rank not in stated)
    if wrong:
        says = CONFIG_NAME if settings.parent == path.parent else str(settings)
        raise AdapterError(
            f"{path}: {ranks[wrong[0]]} has rank {wrong[0]}, but {says} says r={config.r}: "
            "the two are of different adapters"
        )


def zero_b(tensors: Mapping[str, torch.Tensor]) -> bool:
    """Say whether every lora_B is zero, so that the adapter changes nothing."""
    found = [tensor for name, tensor in tensors.items() if "lora_B" in name]
    return bool(found) and not any(bool(tensor.any()) for tensor in found)


def zero_notes(files: AdapterFiles, name: str) -> list[str]:
    """Say that an adapter's LoRA changes nothing where every lora_B is zero, else nothing."""
    if not zero_b(files.tensors):
        return []
    return [f"{name}: every lora_B of {files.path} is zero: its LoRA changes nothing"]


def peft_names(tensors: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], int]:
    """Return the tensors under the names that PEFT's files have, and how many were renamed.

    Two spellings are known: names of a live model, with the adapter's name (``lora_A.default``),
    as DeepSpeed's shards have them; and names without the prefix ``base_model.model.``.
    """
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        new = name.replace(".modules_to_save.default.", ".").replace(".base_layer.", ".")
        if new.endswith(".lora_magnitude_vector.default.weight"):
            new = new.removesuffix(".default.weight")
        match = _NAMED.search(new)
        # lora_A.weight is right as it is; lora_A.NAME and lora_A.NAME.weight have the name.
        if match and not (match[2] is None and new.endswith(".weight")):
            new = f"{new[: match.start()]}.{match[1]}{match[2] or ''}"
        found[_PREFIX + new.removeprefix(_PREFIX)] = tensor
    return found, sum(1 for old in tensors if old not in found)


def save_adapter_files(
    directory: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write an adapter directory in PEFT's format; `metadata` goes into the weights' header."""
    directory.mkdir(parents=True, exist_ok=True)
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(whole, directory / WEIGHTS_NAME, metadata={"format": "pt", **(metadata or {})})
    text = json.dumps(dict(config), ensure_ascii=False, indent=2) + "\n"
    (directory / CONFIG_NAME).write_text(text, encoding="utf-8")
