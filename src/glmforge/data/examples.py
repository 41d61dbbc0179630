"""Conversations to examples: ids and labels that fit, with everything that was done counted.

``build_examples`` is the whole path in memory (``prepared`` is the same path to disk, shared by
``encode_many``). An ``ExampleList`` knows the lengths and trained tokens of its examples without
touching them, which is all that packing and the loader's balancing ask.
"""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal, overload

import numpy as np
import numpy.typing as npt

from glmforge.data.conversation import Conversation, Problem
from glmforge.data.encoder import TokenizerLike
from glmforge.data.rules import faults_of
from glmforge.data.segments import IGNORED, Ids, Inexpressible, Labels, row_arrays
from glmforge.data.templates import LABELS, ended, nothing_trained, template_for
from glmforge.data.truncation import POLICIES, Fitted, Limit, Truncation, fit
from glmforge.data.unread import count_unread
from glmforge.errors import DataError, Unlisted

OnError = Literal["stop", "skip"]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One row before packing: int32 ``input_ids`` and unshifted ``labels`` of equal length."""

    input_ids: Ids
    labels: Ids
    source: str


@dataclass(slots=True, kw_only=True)
class Counts:
    """What happened to the records. Rows are what training sees; records are what was read.

    ``no_label_left`` counts the dropped whose questions alone fill a row; ``unread`` counts the
    records by their fields that were not read (``unread_line`` says them); ``faulty_files`` are
    files of which something is wrong as a whole, beyond their records.
    """

    records: int = 0
    rows: int = 0
    skipped: int = 0
    dropped: int = 0
    no_label_left: int = 0
    shortened: int = 0
    split: int = 0
    cut: int = 0
    lost_turns: int = 0
    trailing_messages: int = 0
    left_out_reasoning: int = 0
    faulty_files: int = 0
    total_tokens: int = 0
    trained_tokens: int = 0
    unread: dict[str, int] = field(default_factory=dict)

    def add(self, other: "Counts") -> None:
        """Add another part's counts to these."""
        for name, number in other.unread.items():
            self.unread[name] = self.unread.get(name, 0) + number
        for item in fields(self):
            if item.name == "unread":
                continue
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))

    def leave_out(self, problem: Problem) -> None:
        """Count what a reader found in place of a record, or of a file."""
        if problem.is_of_file:
            self.faulty_files += 1
        else:
            self.records += 1
            self.skipped += 1

    def __str__(self) -> str:
        share = self.trained_tokens / self.total_tokens if self.total_tokens else 0.0
        line = (
            f"{self.records:,} records read, {self.rows:,} rows kept: "
            f"{self.total_tokens:,} tokens, {self.trained_tokens:,} trained ({share:.0%})"
        )
        cut = self.dropped - self.no_label_left
        notes = {
            "skipped for faults": self.skipped,
            "dropped as too long: no label left": self.no_label_left,
            "dropped as too long: an answer would be cut": cut,
            "shortened": self.shortened,
            "split": self.split,
            "with a cut answer": self.cut,
        }
        if any(notes.values()):
            notes["untouched"] = self.records - sum(notes.values())
        notes |= {
            "turns lost to the limit": self.lost_turns,
            "unanswered messages dropped at the end": self.trailing_messages,
            "thinking texts left out (the model has no place for them)": self.left_out_reasoning,
            "files damaged, empty or of no known kind": self.faulty_files,
        }
        said = ", ".join(f"{number:,} {what}" for what, number in notes.items() if number)
        return f"{line}\n{said}" if said else line

    @property
    def left_out(self) -> int:
        """Records that training does not see at all; each is written to ``skipped.jsonl``."""
        return self.skipped + self.dropped


class ExampleList(Sequence[Example]):
    """Examples in memory with their lengths and trained tokens as arrays."""

    def __init__(self, examples: Iterable[Example]) -> None:
        self._examples = tuple(examples)
        self.lengths: Int64s = np.array([len(e.input_ids) for e in self._examples], np.int64)
        self.trained_counts: Int64s = np.array(
            [int((e.labels != IGNORED).sum()) for e in self._examples], np.int64
        )

    def __len__(self) -> int:
        return len(self._examples)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> "ExampleList": ...
    def __getitem__(self, index: int | slice) -> "Example | ExampleList":
        if isinstance(index, slice):
            return ExampleList(self._examples[index])
        return self._examples[index]

    def __iter__(self) -> Iterator[Example]:
        return iter(self._examples)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleSet:
    """Examples, the counts of how they came about, and why records were left out.

    Problems of level "error" are of faulty records, of level "warning" of those dropped as too
    long.
    """

    examples: Sequence[Example]
    counts: Counts
    problems: tuple[Problem, ...] = ()


