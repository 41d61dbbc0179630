"""How long the rows of a set are, what the limit does to the long ones, what the tokenizer changes.

``measure`` encodes a stream of dialogues once and keeps only numbers of them; ``quality`` puts its
``Tokens`` into the report. Dialogues over the limit are rendered a second time, under it.
"""

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from glmforge.data.conversation import Conversation, Problem
from glmforge.data.encoder import TokenizerLike
from glmforge.data.examples import Counts, Example, encode_many, limit_of
from glmforge.data.segments import IGNORED, Labels
from glmforge.data.truncation import Truncation

_ROUND_TRIP_LIMIT = 2_000  # messages that are encoded and decoded again
_OVERLONG_BATCH = 256
Tell = Callable[[str, list[Problem]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Token figures of the rows. ``bins`` are upper limits in tokens with the rows below them."""

    counts: Counts
    mean: float
    median: int
    p95: int
    longest: int
    bins: tuple[tuple[int, int], ...]
    overlong: int
    unknown_tokens: int
    changed_texts: int
    changed_example: str
    compared_texts: int


def measure(
    conversations: Iterable[Conversation],
    tokenizer: TokenizerLike,
    tell: Tell,
    *,
    max_length: int,
    labels: Labels,
    truncation: Truncation,
) -> Tokens:
    """Encode dialogues without a fault of their own and count.

    Args:
        conversations: a stream; each is dropped when it is counted.
        tokenizer: of the model.
        tell: is called with the source and the problems of a dialogue that the family cannot
            express or that is too long.
        max_length: longest row in tokens.
        labels: which turns are trained.
        truncation: what happens to a dialogue that is too long.
    """
    endless = limit_of(tokenizer, max_length=1 << 30, labels=labels, truncation=truncation)
    figures = _Figures(tokenizer, tell, max_length, labels, truncation)
    pending: deque[Conversation] = deque()

    def passing() -> Iterator[Conversation]:
        for conversation in conversations:
            pending.append(conversation)
            yield conversation

    for found, faults in encode_many(passing(), endless, truncation, figures.counts):
        figures.add(pending.popleft(), found, faults)
    return figures.tokens()


class _Figures:
    """The sums of ``measure``."""

    def __init__(
        self,
        tokenizer: Any,
        tell: Tell,
        max_length: int,
        labels: Labels,
        truncation: Truncation,
    ) -> None:
        self.counts = Counts()
        self._tell, self._truncation = tell, truncation
        self._limit = limit_of(
            tokenizer, max_length=max_length, labels=labels, truncation=truncation
        )
        self._lengths = array("q")
        self._unknown_id = getattr(tokenizer, "unk_token_id", None)
        self._unknown = self._overlong = 0
        self._waiting: list[Conversation] = []
        self._changes = _Changes(tokenizer)

    def add(self, conversation: Conversation, found: list[Example], faults: list[Problem]) -> None:
        """Count a dialogue's rows as they are without a limit."""
        if faults:
            self._tell(conversation.source, faults)
        lengths = [len(example.input_ids) for example in found]
        self._lengths.extend(lengths)
        if self._unknown_id is not None:
            self._unknown += sum(int((e.input_ids == self._unknown_id).sum()) for e in found)
        self._changes.add(conversation)
        if max(lengths, default=0) > self._limit.max_length:
            self._overlong += 1
            self.counts.records -= 1  # it is counted again, under the limit
            self.counts.rows -= len(found)
            self.counts.total_tokens -= sum(lengths)
            self.counts.trained_tokens -= sum(int((e.labels != IGNORED).sum()) for e in found)
            self._waiting.append(conversation)
            if len(self._waiting) >= _OVERLONG_BATCH:
                self._shorten()

    def _shorten(self) -> None:
        """Render the waiting dialogues under the limit."""
        waiting, self._waiting = self._waiting, []
        before = _changed(self.counts)
        for conversation, (_, problems) in zip(
            waiting, encode_many(waiting, self._limit, self._truncation, self.counts)
        ):
            after = _changed(self.counts)
            done = [name for name, number in after.items() if number > before[name]]
            before = after
            self._tell(conversation.source, problems or [self._changed(conversation, done)])

    def _changed(self, conversation: Conversation, done: list[str]) -> Problem:
        return Problem(
            source=conversation.source,
            rule="too-long",
            text=f"more than max_length {self._limit.max_length:,} tokens: {', '.join(done)}",
            advice="raise max_length, or choose another truncation",
            level="warning",
        )

    def tokens(self) -> Tokens:
        """The figures when all dialogues were added."""
        self._shorten()
        sizes = np.array(self._lengths if len(self._lengths) else [0])
        edges = [64 << n for n in range(12)]
        bins = tuple(
            (edge, int(((sizes < edge) & (sizes >= (edge // 2 if edge > 64 else 0))).sum()))
            for edge in edges
        )
        return Tokens(
            counts=self.counts,
            mean=float(sizes.mean()),
            median=int(np.median(sizes)),
            p95=int(np.percentile(sizes, 95)),
            longest=int(sizes.max()),
            bins=tuple((edge, count) for edge, count in bins if count),
            overlong=self._overlong,
            unknown_tokens=self._unknown,
            changed_texts=self._changes.changed,
            changed_example=self._changes.example,
            compared_texts=self._changes.compared,
        )


def _changed(counts: Counts) -> dict[str, int]:
    return {
        "turns are lost at its end or start": counts.lost_turns,
        "shortened": counts.shortened,
        "split into pieces": counts.split,
        "its answer is cut": counts.cut,
    }


class _Changes:
    """How many of the first texts the tokenizer changes (it folds widths, say), with an example."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._able = hasattr(tokenizer, "encode_text") and hasattr(tokenizer, "decode")
        self.changed = self.compared = 0
        self.example = ""

    def add(self, conversation: Conversation) -> None:
        for message in conversation.messages:
            if not self._able or self.compared >= _ROUND_TRIP_LIMIT:
                return
            self.compared += 1
            text = message.text
            back = self._tokenizer.decode(self._tokenizer.encode_text(text))
            if back.strip() != text.strip():
                self.changed += 1
                seen = f"{conversation.source}: {text[:40]!r} → {back[:40]!r}"
                self.example = self.example or seen
