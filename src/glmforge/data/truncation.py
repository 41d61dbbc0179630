"""What happens to a dialogue that is longer than ``max_length``: one function a policy.

No policy lies: a cut answer never gets a terminator, template tokens are never lost, and every
change is named so that it can be counted before training. A turn is a user message with all that
answers it. Policies work on messages and render again, so the ids that remain are exactly those
of the shorter dialogue.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from glmforge.data.conversation import Conversation, Message, head_length, turn_starts
from glmforge.data.segments import Inexpressible, Labels, Row, Segment, Template, row_length
from glmforge.data.templates import render

Truncation = Literal[
    "drop_last_turns",
    "drop",
    "drop_oldest_turns",
    "split",
    "truncate_prompt",
    "truncate_right",
    "error",
]
Outcome = Literal["whole", "shortened", "split", "cut", "dropped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Rows that fit, what was done for it, and how many whole turns it cost.

    ``tokens`` is the longest row before; ``no_label_left`` says of a dropped dialogue that what
    fits of it holds nothing to train.
    """

    rows: list[Row]
    outcome: Outcome
    lost_turns: int = 0
    tokens: int = 0
    no_label_left: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What a policy works with: the renderer's settings and the longest row in tokens."""

    template: Template
    labels: Labels
    max_length: int

    @property
    def trains_last_only(self) -> bool:
        """Whether only a dialogue's last turn is trained."""
        if self.labels == "official":
            return self.template.one_row_per_turn
        return self.labels == "last_turn"

    def render(self, conversation: Conversation) -> list[Row]:
        """Rows of a conversation."""
        return render(conversation, self.template, self.labels)

    def fits(self, rows: Sequence[Row]) -> bool:
        """Whether every row is short enough."""
        return all(row_length(row) <= self.max_length for row in rows)


Policy = Callable[[Conversation, list[Row], Limit], Fitted]
Shorten = Callable[[Conversation, Limit], tuple[list[Row], int]]
"""Makes a dialogue fit: its rows (none where it cannot) and the number of turns that went."""
_DROPPED = Fitted(rows=[], outcome="dropped")


def fit(conversation: Conversation, limit: Limit, truncation: Truncation) -> Fitted:
    """Render a conversation and make it fit.

    Args:
        conversation: it ends on an assistant message, or is text.
        limit: template, labels and longest row.
        truncation: the policy's name.

    Returns:
        Rows no longer than ``limit.max_length``; none when dropped or nothing is trained.

    Raises:
        Inexpressible: the policy is "error" and the dialogue is too long.
    """
    rows = limit.render(conversation)
    if limit.fits(rows):
        return Fitted(rows=rows, outcome="whole")
    if conversation.is_text and truncation not in ("drop", "error"):
        fitted = _split_text(rows[0], limit)
    else:
        fitted = POLICIES[truncation](conversation, rows, limit)
    return replace(
        fitted,
        tokens=max(row_length(row) for row in rows),
        no_label_left=not fitted.rows and not any(_trains(row, limit.max_length) for row in rows),
    )


def _trains(row: Row, room: int) -> bool:
    """Whether the first ``room`` tokens of a row hold one that is trained."""
    at = 0
    for segment in row:
        if segment.trained and segment.token_ids:
            return at < room
        at += len(segment.token_ids)
    return False


def _drop(conversation: Conversation, rows: list[Row], limit: Limit) -> Fitted:
    return _DROPPED


def _error(conversation: Conversation, rows: list[Row], limit: Limit) -> Fitted:
    longest = max(row_length(row) for row in rows)
    raise Inexpressible(
        "too-long",
        f"{longest} tokens are more than max_length {limit.max_length}",
        "shorten the record, raise max_length or choose another truncation",
    )


