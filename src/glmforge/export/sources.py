"""What a user may hand to export: a run, a checkpoint, an adapter or a model directory.

Turns one path into (adapter, base) or whole weights, and says what is missing where it cannot.
Reads names and small JSON files only; ``merge`` opens the weights.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from glmforge.errors import ExportError


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The weights found behind a path."""

    adapter: Path | None
    """A PEFT adapter directory, or None for whole weights."""
    model: Path
    """The base of the adapter, or the directory with the whole weights."""


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
    raise ExportError(
        f"{source}: neither a finished run (adapter/ or model/), nor a checkpoint with adapter/, "
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
