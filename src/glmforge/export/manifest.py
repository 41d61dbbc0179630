"""The manifest of a checkpoint of ours: what was written, and whether it is still that.

``train.checkpoint`` writes ``manifest.json`` last, with every file's size and sha256; resuming a
run and consolidating a checkpoint both ask here before they read a shard.
"""

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from glmforge.data.prepared import sha256_of
from glmforge.errors import CheckpointError

FORMAT_VERSION = 2
MANIFEST = "manifest.json"
_READERS = 8
"""Files hashed at a time: a core hashes about 1 GB/s, slower than most disks read."""


def named_by(path: Path) -> str:
    """Say which checkpoint a run's ``latest`` or ``best`` names; empty for anything else."""
    if path.name not in ("latest", "best") or not path.is_file():
        return ""
    named = path.with_name(path.read_text(encoding="utf-8", errors="replace").strip())
    return f": it is a file that names a checkpoint: give {named}" if named.is_dir() else ""


def seal_of(manifest: Mapping[str, Any]) -> str:
    """Return the hash of everything in a manifest but its own ``seal``."""
    rest = {key: value for key, value in manifest.items() if key != "seal"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def verify(path: Path) -> dict[str, Any]:
    """Check a checkpoint against its manifest and return the manifest.

    Raises:
        CheckpointError: no manifest, or every file that is missing or differs.
    """
    manifest_path = path / MANIFEST
    if not manifest_path.exists():
        raise CheckpointError(f"{path}: no {MANIFEST}: it was never finished")
    try:
        manifest: dict[str, Any] = json.loads(manifest_path.read_text(encoding="utf-8"))
        files = manifest["files"]
        version = manifest["format_version"]
    except (ValueError, KeyError, TypeError) as error:  # not JSON, not text, not this layout
        raise CheckpointError(f"{manifest_path}: cannot be read ({error})") from error
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"{manifest_path}: format version {version}, this program reads {FORMAT_VERSION}"
        )
    if manifest.get("seal") != seal_of(manifest):
        raise CheckpointError(f"{manifest_path}: its content differs from what was written")
    with ThreadPoolExecutor(_READERS) as pool:
        found = pool.map(lambda name: problem_of(path / name, files[name]), files)
        problems = [problem for problem in found if problem is not None]
    if problems:
        raise CheckpointError(problems)
    return manifest


def files_of(path: Path) -> Mapping[str, Mapping[str, Any]]:
    """Return the files that a checkpoint's manifest lists; none where no whole manifest is."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        files: Mapping[str, Mapping[str, Any]] = manifest["files"]
        return files if manifest["seal"] == seal_of(manifest) else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def problem_of(file: Path, entry: Mapping[str, Any]) -> str | None:
    """What is wrong with one file, if anything."""
    if not file.is_file():
        return f"{file}: missing"
    if file.stat().st_size != entry["bytes"]:
        return f"{file}: {file.stat().st_size} bytes, {entry['bytes']} were written"
    if sha256_of(file) != entry["sha256"]:
        return f"{file}: its bytes differ from what was written (sha256)"
    return None
