"""The manifest of a checkpoint of ours: what was written, and whether it is still that.

``train.checkpoint`` writes ``manifest.json`` last, with every file's size and sha256; resuming a
run and consolidating a checkpoint both ask here before they read a shard.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glmforge.data.prepared import sha256_of
from glmforge.errors import CheckpointError

FORMAT_VERSION = 2
MANIFEST = "manifest.json"


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
    problems = []
    for name, entry in files.items():
        file = path / name
        if not file.is_file():
            problems.append(f"{file}: missing")
        elif file.stat().st_size != entry["bytes"]:
            problems.append(f"{file}: {file.stat().st_size} bytes, {entry['bytes']} were written")
        elif sha256_of(file) != entry["sha256"]:
            problems.append(f"{file}: its bytes differ from what was written (sha256)")
    if problems:
        raise CheckpointError(problems)
    return manifest
