"""Where answers end: the stop ids of training, tokenizer and generation config must agree.

Asked before weights are read, because a model that is never told where to stop, or is stopped at
an id of another vocabulary, spoils every answer of every evaluation.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glmforge.data import Example
from glmforge.data.segments import IGNORED
from glmforge.models.stops import compare_stops, named_stops, stops_line

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
    stops = named_stops(tokenizer)
    if not stops:
        return []  # transformers' own tokenizers: the model's config alone says where to stop
    notes = compare_stops(directory, tokenizer)
    open_ended = [index for index in _last_trained(train) if index not in stops]
    if open_ended:
        notes.append(
            f"{len(open_ended)} of the first {min(len(train), _LOOKED_AT)} training rows do not "
            f"end with a stop token ({stops_line(stops)}): such answers teach no end (texts and "
            "cut answers have none)"
        )
    return notes


def _last_trained(train: Sequence[Example]) -> list[int]:
    """The last trained id of each of the first rows."""
    ends = []
    for row in range(min(len(train), _LOOKED_AT)):
        labels = train[row].labels
        ends += labels[labels != IGNORED][-1:].tolist()
    return ends
