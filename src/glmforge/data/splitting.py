"""Sets from sets: a validation part held out of the training data, sources mixed by weight.

Both are pure functions of their input and a seed. Copies of a record always land on the same
side of a split, or the validation loss would measure memory.
"""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from glmforge.data.conversation import Conversation
from glmforge.data.similarity import copy_key
from glmforge.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Two parts of a set, both in the order of the file."""

    train: list[Conversation]
    validation: list[Conversation]


def split_validation(
    conversations: Sequence[Conversation], size: int | float, *, seed: int = 42
) -> Split:
    """Hold records out for validation.

    Args:
        conversations: the whole set.
        size: records (an int), or their share of the set (a float below 1). Fewer are held out
            where groups of copies do not add up to it.
        seed: decides which.

    Raises:
        DataError: nothing would be left to train on, or to validate with.
    """
    wanted = size if isinstance(size, int) else round(size * len(conversations))
    if not 0 < wanted < len(conversations):
        raise DataError(
            f"data.validation holds out {size} of {len(conversations)} records; "
            "both parts need at least one record"
        )
    groups: dict[bytes, list[int]] = defaultdict(list)
    for index, conversation in enumerate(conversations):
        groups[copy_key(conversation)].append(index)
    salt = seed.to_bytes(8, "big", signed=True)
    order = sorted(groups, key=lambda key: hashlib.sha256(salt + key).digest())
    held: set[int] = set()
    for key in order:
        if len(held) + len(groups[key]) <= wanted:
            held.update(groups[key])
    if not held:
        raise DataError(
            f"data.validation asks for {wanted} records, but every record has more copies than "
            "that; ask for more, or remove the copies"
        )
    return Split(
        train=[c for index, c in enumerate(conversations) if index not in held],
        validation=[c for index, c in enumerate(conversations) if index in held],
    )


def mix(
    sources: Sequence[tuple[Sequence[Conversation], float]], *, seed: int = 42
) -> list[Conversation]:
    """Join sources, each repeated or thinned by its weight.

    Args:
        sources: (records, weight): 1 takes each record once, 2 twice, 0.5 a random half.
        seed: decides which records a fraction takes.

    Raises:
        DataError: a weight is not above 0.
    """
    wrong = [weight for _, weight in sources if not weight > 0]
    if wrong:
        raise DataError([f"a source has the weight {weight}; use one above 0" for weight in wrong])
    mixed: list[Conversation] = []
    for number, (records, weight) in enumerate(sources):
        whole, part = divmod(weight, 1)
        mixed.extend(list(records) * int(whole))
        random = np.random.default_rng([seed, number])
        some = random.permutation(len(records))[: round(part * len(records))]
        mixed.extend(records[index] for index in sorted(some))
    return mixed
