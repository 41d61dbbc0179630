"""What training will see of a record, token by token: for the terminal and for the page.

A ``PreviewRow`` holds plain values: tokens with their text, whether they are trained, and what
the rules say about the record. ``terminal`` colours them; ``preview_page`` makes them a page.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from glmforge.data.conversation import Conversation, Problem, shown
from glmforge.data.encoder import TokenizerLike
from glmforge.data.examples import Counts, Example, encode_many, limit_of
from glmforge.data.rules import check
from glmforge.data.segments import IGNORED, Labels
from glmforge.data.truncation import Truncation


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """Ids that make one piece of text together (a character may take several)."""

    ids: tuple[int, ...]
    text: str
    trained: bool
    control: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewRow:
    """One row of training, or a record that gives none (no tokens, the reason in ``notes``)."""

    source: str
    tokens: tuple[Token, ...]
    flags: tuple[str, ...]
    notes: tuple[str, ...]
    total_tokens: int
    trained_tokens: int


def preview_rows(
    items: Iterable[Conversation | Problem],
    tokenizer: TokenizerLike,
    *,
    max_length: int,
    labels: Labels = "all_turns",
    truncation: Truncation = "drop_last_turns",
) -> Iterator[PreviewRow]:
    """Yield what becomes of every record, in order.

    Args:
        items: what ``sources.iterate`` yields.
        tokenizer: the model's tokenizer.
        max_length: longest row in tokens.
        labels: which turns are trained.
        truncation: what happens to a dialogue that is too long.
    """
    limit = limit_of(tokenizer, max_length=max_length, labels=labels, truncation=truncation)
    pieces = Pieces(tokenizer)
    for item in items:
        if isinstance(item, Problem):
            yield _rowless(item.source, [item])
            continue
        counts = Counts()
        ((found, faults),) = encode_many([item], limit, truncation, counts)
        if counts.skipped:
            yield _rowless(item.source, faults)
            continue
        problems = [*check(item), *faults]
        flags = [problem.rule for problem in problems]
        changes = ("shortened", "split", "cut", "dropped", "no_label_left", "trailing_messages")
        flags += [name.replace("_", "-") for name in changes if getattr(counts, name)]
        notes = tuple(str(problem) for problem in problems)
        if not found:
            yield PreviewRow(source=item.source, tokens=(), flags=tuple(flags), notes=notes,
                             total_tokens=0, trained_tokens=0)  # fmt: skip
        for example in found:
            yield PreviewRow(
                source=item.source,
                tokens=tuple(pieces.of(example)),
                flags=tuple(dict.fromkeys(flags)),
                notes=notes,
                total_tokens=len(example.input_ids),
                trained_tokens=int((example.labels != IGNORED).sum()),
            )


class Chosen(Iterator[PreviewRow]):
    """The rows that carry a flag (None: all of them), remembering what went by."""

    def __init__(self, rows: Iterable[PreviewRow], flag: str | None) -> None:
        self._flag = flag
        self._rows = iter(rows)
        self._flags: Counter[str] = Counter()
        self._number = 0  # of rows with the flag
        self._total = 0

    def __next__(self) -> PreviewRow:
        for row in self._rows:
            self._total += 1
            self._flags.update(row.flags)
            if self._flag is None or self._flag in row.flags:
                self._number += 1
                return row
        raise StopIteration

    def nothing_at(self, first: int) -> str:
        """Say why no row was left to show from row ``first`` on; all of them went by."""
        if not self._total:
            return "no record in it, so no row to show: give a file with dialogues"
        if self._flag is None or self._number:
            kind = "rows" if self._flag is None else f"rows with the flag {self._flag!r}"
            last = f"{self._number:,}"
            return f"row {first:,}: the {kind} end at {last}; choose --row from 1 to {last}"
        flags = ", ".join(f"{name} ({n:,})" for name, n in sorted(self._flags.items()))
        there = (
            f"the flags of these rows are {flags}" if flags else "no row has any: leave --flag out"
        )
        return f"no row has the flag {self._flag!r}; {there}"


def _rowless(source: str, problems: Sequence[Problem]) -> PreviewRow:
    return PreviewRow(
        source=source,
        tokens=(),
        flags=tuple(dict.fromkeys(problem.rule for problem in problems)),
        notes=tuple(str(problem) for problem in problems),
        total_tokens=0,
        trained_tokens=0,
    )


_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_LONGEST_CHARACTER = 6  # tokens that one character may be cut into


class Pieces:
    """Ids to pieces of text that a person can read."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        named = getattr(tokenizer, "control_ids", {})
        self._controls = {number: name for name, number in named.items()}
        for number in getattr(tokenizer, "all_special_ids", ()):
            name = tokenizer.convert_ids_to_tokens(int(number))
            self._controls.setdefault(int(number), str(name))

    def of(self, example: Example) -> Iterator[Token]:
        """The tokens of an example; ids that are parts of one character come together."""
        held: list[int] = []
        for token, label in zip(example.input_ids.tolist(), example.labels.tolist()):
            trained = label != IGNORED
            if token in self._controls:
                if held:
                    yield self._token(held, "�", trained)
                    held = []
                yield Token(ids=(token,), text=self._controls[token], trained=trained, control=True)
                continue
            held.append(token)
            text = self._text(held)
            if text.endswith("�") and len(held) < _LONGEST_CHARACTER:
                continue
            yield self._token(held, text, trained)
            held = []
        if held:
            yield self._token(held, self._text(held), example.labels[-1] != IGNORED)

    def _token(self, ids: list[int], text: str, trained: bool) -> Token:
        return Token(ids=tuple(ids), text=text, trained=bool(trained), control=False)

    def _text(self, ids: Sequence[int]) -> str:
        """The text of a few ids, blanks of SentencePiece included."""
        names = self._tokenizer.convert_ids_to_tokens(list(ids))
        if all(isinstance(name, str) for name in names):
            codes = [_BYTE.fullmatch(name) for name in names]
            if all(codes):
                data = bytes(int(code.group(1), 16) for code in codes if code)
                return data.decode("utf-8", errors="replace")
            if len(names) == 1 and "▁" in names[0]:
                return str(names[0]).replace("▁", " ")
        return str(self._tokenizer.decode(list(ids)))


def terminal(row: PreviewRow, *, ids: bool = False) -> Text:
    """A row for the terminal: trained tokens green on dark, control tokens bold, ids on request."""
    text = Text()
    head = f"{row.source}  {row.total_tokens:,} tokens, {row.trained_tokens:,} trained"
    text.append(head, style="bold")
    if row.flags:
        text.append(f"  [{', '.join(row.flags)}]", style="yellow")
    text.append("\n")
    for note in row.notes:
        text.append(f"  {shown(note)}\n", style="yellow")
    for number, token in enumerate(row.tokens):
        style = "green" if token.trained else "dim" if number % 2 else "default"
        if token.trained:
            style += " on grey15" if number % 2 else " on grey23"
        if token.control:
            style += " bold"
        words = shown(token.text)
        text.append(words.replace("\n", "⏎\n"), style=style)
        if ids:
            text.append(f"[{' '.join(map(str, token.ids))}]", style="cyan")
    text.append("\n")
    return text
