"""From what a user names to a local directory: a path, a cached hub model, or a download.

Owns the only download of the package. A hub id is looked for in the caches of Hugging Face and
ModelScope first; else weights, config and tokenizer files are fetched by huggingface_hub, never
a .py file. Without a network the error gives the commands to run where there is one.
"""

import re
from pathlib import Path

from glmforge.errors import ModelError

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
    return _modelscope_cached(str(name)) or _from_hugging_face(str(name), weights)


def _modelscope_cached(hub_id: str) -> Path | None:
    # ModelScope writes dots of a name as three underscores, and moved its folder once.
    owner, model = hub_id.split("/")
    root = Path.home() / ".cache" / "modelscope" / "hub"
    for folder in (root / "models", root):
        for spelling in (model, model.replace(".", "___")):
            found = folder / owner / spelling
            if (found / "config.json").is_file():
                return found
    return None


def _from_hugging_face(hub_id: str, weights: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    wanted = [*_SMALL, *(_WEIGHTS if weights else ())]
    try:
        return Path(
            snapshot_download(hub_id, allow_patterns=wanted, ignore_patterns=list(_REFUSED))
        )
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"{hub_id}: no such directory, not in the local caches, and the hub gave no answer "
            f"({first_line}). Where there is a network, run\n"
            f'  hf download {hub_id} --exclude "*.py" --local-dir {hub_id.split("/")[1]}\n'
            f"  modelscope download --model {hub_id} --local_dir {hub_id.split('/')[1]}\n"
            "(either one) and give that directory"
        ) from error
