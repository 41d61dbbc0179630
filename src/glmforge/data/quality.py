"""Would it be a mistake to train on this set? Everything a look at all records can tell.

``examine`` reads a stream of records once, keeps sums and samples of it (a million dialogues stay
well below 2 GiB), and returns a ``Report`` of plain values; ``verdict`` turns that into findings,
the worst first. Rules about single records are in ``rules``, likeness of records in ``copies``.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from glmforge.data.conversation import Conversation, Problem
from glmforge.data.copies import Copies
from glmforge.data.encoder import TokenizerLike
from glmforge.data.examples import check_encoding
from glmforge.data.rules import check
from glmforge.data.segments import Labels
from glmforge.data.similarity import Cluster, opening_of, pattern_of, topics
from glmforge.data.tallies import Frequent, Longest, Sample
from glmforge.data.token_figures import Tokens, measure
from glmforge.data.truncation import Truncation
from glmforge.data.unread import count_unread

Severity = Literal["blocks", "fix", "note"]
KEPT_PROBLEMS = 10_000
"""Problems that a report holds in full; the rest are counted."""
_TOPIC_TEXTS = 20_000  # questions whose topics are looked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What ``examine`` found. Shares are of ``records``; sources are ``file:line``.

    ``rules`` counts records by the rules they break; ``problems`` holds the first of them in full.
    ``topics`` are of ``topic_texts`` questions, an even choice where there are many.
    ``unread`` counts records by their fields that were not read.
    """

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
    topic_texts: int
    long_answers: tuple[tuple[str, int], ...]
    median_answer: int
    tokens: Tokens | None = None
    problems: tuple[Problem, ...] = field(default=(), repr=False)
    more_problems: int = 0
    file_rules: tuple[str, ...] = ()
    unread: dict[str, int] = field(default_factory=dict)


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

    Raises:
        DataError: a setting is unknown or impossible.
    """
    check_encoding(max_length=max_length, labels=labels, truncation=truncation)
    look = _Look()
    tokens = None
    if tokenizer is None:
        for _ in look.over(items):
            pass
    else:
        tokens = measure(look.over(items), tokenizer, look.tell, max_length=max_length,
                         labels=labels, truncation=truncation)  # fmt: skip
        tokens.counts.records += look.faulty
        tokens.counts.skipped += look.faulty
        tokens.counts.faulty_files = look.faulty_files
        tokens.counts.unread = look.unread  # those over the limit were rendered twice
    for item in validation:
        if isinstance(item, Conversation):
            look.copies.add_held_out(item)
    return look.report(tokens)


class _Look:
    """The sums of ``examine``."""

    def __init__(self) -> None:
        self.copies = Copies()
        self.unread: dict[str, int] = {}
        self.faulty = 0  # records with an error of reading or of the rules
        self.faulty_files = 0
        self._file_rules: dict[str, None] = {}
        self._records = self._dialogues = 0
        self._rules: Counter[str] = Counter()
        self._levels: dict[str, str] = {}
        self._first: dict[str, tuple[str, ...]] = {}
        self._problems: list[Problem] = []
        self._more_problems = 0
        self._openings, self._patterns = Frequent(), Frequent()
        self._questions: Sample[str] = Sample(_TOPIC_TEXTS)
        self._lengths = array("q")
        self._long = Longest()

    def over(self, items: Iterable[Conversation | Problem]) -> Iterator[Conversation]:
        """Take in every record; yield those that can be encoded."""
        for item in items:
            if isinstance(item, Problem) and item.is_of_file:
                self.faulty_files += 1
                self._file_rules[item.rule] = None
                self.tell(item.source, [item])
                continue
            self._records += 1
            problems = [item] if isinstance(item, Problem) else check(item)
            if problems:
                self.tell(item.source, problems)
            if isinstance(item, Conversation):
                self._take(item)
            if any(problem.level == "error" for problem in problems):
                self.faulty += 1
            elif isinstance(item, Conversation):
                yield item

    def tell(self, source: str, problems: Sequence[Problem]) -> None:
        """Note the problems of one record; it counts once for each rule."""
        self._rules.update({problem.rule for problem in problems})
        for problem in problems:
            if self._levels.get(problem.rule) != "error":
                self._levels[problem.rule] = problem.level
            shown = self._first.get(problem.rule, ())
            if len(shown) < 3:
                self._first[problem.rule] = (*shown, str(problem))
        room = KEPT_PROBLEMS - len(self._problems)
        self._problems += problems[:room]
        self._more_problems += len(problems[room:])

    def _take(self, conversation: Conversation) -> None:
        self._dialogues += 1
        self.copies.add(conversation)
        count_unread(self.unread, conversation.unread)
        question = next((m.content for m in conversation.messages if m.role == "user"), None)
        if question is not None:
            self._openings.add(opening_of(question), question)
            self._questions.add(question[:400])
        for message in conversation.messages:
            if message.role == "assistant" and message.text.strip():
                text = message.text
                self._patterns.add(pattern_of(text), text)
                self._lengths.append(len(text))
                self._long.add(len(text), conversation.source)

    def report(self, tokens: Tokens | None) -> Report:
        """Everything that was found."""
        copies = self.copies.facts()
        median = int(np.median(np.array(self._lengths))) if len(self._lengths) else 0
        names = Frequent()
        for name, text in zip(topics(self._questions.items), self._questions.items):
            names.add(name, text)
        return Report(
            records=self._records,
            rules=dict(self._rules.most_common()),
            levels=self._levels,
            examples=self._first,
            turns=len(self._lengths) / self._dialogues if self._dialogues else 0.0,
            exact_copies=copies.exact,
            near_copies=copies.near,
            copy_examples=copies.examples,
            overlap=copies.overlap,
            validation_records=copies.held_out,
            overlap_examples=copies.overlap_examples,
            patterns=self._openings.most(),
            answers=self._patterns.most(),
            topics=names.most(),
            topic_texts=len(self._questions.items),
            long_answers=self._long.above(max(10 * median, 200)),
            median_answer=median,
            tokens=tokens,
            problems=tuple(self._problems),
            more_problems=self._more_problems,
            file_rules=tuple(self._file_rules),
            unread=self.unread,
        )
