"""Parts of sets, and several sets as one: sequences of examples that hold no row themselves.

A ``Selection`` is a set seen through an array of row numbers, ``Joined`` several sets one after
another. Both know the facts about their rows (lengths, trained tokens, which rows are one record
or copies of one) without reading any, so a million rows cost a few megabytes. ``splitting`` makes
them; packing and the loader take them like any other set.
"""

import bisect
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt

from glmforge.data.examples import Example, Int64s
from glmforge.data.segments import IGNORED

Keys = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFacts:
    """What is known of every row: arrays of one length.

    ``lengths`` and ``trained_counts`` are tokens. ``copies`` is equal for all rows of a record
    and of its exact copies (ids and labels); ``starts`` marks the first row of each record.
    """

    lengths: Int64s
    trained_counts: Int64s
    copies: Keys
    starts: Flags

    def take(self, rows: Int64s) -> "RowFacts":
        """The facts of some rows, in their order."""
        return RowFacts(
            lengths=self.lengths[rows],
            trained_counts=self.trained_counts[rows],
            copies=self.copies[rows],
            starts=self.starts[rows],
        )

    def records(self) -> Int64s:
        """The number of every row's record, from 0."""
        return np.cumsum(self.starts).astype(np.int64) - 1


def copy_key_of(rows: Sequence[Example]) -> int:
    """Sixty-four bits of a record's ids and labels; equal for exact copies."""
    digest = hashlib.blake2b(digest_size=8)
    for row in rows:
        digest.update(len(row.input_ids).to_bytes(4, "little"))
        digest.update(row.input_ids.tobytes())
        digest.update(row.labels.tobytes())
    return int.from_bytes(digest.digest(), "little")


def facts_of(examples: Sequence[Example]) -> RowFacts:
    """The facts of a set; of one that does not know them by reading every row.

    Neighbouring rows of one source are one record.
    """
    known = getattr(examples, "facts", None)
    if isinstance(known, RowFacts):
        return known
    rows = list(examples)
    starts = [n == 0 or row.source != rows[n - 1].source for n, row in enumerate(rows)]
    firsts = [n for n, first in enumerate(starts) if first]
    copies = np.zeros(len(rows), np.uint64)
    for start, end in zip(firsts, [*firsts[1:], len(rows)]):
        copies[start:end] = copy_key_of(rows[start:end])
    return RowFacts(
        lengths=np.array([len(row.input_ids) for row in rows], np.int64),
        trained_counts=np.array([int((row.labels != IGNORED).sum()) for row in rows], np.int64),
        copies=copies,
        starts=np.array(starts, np.bool_),
    )


def hash_of(examples: Sequence[Example]) -> str:
    """A hash of a set's content: its own ``hash`` where it has one, else over every row."""
    known = getattr(examples, "hash", None)
    if isinstance(known, str):
        return known
    digest = hashlib.sha256()
    for row in examples:
        digest.update(row.input_ids.tobytes())
        digest.update(row.labels.tobytes())
    return digest.hexdigest()


class _View(Sequence[Example]):
    """What both kinds share: facts, and slices that are selections."""

    facts: RowFacts

    @property
    def lengths(self) -> Int64s:
        """Tokens of every row."""
        return self.facts.lengths

    @property
    def trained_counts(self) -> Int64s:
        """Trained tokens of every row."""
        return self.facts.trained_counts

    def __len__(self) -> int:
        return len(self.facts.lengths)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> "Selection": ...
    def __getitem__(self, index: int | slice) -> "Example | Selection":
        if isinstance(index, slice):
            return Selection(self, np.arange(len(self))[index])
        if not -len(self) <= index < len(self):
            raise IndexError(f"example {index} of {len(self)}")
        return self._row(index % len(self))

    def __iter__(self) -> Iterator[Example]:
        return (self._row(index) for index in range(len(self)))

    def _row(self, index: int) -> Example:
        raise AssertionError("each kind has its own")


class Selection(_View):
    """Rows of a set by number; a row may be there several times."""

    def __init__(self, examples: Sequence[Example], rows: Int64s) -> None:
        self._examples = examples
        self.rows = rows
        self.facts = facts_of(examples).take(rows)

    @property
    def hash(self) -> str:
        """A hash of the set and of what was selected."""
        rows = np.ascontiguousarray(self.rows, np.int64)
        return hashlib.sha256(hash_of(self._examples).encode() + rows.tobytes()).hexdigest()

    def _row(self, index: int) -> Example:
        return self._examples[int(self.rows[index])]


class Joined(_View):
    """Several sets, one after another."""

    def __init__(self, sets: Sequence[Sequence[Example]]) -> None:
        self._sets = tuple(sets)
        facts = [facts_of(part) for part in sets]
        self.ends: list[int] = np.cumsum([len(part) for part in sets]).tolist()
        self.facts = RowFacts(
            lengths=np.concatenate([part.lengths for part in facts]),
            trained_counts=np.concatenate([part.trained_counts for part in facts]),
            copies=np.concatenate([part.copies for part in facts]),
            starts=np.concatenate([part.starts for part in facts]),
        )

    @property
    def hash(self) -> str:
        """A hash of all the sets."""
        return hashlib.sha256("".join(map(hash_of, self._sets)).encode()).hexdigest()

    def _row(self, index: int) -> Example:
        number = bisect.bisect_right(self.ends, index)
        return self._sets[number][index - (self.ends[number - 1] if number else 0)]
