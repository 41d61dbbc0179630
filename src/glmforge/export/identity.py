"""Which adapters a merged model already holds, so that none is added a second time.

A merge changes the weights once more each time it is done. So config.json of a merged model carries
the hashes of the adapters in it, and an adapter converted to the other layout keeps the hash of the
one that it was made of, in its file's metadata.
"""

from pathlib import Path
from typing import Any

from safetensors import safe_open

from glmforge.adapters import weights_path
from glmforge.data.prepared import sha256_of
from glmforge.errors import ExportError

MERGED_KEY = "glmforge_merged_adapters"
"""Key of config.json: sha256 of every adapter that the weights hold."""
METADATA_KEY = "glmforge_adapter"


def adapter_identity(directory: Path) -> str:
    """Return the sha256 of an adapter's weights file, or of the file it was converted from."""
    path = weights_path(directory)
    if path.suffix == ".bin":
        return sha256_of(path)
    with safe_open(path, framework="pt") as file:
        metadata: dict[str, str] = file.metadata() or {}
    return metadata.get(METADATA_KEY) or sha256_of(path)


def refuse_second_merge(adapter: Path, model: Path, config: Any) -> None:
    """Refuse to merge an adapter into weights that hold it already.

    Raises:
        ExportError: they do.
    """
    identity = adapter_identity(adapter)
    if identity in (getattr(config, MERGED_KEY, None) or ()):
        raise ExportError(
            f"{adapter}: is merged into {model} already ({MERGED_KEY} in its config.json): a "
            "second merge would add it twice. Give the base that the adapter was trained on with "
            "--base DIR"
        )


def mark_merged(config: Any, identity: str) -> None:
    """Note in a configuration that its weights hold an adapter."""
    setattr(config, MERGED_KEY, [*(getattr(config, MERGED_KEY, None) or ()), identity])
