"""Sets from sets: a validation part held out of the training data, sources mixed by weight.

Both choose whole records by row numbers and read no row; both are pure functions of their input
and a seed. Copies of a record always land on the same side of a split, or the validation loss
would measure memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from glmforge.data.examples import Example, Int64s
from glmforge.data.selection import Joined, Keys, Selection, facts_of
from glmforge.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What is left of each set, and what was held out of all; both in the order of the files.

    ``set_numbers`` says of every validation row which set it is from; ``note`` says why fewer
    records than asked for were held out (empty where there are as many).
    """

    train: tuple[Selection, ...]
    validation: Selection
    set_numbers: Int64s
    note: str = ""


def hold_out(sets: Sequence[Sequence[Example]], size: int | float, *, seed: int = 42) -> Split:
    """Hold records out of one set or several.

    A record goes with all its rows and with all its exact copies (equal ids and labels), in
    whatever set they are. Which records go depends on their content and the seed only.

    Args:
        sets: the training sets.
        size: records (an int), or their share of all (a float below 1, at least one record).
            Fewer are held out where groups of copies do not add up to it, and half of all where
            nothing would be left to train on.
        seed: decides which.

    Raises:
        DataError: the size is no count and no share, or one part would be empty whatever is done.
    """
    joined = Joined(sets)
    facts = joined.facts
    records = int(facts.starts.sum())
    asked = _asked(size, records)
    wanted = asked if asked < records else records // 2
    keys, group_of_row = np.unique(facts.copies, return_inverse=True)
    sizes = np.bincount(group_of_row[facts.starts], minlength=len(keys))
    held = np.zeros(len(keys), np.bool_)
    left = wanted
    for group in np.argsort(_scattered(keys, seed), kind="stable"):
        if sizes[group] <= left:
            held[group] = True
            left -= int(sizes[group])
            if not left:
                break
    if left == wanted:
        raise DataError(
            f"data.validation_size: {wanted} records would be held out, but every record has more "
            "copies than that, and copies stay together; remove the copies or ask for more"
        )
    if held.all():
        raise DataError(
            "data.validation_size would hold out every record, copies included; ask for fewer"
        )
    short = asked - wanted + left
    note = ""
    if short:
        why = "half stays for training" if wanted < asked else "copies of a record stay together"
        note = f"{asked:,} were asked for, {wanted - left:,} of {records:,} are held out: {why}"
    held_rows = held[group_of_row]
    validation = Selection(joined, np.flatnonzero(held_rows))
    bounds = [0, *joined.ends]
    return Split(
        train=tuple(
            Selection(part, np.flatnonzero(~held_rows[start:end]))
            for part, start, end in zip(sets, bounds, bounds[1:])
        ),
        validation=validation,
        set_numbers=np.searchsorted(joined.ends, validation.rows, side="right"),
        note=note,
    )


def _asked(size: int | float, records: int) -> int:
    """How many records a count or a share asks for."""
    is_share = isinstance(size, float)
    if not size > 0 or (is_share and not size < 1):
        raise DataError(f"data.validation_size is {size}; use a count, or a share between 0 and 1")
    if records < 2:
        raise DataError(
            f"data.validation_size holds out {size} of {records} records; both parts need at "
            "least one record: add records, or leave it out"
        )
    return max(1, round(size * records)) if is_share else int(size)


def _scattered(keys: Keys, seed: int) -> Keys:
    """A number for each key, the order of which is random and fixed by the seed.

    The mixing function of splitmix64 (Steele, Lea, Flood 2014).
    """
    start = np.random.default_rng([seed, 0x9E3779B9]).integers(0, 1 << 63, dtype=np.uint64)
    mixed = keys + start
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def mix(sources: Sequence[tuple[Sequence[Example], float]], *, seed: int = 42) -> Sequence[Example]:
    """Join sources, the records of each repeated or thinned by its weight.

    Args:
        sources: (examples, weight): 1 takes each record once, 2 twice, 0.5 a random half.
        seed: decides which records a fraction takes.

    Raises:
        DataError: a weight is not above 0.
    """
    wrong = [weight for _, weight in sources if not weight > 0]
    if wrong:
        raise DataError([f"a source has the weight {weight}; use one above 0" for weight in wrong])
    parts = [
        examples if weight == 1 else Selection(examples, _weighted(examples, weight, [seed, n]))
        for n, (examples, weight) in enumerate(sources)
    ]
    return parts[0] if len(parts) == 1 else Joined(parts)


def _weighted(examples: Sequence[Example], weight: float, seed: list[int]) -> Int64s:
    """Row numbers: all rows as often as the weight's whole part, some records once more."""
    whole, part = divmod(weight, 1)
    rows = np.tile(np.arange(len(examples)), int(whole))
    record_of_row = facts_of(examples).records()
    records = int(record_of_row[-1]) + 1 if len(record_of_row) else 0
    number = round(part * records)
    if not whole and records:
        number = max(1, number)
    chosen = np.zeros(records, np.bool_)
    chosen[np.random.default_rng(seed).permutation(records)[:number]] = True
    return np.concatenate([rows, np.flatnonzero(chosen[record_of_row])])
