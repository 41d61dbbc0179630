"""What a run was when it began, as its own files say it, and whether its inputs are still those.

``config.yaml``, ``deepspeed.json`` and ``data.json`` of the run directory are what a resumed run is
compared with (``changes``); ``versions.json`` says what it ran with. Every checkpoint carries a
copy of them: where one is missing or torn, the copy takes its place again, and a line says so.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from glmforge.config import RunConfig
from glmforge.config.paths import sources_of
from glmforge.data.files import data_files
from glmforge.data.prepared import sha256_of
from glmforge.errors import CheckpointError, DataError
from glmforge.train.rundir import model_files, versions, write_json

_KEYS = {
    "config.yaml": ("model", "data", "training"),
    "deepspeed.json": ("train_batch_size", "zero_optimization"),
    "data.json": ("hash", "examples", "files"),
    "versions.json": ("python", "glmforge", "torch"),
}
"""The files, each with keys that it always has."""
_ANEW = {"versions.json": versions}
"""What is written where the checkpoint has no copy either: nothing depends on what it was."""


def restore_description(directory: Path, checkpoint: Path) -> tuple[str, ...]:
    """Put back what says what a run was, from a checkpoint's copies; return a sentence for each.

    Raises:
        CheckpointError: a file is missing or torn, and so is the checkpoint's copy; all of them.
    """
    said, problems = [], []
    for name in _KEYS:
        path, copy = directory / name, checkpoint / "state" / name
        fault = _fault(path)
        if fault is None:
            continue
        if (worse := _fault(copy)) is not None and name in _ANEW:
            write_json(path, _ANEW[name]())
            said.append(f"{path}: {fault}, and {copy} {worse}; it says what is installed now")
            continue
        if worse is not None:
            problems.append(
                f"{path}: {fault}, and {copy} {worse}: what the run was is not known; put the file "
                f"back, or start another run from its weights with --init-from {directory}"
            )
            continue
        temporary = path.with_name(f".tmp-{name}")
        shutil.copyfile(copy, temporary)
        temporary.replace(path)
        said.append(f"{path}: {fault}; put back from {checkpoint}")
    if problems:
        raise CheckpointError(problems)
    return tuple(said)


def past_of(directory: Path, checkpoint: Path) -> Path:
    """Return the directory whose files say what a run was, to be compared with what it is now.

    They are the checkpoint's copies, which its manifest seals: ``config.yaml`` of the run directory
    may have been edited since. Where a copy is missing, the run directory's own files have to do.
    """
    copies = checkpoint / "state"
    whole = all(_fault(copies / name) is None for name in _KEYS if name not in _ANEW)
    return copies if whole else directory


def _fault(path: Path) -> str | None:
    """What is wrong with one of the files, if anything."""
    try:
        values = _read(path)
    except FileNotFoundError:
        return "is missing"
    except (OSError, ValueError, yaml.YAMLError) as error:
        return f"cannot be read ({str(error).splitlines()[0]})"
    lacking = [key for key in _KEYS[path.name] if key not in values]
    return f"lacks {', '.join(lacking)}" if lacking else None


def _read(path: Path) -> Mapping[str, Any]:
    """Read a JSON or YAML mapping.

    Raises:
        OSError, ValueError, yaml.YAMLError: there is none.
    """
    text = path.read_text(encoding="utf-8")
    values = yaml.safe_load(text) if path.suffix == ".yaml" else json.loads(text)
    if not isinstance(values, Mapping):
        raise ValueError(f"{type(values).__name__} where a mapping should be")
    return values


def inputs_changed(directory: Path, config: RunConfig) -> bool:
    """Whether data or base weights are other files than the run in `directory` used, or unknown.

    Files that only moved are the same; what came from a hub is not looked at.
    """
    if any(_fault(directory / name) is not None for name in ("config.yaml", "data.json")):
        return True
    written = _read(directory / "data.json")
    settings = {"train": config.data.train, "validation": config.data.validation}
    try:
        now = {
            part: [file for file in _files(value) if file.is_file()]
            for part, value in settings.items()
        }
        base = model_files(Path(config.model.model_name_or_path))
    except (DataError, OSError):
        return True  # whoever goes on with the run is told what is wrong
    if written.get("model") not in (None, base):
        return True
    for part, files in now.items():
        before = [file for file in written["files"].get(part, ()) if file.get("sha256")]
        if sorted(file["bytes"] for file in before) != sorted(f.stat().st_size for f in files):
            return True
        if sorted(file["sha256"] for file in before) != sorted(map(sha256_of, files)):
            return True
    return False


def _files(value: Any) -> list[Path]:
    names = [name for name, _ in sources_of(value)]
    return data_files(names) if names else []
