"""The run's last weights: ``adapter/`` (LoRA, PEFT's format) or ``model/`` (full parameters).

Written aside, read back and compared, then moved into place.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from glmforge.adapters import save_adapter
from glmforge.config.overrides import read_json_map
from glmforge.config.paths import weight_problems
from glmforge.data.prepared import sha256_of
from glmforge.distributed.collectives import Ranks
from glmforge.distributed.zero import gather_state
from glmforge.errors import ExportError
from glmforge.export.base_print import copy_base_print
from glmforge.export.manifest import problem_of
from glmforge.models.generation import write_stops
from glmforge.models.progress import no_progress_bars


def write_adapter(model: Any, directory: Path, ranks: Ranks, run: Path) -> list[str]:
    """Gather the trained LoRA weights and write them on rank 0; a collective.

    Args:
        model: the wrapped model.
        directory: of the adapter.
        ranks: all ranks.
        run: the run directory, whose base.json goes along.

    Returns:
        Sentences the user should read (rank 0).
    """
    weights = gather_state(model, only_trainable=True, keep=ranks.is_main)
    if weights is None:
        return []
    notes = save_adapter(model, weights, directory)
    copy_base_print(run, directory)
    return notes


def write_model(model: Any, tokenizer: Any, directory: Path, ranks: Ranks) -> None:
    """Gather all weights and write a whole model directory on rank 0; a collective.

    Raises:
        ExportError: the file read back differs from the weights in memory.
    """
    weights = gather_state(model, only_trainable=False, keep=ranks.is_main)
    if weights is None:
        return
    write_stops(model, tokenizer)
    with no_progress_bars():
        model.save_pretrained(str(directory), state_dict=dict(weights))  # which it empties
    tokenizer.save_pretrained(str(directory))
    compare_files(directory, weights)


def lost_weights(directory: Path) -> str | None:
    """Say what of a finished run's ``adapter/`` or ``model/`` is no longer there, if anything."""
    if not directory.is_dir():
        return f"{directory} is not there"
    names: tuple[str, ...] = ("adapter_config.json", "adapter_model.safetensors")
    if directory.name != "adapter":
        names = ("config.json",)
    lost = [f"has no {name}" for name in names if not (directory / name).is_file()]
    if directory.name != "adapter":
        lost += weight_problems(directory)
    return f"{directory} {lost[0]}" if lost else None


def seal_weights(directory: Path) -> dict[str, dict[str, Any]]:
    """Return each weight file of ``adapter/`` or ``model/`` with its bytes and sha256."""
    return {
        path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
        for path in sorted(directory.glob("*.safetensors"))
    }


def changed_weights(directory: Path, written: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Say which weight files of a finished run are not as it wrote them, or torn configs.

    Args:
        directory: ``adapter/`` or ``model/``.
        written: what `seal_weights` returned then.
    """
    found = [problem_of(directory / name, written[name]) for name in sorted(written)]
    for path in (directory / "adapter_config.json", directory / "config.json"):
        _, problem = read_json_map(path) if path.is_file() else ({}, None)
        found.append(f"{path}: {problem}" if problem else None)
    return [problem for problem in found if problem is not None]


def compare_files(directory: Path, weights: Mapping[str, torch.Tensor]) -> None:
    """Read every safetensors file of `directory` back and compare it with `weights`.

    A tensor may be absent from the files only when another name holds the same values (tied).

    Raises:
        ExportError: the tensors that differ or are missing.
    """
    problems, seen = [], set()
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                seen.add(name)
                if name not in weights or not _same_bytes(file.get_tensor(name), weights[name]):
                    problems.append(f"{path}: {name} is not what was trained")
    for name in weights.keys() - seen:
        twins = (other for other in seen if weights[other].shape == weights[name].shape)
        if not any(_same_bytes(weights[other], weights[name]) for other in twins):
            problems.append(f"{directory}: {name} was not written")
    if problems:
        raise ExportError(problems)


def _same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Compare bit by bit, so that a weight that is not a number equals itself."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    raw = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other))
    return torch.equal(*raw)


def replace_directory(temporary: Path, final: Path) -> None:
    """Move a finished directory into place, over an older one of the same name."""
    old = final.with_name(f".old-{final.name}")
    if old.exists():
        shutil.rmtree(old)
    if final.exists():
        final.rename(old)
    temporary.rename(final)
    if old.exists():
        shutil.rmtree(old)
