"""How much there is to train on: dialogues, rows and tokens of a run's data, counted or estimated.

Owns `count_data`. Small sets are encoded as training does; of a large one a sample is, and the
counts are scaled up, so that a plan answers in seconds. Training itself counts exactly.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from glmforge.config import RunConfig
from glmforge.config.paths import sources_of
from glmforge.data import build_examples, pack
from glmforge.data.examples import problems_error
from glmforge.data.sampling import sample_conversations
from glmforge.data.sources import ReadOptions
from glmforge.errors import DataError

SAMPLE_DIALOGUES = 1500


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFacts:
    """Counts of the training set.

    ``rows`` are packed where the run packs; ``longest`` is the longest example in tokens.
    ``estimated``: scaled up from a sample.
    """

    dialogues: int
    rows: int
    tokens: int
    trained_tokens: int
    longest: int
    packed: bool
    estimated: bool = False


def count_data(config: RunConfig, tokenizer: Any, *, packed: bool) -> DataFacts:
    """Count the training dialogues, and rows and tokens made of them.

    Raises:
        DataError: files that cannot be read, or rows that break a rule.
    """
    data = config.data
    dialogues, scale_sum = 0.0, 0.0
    lengths: list[int] = []
    trained = 0.0
    tokens = 0.0
    beside = [path for part in (data.train, data.validation) for path, _ in sources_of(part)]
    options = ReadOptions(columns=data.columns, repairs=tuple(data.repair), beside=tuple(beside))
    for path, weight in sources_of(data.train):
        found = sample_conversations(path, options, SAMPLE_DIALOGUES)
        if found.problems and data.on_error == "stop":
            raise problems_error(found.problems)
        if not found.conversations:
            raise DataError(f"{path}: no record in it; give a file with dialogues")
        examples = build_examples(
            found.conversations,
            tokenizer,
            max_length=data.max_length,
            labels=data.labels,
            truncation=data.truncation,
            on_error=data.on_error,
        ).examples
        factor = weight * found.dialogues / len(found.conversations)
        dialogues += weight * found.dialogues
        scale_sum += factor * len(examples)
        lengths += [len(example.input_ids) for example in examples]
        tokens += factor * sum(len(example.input_ids) for example in examples)
        trained += factor * sum(int((example.labels != -100).sum()) for example in examples)
    rows = len(pack(lengths, data.max_length, config.training.seed)) if packed else len(lengths)
    scale = scale_sum / max(1, len(lengths))
    kept = _kept_share(data.validation_size, dialogues)
    return DataFacts(
        dialogues=round(dialogues * kept),
        rows=round(rows * scale * kept),
        tokens=round(tokens * kept),
        trained_tokens=round(trained * kept),
        longest=int(np.max(lengths, initial=0)),
        packed=packed,
        estimated=scale != 1.0 or kept != 1.0,
    )


def _kept_share(validation_size: float | None, dialogues: float) -> float:
    """Return the share of the dialogues that is left to train on."""
    if validation_size is None or not dialogues:
        return 1.0
    held = validation_size if validation_size < 1 else validation_size / dialogues
    return 1.0 - held if held < 1 else 0.5  # as `splitting.hold_out` does it
