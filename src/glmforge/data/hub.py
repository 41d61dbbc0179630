"""Datasets of the Hugging Face hub: ``owner/name`` (its train split) or ``owner/name:split``.

The ``datasets`` library finds, fetches and caches them; offline it answers from its cache. A name
is taken for a hub's only where no such path, and no directory of the owner's name, is at hand.
"""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from glmforge.data.conversation import Problem
from glmforge.data.prepared import sha256_of
from glmforge.data.reading import Record
from glmforge.data.tables import without_padding
from glmforge.errors import DataError

_NAME = re.compile(r"([\w-][\w.-]*/[\w.-]+)(?::([\w.-]+))?")


def is_hub_name(text: str, endings: tuple[str, ...]) -> bool:
    """Whether a text that is no path can name a dataset of the hub."""
    found = _NAME.fullmatch(text)
    return (
        found is not None
        and not found.group(1).lower().endswith(endings)
        and not Path(text).parent.is_dir()
    )


def read_hub(name: str) -> Iterator[Record | Problem]:
    """Yield the rows of a split; a dataset that cannot be had is a problem."""
    try:
        rows = _load(name)
    except DataError as error:
        yield Problem(source=name, rule="no-such-data", text=str(error), advice=_ADVICE)
        return
    for number, row in enumerate(rows, 1):
        yield Record(source=f"{name}:{number}", value=without_padding(row))


def hub_digest(name: str) -> str:
    """A hash of a split's bytes in the cache.

    Raises:
        DataError: the dataset cannot be had.
    """
    try:
        rows = _load(name)
    except DataError as error:
        raise DataError(f"{name}: {error}; {_ADVICE}") from error
    digest = hashlib.sha256(str(len(rows)).encode())
    for file in rows.cache_files:
        digest.update(sha256_of(Path(file["filename"])).encode())
    return digest.hexdigest()


_ADVICE = (
    "check the path or the name; without a network the dataset must be in the Hugging Face cache "
    "already (load it once where there is one), or be given as files"
)


def _load(name: str) -> Any:
    """The rows of a split.

    Raises:
        DataError: the reason, in the library's words.
    """
    import datasets
    from huggingface_hub.errors import HfHubHTTPError

    found = _NAME.fullmatch(name)
    assert found is not None, "asked before it comes here"
    failures = (OSError, ValueError, RuntimeError, HfHubHTTPError,
                datasets.exceptions.DatasetsError)  # fmt: skip
    try:
        return datasets.load_dataset(found.group(1), split=found.group(2) or "train")
    except failures as error:
        said = " ".join(str(error).split())[:300]
        raise DataError(
            f"no such file, and no dataset of that name can be loaded ({said})"
        ) from error
