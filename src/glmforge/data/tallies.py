"""What can be told of a stream of any length in little memory: frequent names, even samples.

Small sets are counted exactly. Of larger ones ``Frequent`` keeps the names that matter (it forgets
the rarest half when it is full), ``Sample`` an even choice (it halves itself), ``Longest`` a few.
"""

import heapq
from typing import Generic, TypeVar

from glmforge.data.similarity import Cluster

T = TypeVar("T")


class Frequent:
    """Counts names, each with the first text that had it; rare ones above the limit are forgotten.

    What is forgotten is rarer than one in ``limit / 2`` at that time, so the count of a name that
    a hundredth of all texts share is exact to within a small part.
    """

    def __init__(self, limit: int = 100_000) -> None:
        self._limit = limit
        self._counts: dict[str, int] = {}
        self._examples: dict[str, str] = {}

    def add(self, name: str, text: str) -> None:
        """Count a name."""
        known = self._counts.get(name)
        if known is not None:
            self._counts[name] = known + 1
            return
        self._counts[name] = 1
        self._examples[name] = text[:80]
        if len(self._counts) > self._limit:
            self._counts = dict(self._ranked()[: self._limit // 2])
            self._examples = {name: self._examples[name] for name in self._counts}

    def _ranked(self) -> list[tuple[str, int]]:
        return sorted(self._counts.items(), key=lambda item: -item[1])

    def most(self, number: int = 5) -> tuple[Cluster, ...]:
        """The most frequent names; of equals the first seen."""
        return tuple(
            Cluster(name=name, count=count, example=self._examples[name])
            for name, count in self._ranked()[:number]
        )


class Sample(Generic[T]):
    """Keeps every item until there are twice ``limit``, then every second one, and so on."""

    def __init__(self, limit: int) -> None:
        self.items: list[T] = []
        self._limit = limit
        self._stride = 1
        self._seen = 0

    def add(self, item: T) -> None:
        """Take an item when it is its turn."""
        if self._seen % self._stride == 0:
            self.items.append(item)
            if len(self.items) >= 2 * self._limit:
                self.items = self.items[::2]
                self._stride *= 2
        self._seen += 1


class Longest:
    """Keeps the longest few of many texts by their places; of equals the first seen."""

    def __init__(self, number: int = 5) -> None:
        self._number = number
        self._heap: list[tuple[int, int, str]] = []
        self._seen = 0

    def add(self, length: int, place: str) -> None:
        """Take a text's length."""
        self._seen += 1
        entry = (length, -self._seen, place)
        if len(self._heap) < self._number:
            heapq.heappush(self._heap, entry)
        elif entry > self._heap[0]:
            heapq.heapreplace(self._heap, entry)

    def above(self, limit: int) -> tuple[tuple[str, int], ...]:
        """(place, length) of those above a limit, the longest first."""
        found = sorted(self._heap, reverse=True)
        return tuple((place, length) for length, _, place in found if length > limit)