def build_examples(
    conversations: Iterable[Conversation],
    tokenizer: TokenizerLike,
    *,
    max_length: int,
    labels: Labels = "all_turns",
    truncation: Truncation = "drop_last_turns",
    on_error: OnError = "stop",
    max_positions: int | None = None,
) -> ExampleSet:
    """Render every conversation to examples no longer than ``max_length`` tokens.

    Args:
        conversations: as ``read_conversations`` gives them.
        tokenizer: a tokenizer from ``load_tokenizer``.
        max_length: longest example in tokens.
        labels: which turns are trained.
        truncation: what happens to a dialogue that is too long.
        on_error: "stop" raises for records that break a rule, "skip" leaves them out, counted.
        max_positions: the model's longest sequence in tokens, where it has one.

    Raises:
        DataError: a setting is unknown, ``max_length`` is above ``max_positions``, records break
            rules (all named), or nothing is left to train on.
    """
    limit = limit_of(
        tokenizer,
        max_length=max_length,
        labels=labels,
        truncation=truncation,
        max_positions=max_positions,
    )
    examples: list[Example] = []
    counts = Counts()
    problems: list[Problem] = []
    for found, faults in encode_many(conversations, limit, truncation, counts):
        examples.extend(found)
        problems.extend(faults)
    return finished(examples, counts, problems, on_error)


def finished(
    examples: Sequence[Example], counts: Counts, problems: Sequence[Problem], on_error: OnError
) -> ExampleSet:
    """The set of what was encoded, unless faults or emptiness forbid it.

    Raises:
        DataError: as ``build_examples``.
    """
    if (counts.skipped or counts.faulty_files) and on_error == "stop":
        raise problems_error([problem for problem in problems if problem.level == "error"])
    if not examples:
        raise nothing_left(counts, problems)
    return ExampleSet(examples=ExampleList(examples), counts=counts, problems=tuple(problems))


def limit_of(
    tokenizer: TokenizerLike,
    *,
    max_length: int,
    labels: Labels,
    truncation: Truncation,
    max_positions: int | None = None,
) -> Limit:
    """Check the settings of encoding and bind them to the tokenizer's template.

    Raises:
        DataError: a setting is unknown or impossible; all of them at once.
    """
    check_encoding(
        max_length=max_length, labels=labels, truncation=truncation, max_positions=max_positions
    )
    return Limit(template=template_for(tokenizer), labels=labels, max_length=max_length)


def check_encoding(
    *, max_length: int, labels: Labels, truncation: Truncation, max_positions: int | None = None
) -> None:
    """Refuse settings of encoding that are unknown or impossible.

    Raises:
        DataError: all of them at once.
    """
    wrong = []
    if labels not in LABELS:
        wrong.append(f"data.labels is {labels!r}; use one of {', '.join(LABELS)}")
    if truncation not in POLICIES:
        wrong.append(f"data.truncation is {truncation!r}; use one of {', '.join(POLICIES)}")
    if max_length < 8:
        wrong.append(f"data.max_length is {max_length}; a row needs at least 8 tokens")
    if max_positions is not None and max_length > max_positions:
        wrong.append(
            f"data.max_length is {max_length}, above the {max_positions} positions of the model; "
            f"set it to {max_positions} or less"
        )
    if wrong:
        raise DataError(wrong)


_BATCH_CHARACTERS = 4_000_000  # dialogues whose texts are encoded in one call


def encode_many(
    conversations: Iterable[Conversation],
    limit: Limit,
    truncation: Truncation,
    counts: Counts,
    *,
    prefetch: bool = True,
) -> Iterator[tuple[list[Example], list[Problem]]]:
    """Yield the rows of every conversation, or why it gives none.

    Args:
        conversations: unchecked; every record is judged here.
        limit: what ``limit_of`` gives.
        truncation: policy for what is too long.
        counts: is added to as the rows are yielded.
        prefetch: encode the texts of many conversations in one call, on all cores; False works
            through them one by one on one core.
    """
    batch: list[Conversation] = []
    characters = 0
    for conversation in conversations:
        batch.append(conversation)
        characters += sum(len(message.text) for message in conversation.messages)
        if characters >= _BATCH_CHARACTERS:
            yield from _encode_batch(batch, limit, truncation, counts, prefetch)
            batch, characters = [], 0
    yield from _encode_batch(batch, limit, truncation, counts, prefetch)


