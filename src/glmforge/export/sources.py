"""What a user may hand to export: a run, a checkpoint, an adapter or a model directory.

Turns one path into (adapter, base) or whole weights, and says what is missing where it cannot.
`find_source` reads names, small JSON files and samples of the base (base_print.py) only,
`open_weights` the weights.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from glmforge.bin_files import refuse_not_finite
from glmforge.config import load_config_file
from glmforge.errors import ExportError, ModelError
from glmforge.export.base_print import BaseCheck, check_base
from glmforge.export.counting import model_places
from glmforge.export.manifest import MANIFEST, named_by, verify
from glmforge.export.shards import Place, find_tag, open_shards
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
    base_check: BaseCheck | None = None
    """What is known of `model` as the base of the adapter; its note is for people."""


def find_source(source: Path, base: Path | None, *, other_base: bool = False) -> Source:
    """Return the weights that `source` means; an adapter's base is compared with base.json.

    Args:
        source: a run directory, a checkpoint, an adapter directory or a model directory.
        base: the base model, where it is not at the place the adapter names.
        other_base: let a base pass that the adapter was not trained on.

    Raises:
        AdapterError: the base is not the one that the adapter was trained on.
        ExportError: nothing to export there, or the base is not where the adapter says.
    """
    for directory in (source, source / "adapter"):
        if (directory / "adapter_config.json").is_file():
            model = base or _base_of(directory)
            checked = check_base(directory, model, other_base=other_base)
            return Source(adapter=directory, model=model, base_check=checked)
    if other_base:
        raise ExportError(
            f"{source}: holds no adapter, --other-base would do nothing: leave it out"
        )
    for directory in (source / "model", source):
        if (directory / "config.json").is_file() and not _only_shards(directory):
            if base is not None:
                raise ExportError(
                    f"{source}: holds whole weights, --base {base} would do nothing: leave it out"
                )
            return Source(adapter=None, model=directory)
    if any(source.glob("*/*_model_states.pt")):
        return Source(adapter=None, model=base or _model_of_shards(source), shards=source)
    raise ExportError(
        f"{source}: neither a finished run (adapter/ or model/), nor one of its checkpoints, "
        f"nor an adapter, nor a model directory{_hint(source)}"
    )


def base_notes(found: Source) -> list[str]:
    """What people should know of an adapter's base: that it cannot be checked, or is another."""
    check = found.base_check
    return [] if check is None or check.note is None else [check.note]


def _only_shards(directory: Path) -> bool:
    """Whether a Trainer's checkpoint holds no weights besides DeepSpeed's shards."""
    has_weights = any(directory.glob("*.safetensors")) or any(directory.glob("*.bin"))
    return not has_weights and any(directory.glob("*/*_model_states.pt"))


def _model_of_shards(source: Path) -> Path:
    found = base_of_checkpoint(source)
    if found is None:
        raise ExportError(
            f"{source}: the model that these shards are of is not known here: give its directory "
            "with --base DIR"
        )
    return found


def _hint(source: Path) -> str:
    if not source.exists():
        return ": it does not exist"
    if pointed := named_by(source):
        return pointed
    if (source / "checkpoints").is_dir() and _has_ended(source):
        return (
            ": the run's last weights are gone; --resume auto writes them again from its last "
            "checkpoint, or give one of its checkpoints"
        )
    if (source / "checkpoints").is_dir():
        return ": the run has not ended; give one of its checkpoints, or go on with --resume auto"
    return ""


def _has_ended(run: Path) -> bool:
    """Whether a run's final.json says that it came to its end."""
    try:
        values = json.loads((run / "final.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(values, dict) and values.get("status") == "complete"


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


def base_named_in(adapter_config: Path) -> Path | None:
    """Return the base that an adapter_config.json names, where it is a model directory here."""
    values = json.loads(adapter_config.read_text(encoding="utf-8"))
    named = values.get("base_model_name_or_path")
    return Path(named) if named and (Path(named) / "config.json").is_file() else None


def base_of_checkpoint(top: Path) -> Path | None:
    """Return the model directory that a checkpoint of shards belongs to, where it tells.

    transformers' Trainer writes config.json beside the shards, or an adapter_config.json that
    names the base; a run of ours has it in its config.yaml.
    """
    if (top / "config.json").is_file():
        return top
    for directory in (top, top / "adapter"):
        path = directory / "adapter_config.json"
        if path.is_file() and (named := base_named_in(path)):
            return named
    if (top.parent.parent / "config.yaml").is_file():
        return _base_of_run(top)
    return None


def open_weights(found: Source) -> Any:
    """Return the whole weights of a source as a model, in fp32 on the CPU.

    Raises:
        CheckpointError: a checkpoint's shards are missing or damaged.
        ExportError: their names are not the model's, or they hold NaN or infinity.
        ModelError: a model directory is damaged, or holds NaN or infinity.
    """
    if found.shards is None:
        whole: Any = load_model(found.model, dtype=torch.float32)
        refuse_not_finite(whole.named_parameters(), found.model, ModelError)
        return whole
    if (found.shards / MANIFEST).is_file():
        verify(found.shards)
    shards = open_shards(find_tag(found.shards))
    model = new_model(load_config(found.model), dtype=torch.float32)
    places, _ = model_places(
        shards.places(), model, found.model, with_base=False, where=shards.folder
    )
    own = model.state_dict()
    with torch.no_grad():
        for name, place in places.items():
            assert isinstance(place, Place)
            own[name].copy_(shards.tensor(place))
    model.tie_weights()
    refuse_not_finite(model.named_parameters(), shards.folder, ExportError)
    return model.eval()
