"""The run directory: who may use it, and the files that say what the run is.

Rank 0 writes ``config.yaml`` (resolved), ``deepspeed.json``, ``versions.json`` and ``data.json``
after everything that could refuse the run has had its say; a resumed run writes the settings again,
with those that are free to change.
"""

import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glmforge.config.paths import holds_run
from glmforge.data import Example
from glmforge.data.selection import hash_of
from glmforge.errors import CheckpointError
from glmforge.train.checkpoint import write_pointer

_PACKAGES = (
    "torch",
    "transformers",
    "peft",
    "deepspeed",
    "accelerate",
    "tokenizers",
    "safetensors",
)

_MODEL_ENDINGS = (".safetensors", ".bin", ".json", ".model", ".tiktoken")
_END_BYTES = 2**20


def check_free(directory: Path) -> None:
    """Refuse a directory that holds a run already.

    Raises:
        CheckpointError: it does; says how to go on with it or choose another.
    """
    if holds_run(directory):
        raise CheckpointError(
            f"{directory}: holds a run already. Go on with it: --resume auto. Start another: "
            f"training.output_dir={directory}-2. Nothing was changed"
        )


def versions() -> dict[str, str]:
    """Return the versions that a run depends on."""
    found = {
        "python": platform.python_version(),
        "glmforge": importlib.metadata.version("glmforge"),
    }
    found.update({name: importlib.metadata.version(name) for name in _PACKAGES})
    return found


def data_manifest(
    files: Mapping[str, Sequence[Mapping[str, Any]]],
    examples: Mapping[str, Sequence[Example]],
    *,
    model: Mapping[str, str] | None = None,
    total_steps: int | None = None,
) -> dict[str, Any]:
    """Return what the run trains on: files with hashes, and hashes of every id and label.

    The hashes (of each part, and of all) are made of the prepared sets' hashes and the numbers of
    the rows chosen from them, so that they cost the same for a million rows.

    Args:
        files: "train" / "validation" → the files read, with their hashes.
        examples: the same keys → encoded examples (they reflect data, tokenizer, template, policy).
        model: the base model's files, from `model_files`.
        total_steps: length of the run, in updates.
    """
    hashes = {part: hash_of(rows) for part, rows in examples.items()}
    return {
        "files": {part: [dict(file) for file in found] for part, found in files.items() if found},
        "examples": {part: len(rows) for part, rows in examples.items()},
        "hash": hashlib.sha256("".join(hashes.values()).encode()).hexdigest(),
        "hashes": hashes,
        "model": None if model is None else dict(model),
        "total_steps": total_steps,
    }


def model_files(directory: Path) -> dict[str, str]:
    """Return each file of a model directory that a run depends on, with size and a short hash.

    Hashes are of the first and the last MiB, which tell one training's weights from another's
    without reading all of them.
    """
    found = {}
    for path in sorted(directory.iterdir()):
        if path.suffix in _MODEL_ENDINGS and path.is_file():
            with open(path, "rb") as file:
                digest = hashlib.sha256(file.read(_END_BYTES))
                file.seek(max(0, path.stat().st_size - _END_BYTES))
                digest.update(file.read())
            found[path.name] = f"{path.stat().st_size} bytes ({digest.hexdigest()[:12]})"
    return found


def write_run_files(
    directory: Path,
    *,
    config_yaml: str,
    deepspeed_config: Mapping[str, Any],
    manifest: Mapping[str, Any],
) -> None:
    """Make the directory and write what the run is."""
    (directory / "checkpoints").mkdir(parents=True, exist_ok=True)
    write_json(directory / "versions.json", versions())
    write_json(directory / "data.json", manifest)
    write_settings(directory, config_yaml=config_yaml, deepspeed_config=deepspeed_config)


def write_settings(
    directory: Path, *, config_yaml: str, deepspeed_config: Mapping[str, Any]
) -> None:
    """Write the settings of a run, from which ``glmforge train RUN/config.yaml`` goes on."""
    write_json(directory / "deepspeed.json", deepspeed_config)
    write_pointer(directory / "config.yaml", config_yaml.rstrip("\n"))


def write_final(directory: Path, values: Mapping[str, Any]) -> None:
    """Write final.json: how the run ended."""
    write_json(directory / "final.json", values)


def read_final(directory: Path) -> dict[str, Any] | None:
    """Return final.json's values; None where the run has not ended, or the file cannot be read."""
    try:
        values = json.loads((directory / "final.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return values if isinstance(values, dict) and "status" in values else None


def forget_end(directory: Path) -> None:
    """Remove final.json: the run goes on, and has not ended until it is written again."""
    (directory / "final.json").unlink(missing_ok=True)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Replace a JSON file in one move."""
    write_pointer(path, json.dumps(values, ensure_ascii=False, indent=1))
