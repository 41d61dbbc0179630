"""Where answers end: the stop ids of training, tokenizer and generation config must agree.

Asked before weights are read, because a model that is never told where to stop, or is stopped at
an id of another vocabulary, spoils every answer of every evaluation.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glmforge.data import Example
from glmforge.data.segments import IGNORED
from glmforge.errors import ModelError
from glmforge.models.families import family_of_tokenizer

_LOOKED_AT = 1000  # training rows whose ends are looked at


def check_stop_ids(directory: str | Path, tokenizer: Any, train: Sequence[Example]) -> list[str]:
    """Compare a model directory's stop ids with its tokenizer's, and with what is trained.

    Args:
        directory: of the model; its generation_config.json may be absent.
        tokenizer: of the model.
        train: encoded examples, of which the first are looked at.

    Returns:
        Sentences that the user should read.

    Raises:
        ModelError: generation_config.json names stop ids of another vocabulary.
    """
    stops = {
        int(tokenizer.convert_tokens_to_ids(name)): name
        for name in family_of_tokenizer(tokenizer).stop_tokens
    }
    if not stops:
        return []  # transformers' own tokenizers: the model's config alone says where to stop
    configured = configured_stops(Path(directory))
    path = Path(directory) / "generation_config.json"
    named = ", ".join(f"{name} ({index})" for index, name in stops.items())
    if configured and not stops.keys() & set(configured):
        raise ModelError(
            f"{path}: eos_token_id is {', '.join(map(str, configured))}, but this tokenizer's "
            f"answers end at {named}: the two are of different vocabularies. Take both files from "
            "one download of the model"
        )
    notes = []
    missing = [f"{name} ({index})" for index, name in stops.items() if index not in configured]
    if configured and missing:
        notes.append(
            f"{path}: eos_token_id lacks {', '.join(missing)}; a program that follows it lets the "
            "model run on into a made-up turn (samples and exports of this program stop there)"
        )
    open_ended = [index for index in _last_trained(train) if index not in stops]
    if open_ended:
        notes.append(
            f"{len(open_ended)} of the first {min(len(train), _LOOKED_AT)} training rows do not "
            f"end with a stop token ({named}): such answers teach no end (texts and cut answers "
            "have none)"
        )
    return notes


def configured_stops(directory: Path) -> list[int]:
    """Return the stop ids of a directory's generation_config.json; none where there is no file."""
    path = directory / "generation_config.json"
    if not path.is_file():
        return []
    try:
        value = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    except (ValueError, AttributeError) as error:
        raise ModelError(f"{path}: not a JSON object; download it again") from error
    return [int(index) for index in (value if isinstance(value, list) else [value]) if index]


def _last_trained(train: Sequence[Example]) -> list[int]:
    """The last trained id of each of the first rows."""
    ends = []
    for row in range(min(len(train), _LOOKED_AT)):
        labels = train[row].labels
        ends += labels[labels != IGNORED][-1:].tolist()
    return ends
