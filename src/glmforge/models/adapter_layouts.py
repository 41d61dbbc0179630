"""LoRA adapters between the ``chatglm`` and the ``glm`` layout, exactly, both ways.

Owns the algebra: one adapter on the fused query_key_value is three on query, key and value that
share A and take their rows of B; three are one whose A is stacked and whose B is block-diagonal
(of the same rank again where the three A are equal). Names come from the table in layouts.py.
Works on the tensors and the config map of PEFT's files; reads and writes no file.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from glmforge.errors import AdapterError
from glmforge.models.layouts import (
    MODULES,
    Place,
    chatglm_name,
    find_place,
    fused_rows,
    glm_names,
)

_PREFIX = "base_model.model."
_A, _B = "lora_A.weight", "lora_B.weight"
_PARTS = 3
_FUSED = "query_key_value"
_PATTERNS = ("rank_pattern", "alpha_pattern")

Adapter = tuple[dict[str, Tensor], dict[str, Any]]
"""Tensors and config of an adapter, as PEFT writes them."""


def adapter_to_transformers(
    tensors: Mapping[str, Tensor], adapter_config: Mapping[str, Any], config: Any
) -> Adapter:
    """Return an adapter of the chatglm layout for transformers' Glm model.

    Args:
        tensors: of adapter_model.safetensors.
        adapter_config: of adapter_config.json.
        config: of the base model, either layout (heads and widths are read).

    Raises:
        AdapterError: a tensor is of no module of the table, or ranks differ by pattern.
    """
    _check(adapter_config, "chatglm")
    converted: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        place = _placed(name, "chatglm")
        names = glm_names(place)
        parts: tuple[Tensor, ...] = (tensor,) * len(names)
        if len(names) > 1 and place.leaf != _A:
            parts = tensor.split(fused_rows(config))
        for new, part in zip(names, parts):
            converted[_PREFIX + new] = part.clone()
    return converted, _with_targets(adapter_config, converted, "chatglm")


def adapter_to_chatglm(
    tensors: Mapping[str, Tensor], adapter_config: Mapping[str, Any], config: Any
) -> Adapter:
    """Return an adapter of transformers' Glm model for the chatglm layout.

    Args:
        tensors: of adapter_model.safetensors.
        adapter_config: of adapter_config.json.
        config: of the base model, either layout (heads and widths are read).

    Raises:
        AdapterError: a tensor is of no module of the table, ranks differ by pattern, or a part
            of a fused module that cannot be filled with zeros is not there.
    """
    _check(adapter_config, "glm")
    converted: dict[str, Tensor] = {}
    fused: dict[tuple[int, str], dict[str, dict[int, Tensor]]] = {}
    for name, tensor in tensors.items():
        place = _placed(name, "glm")
        if len(MODULES[place.row][1]) == 1:
            converted[_PREFIX + chatglm_name(place)] = tensor
        else:
            leaves = fused.setdefault((place.row, place.layer), {})
            leaves.setdefault(place.leaf, {})[place.part] = tensor
    shared_a = all(_same_a(leaves) for leaves in fused.values())
    blocks = 1 if shared_a else _num_blocks(fused)
    for (row, layer), leaves in fused.items():
        for leaf, tensor in _fuse(leaves, fused_rows(config), shared_a).items():
            place = Place(row=row, part=0, layer=layer, leaf=leaf)
            converted[_PREFIX + chatglm_name(place)] = tensor
    _refuse_unequal_parts(adapter_config, fused)
    new_config = _with_targets(adapter_config, converted, "glm")
    return converted, _with_rank(new_config, blocks)


def _check(adapter_config: Mapping[str, Any], source: str) -> None:
    known = {name for row in MODULES for name in _short_names(row, source)}
    problems = [
        f"adapter_config.json: {key} names {name!r}; between layouts only ranks and alphas by the "
        "name of a module can be converted"
        for key in _PATTERNS
        for name in adapter_config.get(key) or ()
        if name not in known
    ]
    if adapter_config.get("peft_type", "LORA") != "LORA":
        problems.append(f"adapter_config.json: peft_type {adapter_config['peft_type']} is not LORA")
    if problems:
        raise AdapterError(problems)


def _short_names(row: tuple[str, tuple[str, ...]], layout: str) -> list[str]:
    """Return the last parts of a row's names in a layout."""
    return [name.rsplit(".", 1)[-1] for name in ((row[0],) if layout == "chatglm" else row[1])]


def _refuse_unequal_parts(
    adapter_config: Mapping[str, Any],
    fused: Mapping[tuple[int, str], Mapping[str, Mapping[int, Tensor]]],
) -> None:
    """Refuse parts of one fused module whose rank or alpha a pattern makes unlike."""
    for row in {row for row, _ in fused}:
        names = _short_names(MODULES[row], "glm")
        adapted = {part for (r, _), x in fused.items() if r == row for part in x.get(_A, ())}
        for key in _PATTERNS:
            pattern = adapter_config.get(key) or {}
            if len({pattern.get(names[part]) for part in adapted}) > 1:
                raise AdapterError(
                    f"adapter_config.json: {key} gives {', '.join(names)} different values; the "
                    "fused module has one"
                )