def _drop_last_turns(conversation: Conversation, rows: list[Row], limit: Limit) -> Fitted:
    """Whole turns go from the end until the rest fits."""
    if limit.trains_last_only:
        return _DROPPED  # the only trained turn would go
    ends = turn_starts(conversation.messages)[1:]

    def kept(number: int) -> list[Row]:
        end = ends[number - 1] if number else 0
        return limit.render(conversation.with_messages(conversation.messages[:end]))

    number = _most(len(ends), lambda count: limit.fits(kept(count)))
    return _shortened(kept(number) if number else [], len(ends) + 1 - number)


def _most(upper: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to ``upper`` that fits; 0 always does, and more is never shorter."""
    low, high = 0, upper
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _shortened(rows: list[Row], lost_turns: int = 0) -> Fitted:
    return Fitted(rows=rows, outcome="shortened", lost_turns=lost_turns) if rows else _DROPPED


def _row_by_row(shorten: Shorten, conversation: Conversation, limit: Limit) -> Fitted:
    """Shorten the dialogue, or each of its rows where every turn is a row with its history.

    There a turn is lost when its own row is; what a history loses stands in rows of its own.
    """
    if not limit.template.one_row_per_turn or limit.trains_last_only:
        return _shortened(*shorten(conversation, limit))
    messages = conversation.messages
    single = replace(limit, labels="last_turn")
    rows: list[Row] = []
    lost = 0
    for end in [*turn_starts(messages)[1:], len(messages)]:
        part = conversation.with_messages(messages[:end])
        whole = single.render(part)
        kept = whole if limit.fits(whole) else shorten(part, single)[0]
        lost += bool(whole) and not kept
        rows.extend(kept)
    return _shortened(rows, lost)


def _drop_oldest_turns(conversation: Conversation, rows: list[Row], limit: Limit) -> Fitted:
    """The oldest turns go, system and tools stay."""
    return _row_by_row(_without_oldest, conversation, limit)


def _without_oldest(conversation: Conversation, limit: Limit) -> tuple[list[Row], int]:
    messages = conversation.messages
    head = messages[: head_length(messages)]
    starts = turn_starts(messages)

    def kept(number: int) -> list[Row]:
        tail = messages[starts[-number] :] if number else ()
        return limit.render(conversation.with_messages((*head, *tail)))

    number = _most(len(starts), lambda count: limit.fits(kept(count)))
    return kept(number) if number else [], len(starts) - number


def _split(conversation: Conversation, rows: list[Row], limit: Limit) -> Fitted:
    """Pieces of whole turns, each with system and tools; a turn too long by itself goes."""
    messages = conversation.messages
    head = messages[: head_length(messages)]
    starts = turn_starts(messages)
    ends = [*starts[1:], len(messages)]
    kept: list[Row] = []
    piece: tuple[Message, ...] = ()
    piece_rows: list[Row] = []
    lost = 0
    begun = 0  # the turn that the piece begins with
    for number, (start, end) in enumerate(zip(starts, ends)):
        turn = messages[start:end]
        longer = limit.render(conversation.with_messages((*head, *piece, *turn)))
        if limit.fits(longer):
            piece, piece_rows = (*piece, *turn), longer
            continue
        kept.extend(piece_rows)
        alone = limit.render(conversation.with_messages((*head, *turn)))
        fits = limit.fits(alone)
        lost += not fits
        begun = number if fits else number + 1
        piece, piece_rows = (turn, alone) if fits else ((), [])
    if limit.trains_last_only:
        kept, lost = piece_rows, begun
    else:
        kept = [*kept, *piece_rows]
    return Fitted(rows=kept, outcome="split", lost_turns=lost) if kept else _DROPPED


def _truncate_prompt(conversation: Conversation, rows: list[Row], limit: Limit) -> Fitted:
    """Words go from the start of the oldest question, then of the next, until the row fits.

    Answers, system and tools stay whole. The newest words of a question stay longest.
    """
    return _row_by_row(_with_shorter_prompt, conversation, limit)


def _with_shorter_prompt(conversation: Conversation, limit: Limit) -> tuple[list[Row], int]:
    messages = list(conversation.messages)
    for index, message in enumerate(messages):
        if message.role not in ("user", "observation"):
            continue
        longest = max(len(message.content), 1)  # one character stays: a question is never empty

        def kept(number: int, index: int = index) -> Conversation:
            return _with_tail(conversation, messages, index, number + 1)

        number = _most(longest - 1, lambda count: limit.fits(limit.render(kept(count))))
        shorter = kept(number)
        rows = limit.render(shorter)
        if limit.fits(rows):
            return rows, 0
        messages[index] = shorter.messages[index]
    return [], 0


def _with_tail(
    conversation: Conversation, messages: list[Message], index: int, characters: int
) -> Conversation:
    """The dialogue with only the last characters of one message."""
    changed = replace(messages[index], content=messages[index].content[-characters:])
    return conversation.with_messages((*messages[:index], changed, *messages[index + 1 :]))


def _truncate_right(conversation: Conversation, rows: list[Row], limit: Limit) -> Fitted:
    """Cut at the limit: inside an answer without its terminator, else back to a whole turn."""
    if limit.template.one_row_per_turn or limit.trains_last_only:
        kept = [kept for row in rows if (kept := _cut(row, limit.max_length)) is not None]
        # Where no answer is cut, those over the limit are gone.
        return _ended(kept, rows, len(rows) - len(kept))
    messages = conversation.messages
    ends = [*turn_starts(messages)[1:], len(messages)]
    whole: list[Row] = []
    for fitting, end in enumerate(ends):
        part = limit.render(conversation.with_messages(messages[:end]))
        if limit.fits(part):
            whole = part
            continue
        shorter = [_cut(row, limit.max_length) for row in part]
        kept = [row for row in shorter if row is not None]
        if kept and len(kept) == len(part):
            return _ended(kept, part, len(ends) - fitting - 1)
        return _shortened(whole, len(ends) - fitting)
    return _shortened(whole)


def _ended(kept: list[Row], rows: list[Row], lost_turns: int) -> Fitted:
    """What is left of some rows, "cut" only where a token that is trained was."""
    labels = {_labels_of(row) for row in rows}
    if all(_labels_of(row) in labels for row in kept):
        return _shortened(kept, lost_turns)
    return Fitted(rows=kept, outcome="cut", lost_turns=lost_turns)


def _labels_of(row: Row) -> tuple[int, ...]:
    return tuple(token for segment in row if segment.trained for token in segment.token_ids)


def _cut(row: Row, max_length: int) -> Row | None:
    """The row's first ``max_length`` tokens; None unless they end inside a trained answer."""
    if row_length(row) <= max_length:
        return row
    kept: Row = []
    room = max_length
    for segment in row:
        if len(segment.token_ids) <= room:
            kept.append(segment)
            room -= len(segment.token_ids)
            continue
        if room:
            kept.append(segment._replace(token_ids=list(segment.token_ids[:room])))
        break
    last = kept[-1] if kept else None
    if last is None or not last.trained or last.kind != "content":
        return None
    return kept


def _split_text(row: Row, limit: Limit) -> Fitted:
    """Cut a pretraining text into pieces; only the last one ends with the terminator."""
    prefix, body, end = row[0], row[1], row[2]
    room = limit.max_length - len(prefix.token_ids)
    if room < 2:
        return _DROPPED
    ids = [*body.token_ids, *end.token_ids]
    pieces = [ids[start : start + room] for start in range(0, len(ids), room)]
    rows: list[Row] = [
        [prefix, Segment(token_ids=piece, trained=True, kind="content", message=0)]
        for piece in pieces
    ]
    return Fitted(rows=rows, outcome="split")


POLICIES: dict[str, Policy] = {
    "drop_last_turns": _drop_last_turns,
    "drop": _drop,
    "drop_oldest_turns": _drop_oldest_turns,
    "split": _split,
    "truncate_prompt": _truncate_prompt,
    "truncate_right": _truncate_right,
    "error": _error,
}
