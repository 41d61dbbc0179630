"""Would it be a mistake to train on this set? Everything a look at all records can tell.

``examine`` reads conversations once and returns a ``Report`` of plain values; ``verdict`` turns
that into findings, the worst first. Rules about single records are in ``rules``, likeness between
records in ``similarity``.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from glmforge.data.conversation import Conversation, Problem
from glmforge.data.encoder import TokenizerLike
from glmforge.data.examples import Counts, encode_many, limit_of
from glmforge.data.rules import check
from glmforge.data.segments import IGNORED, Labels
from glmforge.data.similarity import (
    Cluster,
    NearIndex,
    clusters,
    copy_key,
    opening_of,
    pattern_of,
    signature,
    topics,
    words_of,
)
from glmforge.data.truncation import Truncation

Severity = Literal["blocks", "fix", "note"]
_NEAR_LIMIT = 100_000  # records whose near copies are looked for
_ROUND_TRIP_LIMIT = 2_000  # messages that are encoded and decoded again


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What ``examine`` found. Shares are of ``records``; sources are ``file:line``."""

    records: int
    rules: dict[str, int]
    levels: dict[str, str]
    examples: dict[str, tuple[str, ...]]
    turns: float
    exact_copies: int
    near_copies: int
    copy_examples: tuple[str, ...]
    overlap: int
    validation_records: int
    overlap_examples: tuple[str, ...]
    patterns: tuple[Cluster, ...]
    answers: tuple[Cluster, ...]
    topics: tuple[Cluster, ...]
    long_answers: tuple[tuple[str, int], ...]
    median_answer: int
    tokens: Tokens | None = None
    problems: tuple[Problem, ...] = field(default=(), repr=False)


def examine(
    items: Iterable[Conversation | Problem],
    *,
    validation: Iterable[Conversation | Problem] = (),
    tokenizer: TokenizerLike | None = None,
    max_length: int = 2048,
    labels: Labels = "all_turns",
    truncation: Truncation = "drop_last_turns",
) -> Report:
    """Look at every record of a training set.

    Args:
        items: what ``sources.iterate`` yields.
        validation: the held-out records, to find those that are also trained on.
        tokenizer: for token figures; None leaves them out.
        max_length: longest row in tokens.
        labels: which turns are trained.
        truncation: what happens to a dialogue that is too long.
    """
    conversations: list[Conversation] = []
    problems: list[Problem] = []
    unread = 0
    for item in items:
        if isinstance(item, Problem):
            problems.append(item)
            unread += 1
        else:
            conversations.append(item)
            problems.extend(check(item))
    rules, levels, examples = _by_rule(problems)
    copies = _Copies(conversations)
    held = [item for item in validation if isinstance(item, Conversation)]
    overlap = [c.source for c in held if copies.holds(c)]
    questions, answers, lengths = _texts(conversations)
    long_answers, median = _outliers(conversations, lengths)
    return Report(
        records=len(conversations) + unread,
        rules=rules,
        levels=levels,
        examples=examples,
        turns=len(answers) / len(conversations) if conversations else 0.0,
        exact_copies=copies.exact,
        near_copies=copies.near,
        copy_examples=tuple(copies.examples[:3]),
        overlap=len(overlap),
        validation_records=len(held),
        overlap_examples=tuple(overlap[:3]),
        patterns=tuple(clusters([opening_of(text) for text in questions], questions)),
        answers=tuple(clusters([pattern_of(text) for text in answers], answers)),
        topics=tuple(clusters(topics(questions), questions)),
        long_answers=long_answers,
        median_answer=median,
        tokens=None
        if tokenizer is None
        else _tokens(conversations, tokenizer, max_length, labels, truncation),
        problems=tuple(problems),
    )


def _by_rule(
    problems: Sequence[Problem],
) -> tuple[dict[str, int], dict[str, str], dict[str, tuple[str, ...]]]:
    """Number, worst level and first three problems of every rule, the most frequent first."""
    counted = Counter(problem.rule for problem in problems)
    levels: dict[str, str] = {}
    examples: dict[str, tuple[str, ...]] = {}
    for problem in problems:
        if levels.get(problem.rule) != "error":
            levels[problem.rule] = problem.level
        shown = examples.get(problem.rule, ())
        if len(shown) < 3:
            examples[problem.rule] = (*shown, str(problem))
    return dict(counted.most_common()), levels, examples