def _placed(name: str, layout: str) -> Place:
    place = find_place(name.removeprefix(_PREFIX), layout=layout)
    if place is None:
        raise AdapterError(f"{name}: of no module that both layouts have; it cannot be converted")
    return place


def _num_blocks(fused: Mapping[tuple[int, str], Mapping[str, Mapping[int, Tensor]]]) -> int:
    found = {len(leaves[_A]) for leaves in fused.values() if _A in leaves}
    if len(found) > 1:
        raise AdapterError(
            "some layers adapt more of q_proj, k_proj and v_proj than others; the fused module has "
            "one rank in all layers"
        )
    return found.pop() if found else 1


def _same_a(leaves: Mapping[str, Mapping[int, Tensor]]) -> bool:
    parts = list(leaves.get(_A, {}).values())
    return len(parts) == _PARTS and all(torch.equal(parts[0], part) for part in parts)


def _fuse(
    leaves: Mapping[str, Mapping[int, Tensor]], rows: tuple[int, ...], shared_a: bool
) -> dict[str, Tensor]:
    fused: dict[str, Tensor] = {}
    for leaf, parts in leaves.items():
        if leaf == _A:
            stacked = [parts[part] for part in sorted(parts)]
            fused[leaf] = stacked[0] if shared_a else torch.cat(stacked)
        elif leaf == _B and not shared_a:
            fused[leaf] = _block_diagonal(parts, rows)
        elif len(parts) == _PARTS:
            fused[leaf] = torch.cat([parts[part] for part in range(_PARTS)])
        else:
            raise AdapterError(
                f"{leaf} of only some of q_proj, k_proj and v_proj: the fused module needs all "
                "three; train them together"
            )
    return fused


def _block_diagonal(parts: Mapping[int, Tensor], rows: tuple[int, ...]) -> Tensor:
    """Put each part's B over its own rows and its own columns; absent parts are zero rows."""
    ranks = {part: parts[part].shape[1] for part in sorted(parts)}
    first = next(iter(parts.values()))
    whole = first.new_zeros(sum(rows), sum(ranks.values()))
    column = 0
    for part, rank in ranks.items():
        row = sum(rows[:part])
        whole[row : row + rows[part], column : column + rank] = parts[part]
        column += rank
    return whole


def _with_targets(
    adapter_config: Mapping[str, Any], tensors: Mapping[str, Tensor], source: str
) -> dict[str, Any]:
    adapted = {
        found.group(1)
        for name in tensors
        if (found := re.search(r"([^.]+)\.lora_(?:A|B|embedding_A|embedding_B)(?:\.|$)", name))
    }
    changed = dict(adapter_config)
    changed["target_modules"] = sorted(adapted)
    saved = adapter_config.get("modules_to_save")
    if saved:
        renamed = [new for old in saved for new in _renamed_module(old, source)]
        changed["modules_to_save"] = list(dict.fromkeys(renamed))
    for key in _PATTERNS:
        pattern = adapter_config.get(key) or {}
        if pattern:
            changed[key] = {
                new: value for old, value in pattern.items() for new in _renamed_module(old, source)
            }
    return changed


def _renamed_module(name: str, source: str) -> list[str]:
    target = "glm" if source == "chatglm" else "chatglm"
    for row in MODULES:
        if name in _short_names(row, source):
            return _short_names(row, target)
    raise AdapterError(f"modules_to_save: {name!r} is no module that both layouts have")


def _with_rank(adapter_config: dict[str, Any], blocks: int) -> dict[str, Any]:
    """Raise the rank of the fused module, leaving alpha / rank (or / sqrt(rank)) as it was."""
    if blocks == 1:
        return adapter_config
    ranks = dict(adapter_config.get("rank_pattern") or {})
    alphas = dict(adapter_config.get("alpha_pattern") or {})
    rank = ranks.pop(_FUSED, adapter_config["r"]) * blocks
    growth = math.sqrt(blocks) if adapter_config.get("use_rslora") else blocks
    alpha = alphas.pop(_FUSED, adapter_config["lora_alpha"]) * growth
    alpha = int(alpha) if float(alpha).is_integer() else alpha
    if adapter_config["target_modules"] == [_FUSED]:
        return {**adapter_config, **{key: {} for key in _PATTERNS}, "r": rank, "lora_alpha": alpha}
    return {
        **adapter_config,
        "rank_pattern": {**ranks, _FUSED: rank},
        "alpha_pattern": {**alphas, _FUSED: alpha},
    }
