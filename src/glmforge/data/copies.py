"""Exact and near copies of records, within a set and between it and its held-out part.

Records come one at a time and leave about half a kilobyte each: a key of their words, 64 MinHash
values cut to 16 bits, 16 band keys. Near copies are found at the end, all at once: records that
share a band lie side by side when its keys are sorted, and only neighbours are compared. A million
records need about 0.6 GB. Everything is a pure function of the texts and their order.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from glmforge.data.conversation import Conversation
from glmforge.data.similarity import BANDS, copy_key, signature, words_of

NEAR = 0.8
"""Estimated share of shingles in common from which two records count as near copies."""
_LAGS = 4  # neighbours before a record, in every band, that it is compared with
_ROWS = 1 << 16  # pairs compared in one go

Marks = npt.NDArray[np.uint16]
Keys = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFacts:
    """Numbers of records, and sentences about the first ones.

    ``exact`` and ``near`` repeat an earlier record; ``overlap`` is the held-out records that the
    set has too, exactly or nearly.
    """

    exact: int
    near: int
    examples: tuple[str, ...]
    overlap: int
    held_out: int
    overlap_examples: tuple[str, ...]


class Copies:
    """Collects the records of a set and its held-out part."""

    def __init__(self) -> None:
        self._first: dict[int, int] = {}
        self._exact = 0
        self._examples: list[str] = []
        self._set = _Sketches()
        self._held = _Sketches()
        self._held_out = 0
        self._overlap: list[str] = []

    def add(self, conversation: Conversation) -> None:
        """Take a record of the set."""
        key = _key(conversation)
        earlier = self._first.get(key)
        if earlier is not None:
            self._exact += 1
            self._note(f"{conversation.source} repeats {self._set.sources[earlier]}")
            return
        self._first[key] = len(self._set.sources)
        self._set.add(conversation)

    def add_held_out(self, conversation: Conversation) -> None:
        """Take a held-out record, after all of the set."""
        self._held_out += 1
        if _key(conversation) in self._first:
            self._overlap.append(conversation.source)
        else:
            self._held.add(conversation)

    def facts(self) -> CopyFacts:
        """Compare everything."""
        ours, theirs = self._set.arrays(), self._held.arrays()
        earlier = _earlier(*ours)
        found = np.flatnonzero(earlier >= 0)
        for number in found[:3].tolist():
            first = self._set.sources[int(earlier[number])]
            self._note(f"{self._set.sources[number]} nearly repeats {first}")
        near_held = [self._held.sources[n] for n in _shared(*ours, *theirs).tolist()]
        overlap = [*self._overlap, *near_held]
        return CopyFacts(
            exact=self._exact,
            near=len(found),
            examples=tuple(self._examples),
            overlap=len(overlap),
            held_out=self._held_out,
            overlap_examples=tuple(overlap[:3]),
        )

    def _note(self, text: str) -> None:
        if len(self._examples) < 3:
            self._examples.append(text)


def _key(conversation: Conversation) -> int:
    return int.from_bytes(copy_key(conversation)[:8], "little")


class _Sketches:
    """Signatures of records in blocks, so that a million of them are a few arrays."""

    def __init__(self) -> None:
        self.sources: list[str] = []
        self._marks: list[Marks] = []
        self._bands: list[Keys] = []
        self._block = 4096

    def add(self, conversation: Conversation) -> None:
        at = len(self.sources) % self._block
        if not at:
            self._marks.append(np.zeros((self._block, 64), np.uint16))
            self._bands.append(np.zeros((self._block, BANDS), np.uint64))
        values = signature(words_of(conversation))
        self._marks[-1][at] = values.astype(np.uint16)
        self._bands[-1][at] = _band_keys(values)
        self.sources.append(conversation.source)

    def arrays(self) -> tuple[Marks, list[Keys]]:
        """Marks [records, 64], and for each band the keys of all records."""
        count = len(self.sources)
        if not count:
            return np.zeros((0, 64), np.uint16), [np.zeros(0, np.uint64)] * BANDS
        bands = [np.concatenate([b[:, k] for b in self._bands])[:count] for k in range(BANDS)]
        return np.concatenate(self._marks)[:count], bands


_ODD = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5],
                np.uint64)  # fmt: skip


def _band_keys(values: Keys) -> Keys:
    parts = values.reshape(BANDS, -1)
    keys: Keys = (parts * _ODD[: parts.shape[1]]).sum(axis=1, dtype=np.uint64)
    return keys ^ (keys >> np.uint64(31))


def _earlier(marks: Marks, bands: Sequence[Keys]) -> Indices:
    """For each record the earlier one most like it, from ``NEAR`` on; -1 where there is none."""
    best = np.full(len(marks), np.nextafter(NEAR, 0), np.float64)
    earlier = np.full(len(marks), -1, np.int64)
    for keys in bands:
        order = np.argsort(keys, kind="stable")
        ranked = keys[order]
        fresh = np.concatenate([[True], ranked[1:] != ranked[:-1]]) if len(ranked) else ranked
        begin = np.maximum.accumulate(np.where(fresh, np.arange(len(ranked)), 0))
        places = np.arange(len(ranked))
        for other in [begin, *(places - lag for lag in range(1, _LAGS + 1))]:
            chosen = np.flatnonzero((other >= begin) & (other < places) & (best[order] < 1))
            for start in range(0, len(chosen), _ROWS):
                part = chosen[start : start + _ROWS]
                later, first = order[part], order[other[part]]
                share = (marks[later] == marks[first]).mean(axis=1)
                better = share > best[later]
                best[later[better]] = share[better]
                earlier[later[better]] = first[better]
    return earlier


def _shared(
    marks: Marks, bands: Sequence[Keys], held_marks: Marks, held_bands: Sequence[Keys]
) -> Indices:
    """The held-out records that nearly repeat one of the set."""
    found = np.zeros(len(held_marks), np.bool_)
    if not len(marks):
        return np.flatnonzero(found)
    for keys, held in zip(bands, held_bands):
        order = np.argsort(keys, kind="stable")
        ranked = keys[order]
        begin, end = np.searchsorted(ranked, held), np.searchsorted(ranked, held, "right")
        for lag in range(2 * _LAGS):
            chosen = np.flatnonzero((begin + lag < end) & ~found)
            for start in range(0, len(chosen), _ROWS):
                part = chosen[start : start + _ROWS]
                share = (held_marks[part] == marks[order[begin[part] + lag]]).mean(axis=1)
                found[part] |= share >= NEAR
    return np.flatnonzero(found)
