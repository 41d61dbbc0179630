"""How much there is to train on: dialogues, rows and tokens of a run's data, counted or estimated.

Owns `count_data`. Small sets are encoded as training does; of a large one a sample is, and the
counts are scaled up, so that a plan answers in seconds. Training itself counts exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from glmforge.config import RunConfig
from glmforge.config.paths import sources_of
from glmforge.data import build_examples, pack
from glmforge.data.examples import Example, problems_error
from glmforge.data.files import refuse_shared
from glmforge.data.sampling import sample_conversations
from glmforge.data.selection import facts_of
from glmforge.data.sources import ReadOptions
from glmforge.data.splitting import mix
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
    train, validation = (
        [path for path, _ in sources_of(part)] for part in (data.train, data.validation)
    )
    refuse_shared(train, validation)
    beside = [*train, *validation]
    options = ReadOptions(columns=data.columns, repairs=tuple(data.repair), beside=tuple(beside))
    dialogues = 0.0
    parts: list[tuple[Sequence[Example], float]] = []
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
        dialogues += weight * found.dialogues
        parts.append((examples, weight * found.dialogues / len(found.conversations)))
    # A sample stands for its source, and has in the mixture the share that training gives that.
    scale = max(factor / weight for (_, factor), (_, weight) in zip(parts, sources_of(data.train)))
    mixed = mix([(part, factor / scale) for part, factor in parts], seed=config.training.seed)
    facts = facts_of(mixed)
    lengths: list[int] = facts.lengths.tolist()
    rows = len(pack(lengths, data.max_length, config.training.seed)) if packed else len(lengths)
    kept = _kept_share(data.validation_size, dialogues)
    return DataFacts(
        dialogues=round(dialogues * kept),
        rows=round(rows * scale * kept),
        tokens=round(sum(lengths) * scale * kept),
        trained_tokens=round(int(facts.trained_counts.sum()) * scale * kept),
        longest=max(lengths, default=0),
        packed=packed,
        estimated=scale != 1.0 or kept != 1.0,
    )


def _kept_share(validation_size: float | None, dialogues: float) -> float:
    """Return the share of the dialogues that is left to train on."""
    if validation_size is None or not dialogues:
        return 1.0
    held = validation_size if validation_size < 1 else validation_size / dialogues
    return 1.0 - held if held < 1 else 0.5  # as `splitting.hold_out` does it