def _encode_batch(
    batch: Sequence[Conversation],
    limit: Limit,
    truncation: Truncation,
    counts: Counts,
    prefetch: bool,
) -> Iterator[tuple[list[Example], list[Problem]]]:
    faults = [faults_of(conversation) for conversation in batch]
    if prefetch and limit.template.encoder is not None:
        with limit.template.encoder.prefetching():
            for conversation, found in zip(batch, faults):
                if not found:
                    with contextlib.suppress(Inexpressible):  # said when it is encoded
                        limit.render(ended(conversation, limit.template, limit.labels)[0])
    for conversation, found in zip(batch, faults):
        counts.records += 1
        count_unread(counts.unread, conversation.unread)
        if found:
            counts.skipped += 1
            yield [], found
        else:
            yield _encode_one(conversation, limit, truncation, counts)


def _encode_one(
    conversation: Conversation, limit: Limit, truncation: Truncation, counts: Counts
) -> tuple[list[Example], list[Problem]]:
    """Encode one checked conversation, counting what happened: its rows, or why there are none."""
    conversation, trailing = ended(conversation, limit.template, limit.labels)
    counts.trailing_messages += trailing
    leaves_out = limit.template.leaves_out_thinking
    counts.left_out_reasoning += sum(leaves_out(message) for message in conversation.messages)
    try:
        fitted = fit(conversation, limit, truncation)
        if not fitted.rows and fitted.outcome != "dropped":
            raise nothing_trained(limit.labels)
    except Inexpressible as error:
        counts.skipped += 1
        problem = Problem(
            source=conversation.source, rule=error.rule, text=error.text, advice=error.advice
        )
        return [], [problem]
    if not fitted.rows:
        counts.dropped += 1
        counts.no_label_left += fitted.no_label_left
        return [], [_too_long(conversation.source, fitted, limit)]
    counts.lost_turns += fitted.lost_turns
    counts.shortened += fitted.outcome == "shortened"
    counts.split += fitted.outcome == "split"
    counts.cut += fitted.outcome == "cut"
    examples = []
    for row in fitted.rows:
        input_ids, labels = row_arrays(row)
        examples.append(Example(input_ids=input_ids, labels=labels, source=conversation.source))
        counts.rows += 1
        counts.total_tokens += len(input_ids)
        counts.trained_tokens += int((labels != IGNORED).sum())
    return examples, []


def _too_long(source: str, fitted: Fitted, limit: Limit) -> Problem:
    what = "no label would be left" if fitted.no_label_left else "an answer would be cut"
    return Problem(
        source=source,
        rule="too-long",
        text=f"{fitted.tokens:,} tokens, more than max_length {limit.max_length:,}: dropped, "
        f"because {what}",
        advice="raise max_length, shorten the record or choose another truncation",
        level="warning",
    )


def nothing_left(counts: Counts, problems: Sequence[Problem], files: str = "") -> DataError:
    """The error for a set without a single row to train on; most often it names one cause."""
    place = f"{files}: " if files else ""
    said = str(counts).replace("\n", "; ")
    return DataError(
        f"{place}no trainable row is left: {said}{_usual_cause(counts, problems)}. Look at the "
        "records with `data check`"
    )


def _usual_cause(counts: Counts, problems: Sequence[Problem]) -> str:
    """The rule that most of the left out records break, with the first of them."""
    faults = [problem for problem in problems if problem.level == "error"]
    if counts.dropped >= max(counts.skipped, 1):
        return ". Most are too long: raise data.max_length"
    if not faults:
        return ""
    ((rule, _),) = Counter(problem.rule for problem in faults).most_common(1)
    first = next(problem for problem in faults if problem.rule == rule)
    return f". Most break the rule {rule}, first {first}"


LISTED = 50
"""Problems written out in one error; the rest are counted by rule."""


def problems_error(problems: Sequence[Problem], *, total: int | None = None) -> DataError:
    """One error for many problems: the first ones in full, the rest counted by rule.

    Args:
        problems: all of them, or the first of each part of a set.
        total: how many there are in all, where ``problems`` are not all.
    """
    lines = [str(problem) for problem in problems[:LISTED]]
    rest = max(total or 0, len(problems)) - len(lines)
    if rest:
        rules: dict[str, int] = {}
        for problem in problems[LISTED:]:
            rules[problem.rule] = rules.get(problem.rule, 0) + 1
        said = ", ".join(f"{number:,} {rule}" for rule, number in rules.items())
        text = f"and {rest:,} more ({said or 'alike'}); `data check` lists them all"
        lines.append(Unlisted(text, rest))
    return DataError(lines)
