"""The run directory: who may use it, and the files that say what the run is.

``config.yaml`` (resolved), ``deepspeed.json``, ``versions.json``, ``data.json`` are written once,
by rank 0, after everything that could refuse the run has had its say.
"""

import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glmforge.config import RunConfig, load_config_file
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

# Settings that may differ when a run is resumed: they change neither weights nor data order (the
# global batch, their product, may not: resume.find_start).
_FREE_ON_RESUME = frozenset(
    """launch training.output_dir training.logging_steps training.save_steps training.eval_steps
    training.save_total_limit training.per_device_eval_batch_size training.report_to generation
    training.per_device_train_batch_size training.gradient_accumulation_steps
    data.prepared_dir data.preprocessing_num_workers""".split()
)


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
    files: Mapping[str, Sequence[Mapping[str, Any]]], examples: Mapping[str, Sequence[Example]]
) -> dict[str, Any]:
    """Return what the run trains on: files with hashes, and one hash of every id and label.

    The hash is made of the prepared sets' hashes and the numbers of the rows chosen from them, so
    that it costs the same for a million rows.

    Args:
        files: "train" / "validation" → the files read, with their hashes.
        examples: the same keys → encoded examples (they reflect data, tokenizer, template, policy).
    """
    digest = hashlib.sha256()
    for rows in examples.values():
        digest.update(hash_of(rows).encode())
    return {
        "files": {part: [dict(file) for file in found] for part, found in files.items() if found},
        "examples": {part: len(rows) for part, rows in examples.items()},
        "hash": digest.hexdigest(),
    }


def write_run_files(
    directory: Path,
    *,
    config_yaml: str,
    deepspeed_config: Mapping[str, Any],
    manifest: Mapping[str, Any],
) -> None:
    """Make the directory and write what the run is."""
    (directory / "checkpoints").mkdir(parents=True, exist_ok=True)
    _write_json(directory / "deepspeed.json", deepspeed_config)
    _write_json(directory / "versions.json", versions())
    _write_json(directory / "data.json", manifest)
    write_pointer(directory / "config.yaml", config_yaml.rstrip("\n"))


def write_final(directory: Path, values: Mapping[str, Any]) -> None:
    """Write final.json: how the run ended."""
    _write_json(directory / "final.json", values)


def read_final(directory: Path) -> dict[str, Any] | None:
    """Return final.json's values, or None where the run has not ended."""
    path = directory / "final.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def check_same_run(directory: Path, config: RunConfig, manifest: Mapping[str, Any]) -> None:
    """Refuse to resume a run with other settings or other data.

    Raises:
        CheckpointError: every setting that differs, old and new value; a data change.
        ConfigError: config.yaml holds settings that this program does not know.
    """
    problems = _changed_settings(directory, config)
    written = json.loads((directory / "data.json").read_text(encoding="utf-8"))
    if written["hash"] != manifest["hash"]:
        problems.append(
            f"the training data, tokenizer or template changed since the run began "
            f"({written['examples']} examples then, {manifest['examples']} now; "
            f"{directory}/data.json names the files): put them back, or start another run"
        )
    if problems:
        raise CheckpointError(problems)


def check_same_settings(directory: Path, config: RunConfig) -> None:
    """Refuse settings that differ from those the run in `directory` began with.

    Raises:
        CheckpointError: every setting that differs, old and new value.
    """
    problems = _changed_settings(directory, config)
    if problems:
        raise CheckpointError(problems)


def _changed_settings(directory: Path, config: RunConfig) -> list[str]:
    """Name each setting that differs and matters.

    The run's config.yaml is read by this program's schema, so that settings which are newer than
    the run have their defaults on both sides.
    """
    old = _flat(load_config_file(directory / "config.yaml").model_dump(mode="json"))
    new = _flat(config.model_dump(mode="json"))
    problems = []
    for key in sorted(old.keys() | new.keys()):
        section = key.split(".", 1)[0]
        if key in _FREE_ON_RESUME or section in _FREE_ON_RESUME or old.get(key) == new.get(key):
            continue
        problems.append(
            f"{key} was {old.get(key)!r} when the run began and is {new.get(key)!r} now: set it "
            "back, or start another run with a new training.output_dir"
        )
    return problems


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{name}."))
        else:
            flat[name] = value
    return flat


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    write_pointer(path, json.dumps(values, ensure_ascii=False, indent=1))
