"""From what a user names to a local directory: a path, a cached hub model, or a download.

Owns the only download of the package. A hub id is looked for in the caches of ModelScope and
Hugging Face first, where only a whole copy counts; else weights, config and tokenizer files are
fetched by huggingface_hub, never a .py file. Without a network the error gives the commands to run
where there is one.
"""

import re
from pathlib import Path

from glmforge.distributed.env import modelscope_caches
from glmforge.errors import ModelError
from glmforge.models.weights import weight_files

_SMALL = ("*.json", "*.jinja", "tokenizer.model", "ice_text.model", "vocab.txt", "merges.txt")
_WEIGHTS = ("*.safetensors", "*.bin")
_REFUSED = ("*.py", "*.pyc", "*.pkl", "*.pickle")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def resolve_directory(name: str | Path, *, weights: bool = True) -> Path:
    """Return the local directory of a model named by a path or a hub id ("THUDM/chatglm3-6b").

    Args:
        name: the path or hub id.
        weights: whether a download brings the weights; config and tokenizer always come.

    Raises:
        ModelError: no such directory, and no such model in the caches or on the hub.
    """
    path = Path(name)
    if path.is_dir():
        return path
    if path.exists():
        raise ModelError(f"{path}: a file; give the directory of the model that it is in")
    if not _HUB_ID.fullmatch(str(name)):
        raise ModelError(f"{name}: no such directory; give the directory of a model or a hub id")
    cached = (*_modelscope_cached(str(name)), *_hugging_face_cached(str(name)))
    whole = next((found for found in cached if _what_is_missing(found, weights) is None), None)
    return whole or _downloaded(str(name), weights)


def _what_is_missing(directory: Path, weights: bool) -> str | None:
    """Say what a cached directory lacks, None where it is whole.

    Without weights asked for, one that has them is whole as well: a base may have no tokenizer.
    """
    if not (directory / "config.json").is_file():
        return "no config.json"
    if not weights and (directory / "tokenizer_config.json").is_file():
        return None
    try:
        weight_files(directory)
    except ModelError as error:
        return error.problems[0]
    return None


def _modelscope_cached(hub_id: str) -> list[Path]:
    # ModelScope writes dots of a name as three underscores.
    owner, model = hub_id.split("/")
    spellings = dict.fromkeys((model, model.replace(".", "___")))
    places = [root / owner / name for root in modelscope_caches() for name in spellings]
    return [place for place in places if place.is_dir()]


def _hugging_face_cached(hub_id: str) -> list[Path]:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return [Path(snapshot_download(hub_id, local_files_only=True))]
    except LocalEntryNotFoundError:
        return []


def _downloaded(hub_id: str, weights: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    wanted = [*_SMALL, *(_WEIGHTS if weights else ())]
    try:
        found = Path(
            snapshot_download(hub_id, allow_patterns=wanted, ignore_patterns=list(_REFUSED))
        )
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        reason = (
            f"no such directory, not whole in the local caches, no answer of the hub: {first_line}"
        )
        raise ModelError(_commands(hub_id, reason)) from error
    # Without a network the hub's client gives what it has, whole or not.
    missing = _what_is_missing(found, weights) if weights else None
    if missing:
        raise ModelError(
            _commands(hub_id, f"not whole in the local caches nor on the hub: {missing}")
        )
    return found


def _commands(hub_id: str, reason: str) -> str:
    folder = hub_id.split("/")[1]
    return (
        f"{hub_id}: {reason}. Where there is a network, run\n"
        f'  hf download {hub_id} --exclude "*.py" --local-dir {folder}\n'
        f"  modelscope download --model {hub_id} --local_dir {folder}\n"
        "(either one) and give that directory"
    )