class _Copies:
    """Exact and near copies within a set, and whether a further record repeats one of it."""

    def __init__(self, conversations: Sequence[Conversation]) -> None:
        self.exact = self.near = 0
        self.examples: list[str] = []
        self._keys: dict[bytes, str] = {}
        self._sources: list[str] = []
        self._index = NearIndex()
        for conversation in conversations:
            key = copy_key(conversation)
            if key in self._keys:
                self.exact += 1
                self._note(f"{conversation.source} repeats {self._keys[key]}")
                continue
            self._keys[key] = conversation.source
            if len(self._sources) < _NEAR_LIMIT:
                self._add(conversation)

    def _add(self, conversation: Conversation) -> None:
        mark = signature(words_of(conversation))
        match = self._index.nearest(mark)
        if match is not None:
            self.near += 1
            self._note(f"{conversation.source} nearly repeats {self._sources[match[0]]}")
        self._index.add(mark)
        self._sources.append(conversation.source)

    def _note(self, text: str) -> None:
        if len(self.examples) < 100:
            self.examples.append(text)

    def holds(self, conversation: Conversation) -> bool:
        """Whether the set has this record or a near copy."""
        if copy_key(conversation) in self._keys:
            return True
        return self._index.nearest(signature(words_of(conversation))) is not None


def _texts(conversations: Sequence[Conversation]) -> tuple[list[str], list[str], list[int]]:
    """First questions, all answers, and the answers' lengths in characters."""
    questions: list[str] = []
    answers: list[str] = []
    for conversation in conversations:
        users = [m.content for m in conversation.messages if m.role == "user"]
        questions.extend(users[:1])
        said = (m.text for m in conversation.messages if m.role == "assistant")
        answers.extend(text for text in said if text.strip())
    return questions, answers, [len(answer) for answer in answers]


def _outliers(
    conversations: Sequence[Conversation], lengths: Sequence[int]
) -> tuple[tuple[tuple[str, int], ...], int]:
    """Answers at least ten times as long as the median one (characters), longest first."""
    if not lengths:
        return (), 0
    median = int(np.median(lengths))
    limit = max(10 * median, 200)
    found = [
        (conversation.source, len(message.text))
        for conversation in conversations
        for message in conversation.messages
        if message.role == "assistant" and len(message.text) > limit
    ]
    return tuple(sorted(found, key=lambda pair: -pair[1])[:5]), median


def _tokens(
    conversations: Sequence[Conversation],
    tokenizer: TokenizerLike,
    max_length: int,
    labels: Labels,
    truncation: Truncation,
) -> Tokens:
    # Lengths of whole rows first, whatever the limit; then what the limit makes of the long ones.
    endless = limit_of(tokenizer, max_length=1 << 30, labels=labels, truncation=truncation)
    counts = Counts()
    lengths: list[int] = []
    overlong: list[Conversation] = []
    unknown = 0
    unknown_id = getattr(tokenizer, "unk_token_id", None)
    encoded = encode_many(conversations, endless, truncation, counts)
    for conversation, (found, _) in zip(conversations, encoded):
        lengths.extend(len(example.input_ids) for example in found)
        if unknown_id is not None:
            unknown += sum(int((example.input_ids == unknown_id).sum()) for example in found)
        if any(len(example.input_ids) > max_length for example in found):
            overlong.append(conversation)
            counts.records -= 1
            counts.rows -= len(found)
            counts.total_tokens -= sum(len(example.input_ids) for example in found)
            counts.trained_tokens -= sum(int((e.labels != IGNORED).sum()) for e in found)
    limit = limit_of(tokenizer, max_length=max_length, labels=labels, truncation=truncation)
    for _ in encode_many(overlong, limit, truncation, counts):
        pass
    sizes = np.array(lengths or [0])
    edges = [64 << n for n in range(12)]
    bins = tuple(
        (edge, int(((sizes < edge) & (sizes >= (edge // 2 if edge > 64 else 0))).sum()))
        for edge in edges
    )
    changed, example, compared = _round_trips(conversations, tokenizer)
    return Tokens(
        counts=counts,
        mean=float(sizes.mean()),
        median=int(np.median(sizes)),
        p95=int(np.percentile(sizes, 95)),
        longest=int(sizes.max()),
        bins=tuple((edge, count) for edge, count in bins if count),
        overlong=len(overlong),
        unknown_tokens=unknown,
        changed_texts=changed,
        changed_example=example,
        compared_texts=compared,
    )


def _round_trips(conversations: Sequence[Conversation], tokenizer: Any) -> tuple[int, str, int]:
    """How many texts the tokenizer changes (it folds widths, say), with one example."""
    encode = getattr(tokenizer, "encode_text", None)
    if encode is None or not hasattr(tokenizer, "decode"):
        return 0, "", 0
    changed, compared, example = 0, 0, ""
    for conversation in conversations:
        for message in conversation.messages:
            if compared >= _ROUND_TRIP_LIMIT:
                return changed, example, compared
            compared += 1
            text = message.text
            back = tokenizer.decode(encode(text))
            if back.strip() != text.strip():
                changed += 1
                example = example or f"{conversation.source}: {text[:40]!r} → {back[:40]!r}"
    return changed, example, compared
