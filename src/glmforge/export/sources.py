"""What a user may hand to export: a run, a checkpoint, an adapter or a model directory.

Turns one path into (adapter, base) or whole weights, and says what is missing where it cannot.
`find_source` reads names and small JSON files only, `open_weights` the weights.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from glmforge.config import load_config_file
from glmforge.distributed.zero import consolidated_state
from glmforge.errors import ExportError
from glmforge.models import load_config, load_model, new_model


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The weights found behind a path."""

    adapter: Path | None
    """A PEFT adapter directory, or None for whole weights."""
    model: Path
    """The base of the adapter, the directory with the whole weights, or the base of `shards`."""
    shards: Path | None = None
    """A checkpoint of a full run: whole weights in DeepSpeed's shards."""


def find_source(source: Path, base: Path | None) -> Source:
    """Return the weights that `source` means.

    Args:
        source: a run directory, a checkpoint, an adapter directory or a model directory.
        base: the base model, where it is not at the place the adapter names.

    Raises:
        ExportError: nothing to export there, or the base is not where the adapter says.
    """
    for directory in (source, source / "adapter"):
        if (directory / "adapter_config.json").is_file():
            return Source(adapter=directory, model=base or _base_of(directory))
    for directory in (source / "model", source):
        if (directory / "config.json").is_file():
            if base is not None:
                raise ExportError(
                    f"{source}: holds whole weights, --base {base} would do nothing: leave it out"
                )
            return Source(adapter=None, model=directory)
    if (source / "manifest.json").is_file() and any(source.glob("global_step*")):
        return Source(adapter=None, model=base or _base_of_run(source), shards=source)
    raise ExportError(
        f"{source}: neither a finished run (adapter/ or model/), nor one of its checkpoints, "
        f"nor an adapter, nor a model directory{_hint(source)}"
    )


def _hint(source: Path) -> str:
    if not source.exists():
        return ": it does not exist"
    if (source / "checkpoints").is_dir():
        return ": the run has not ended; give one of its checkpoints, or go on with --resume auto"
    return ""


def _base_of(adapter: Path) -> Path:
    """Return the base directory an adapter names, where it can be read."""
    path = adapter / "adapter_config.json"
    named = json.loads(path.read_text(encoding="utf-8")).get("base_model_name_or_path") or ""
    if not (Path(named) / "config.json").is_file():
        raise ExportError(
            f"{path}: its base model {named!r} is not a model directory here: give it with "
            "--base DIR"
        )
    return Path(named)


def _base_of_run(checkpoint: Path) -> Path:
    """Return the model directory that the run of a checkpoint began from."""
    config = checkpoint.parent.parent / "config.yaml"
    if not config.is_file():
        raise ExportError(
            f"{checkpoint}: the run's config.yaml is not two folders up, so its base model is not "
            "known: give it with --base DIR"
        )
    named = load_config_file(config).model.model_name_or_path
    if not (Path(named) / "config.json").is_file():
        raise ExportError(
            f"{config}: its model {named!r} is not a model directory here: give it with --base DIR"
        )
    return Path(named)


def open_weights(found: Source) -> Any:
    """Return the whole weights of a source as a model, in fp32 on the CPU.

    Raises:
        ExportError: a checkpoint's shards are damaged, or their names are not the model's.
    """
    if found.shards is None:
        return load_model(found.model, dtype=torch.float32)
    tag = next(iter(found.shards.glob("global_step*"))).name
    state = consolidated_state(found.shards, tag)
    model = new_model(load_config(found.model), dtype=torch.float32)
    outcome = model.load_state_dict(state, strict=False)
    tied = set(getattr(model, "all_tied_weights_keys", ()) or ())
    missing = [name for name in outcome.missing_keys if name not in tied]
    if missing or outcome.unexpected_keys:
        example = ", ".join((missing or outcome.unexpected_keys)[:3])
        raise ExportError(
            f"{found.shards}: {len(missing)} tensors are missing and "
            f"{len(outcome.unexpected_keys)} are not the model's (for example {example})"
        )
    model.tie_weights()
    return model.eval()
