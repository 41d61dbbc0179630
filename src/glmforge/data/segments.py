"""The atoms of a rendered row: runs of token ids that are trained together or not at all.

A template returns segments, so ids and labels are appended by one function (``row_arrays``) and
cannot drift apart. The rule behind ``trained`` is invariant 1 of docs/architecture.md: a token
is trained iff the model must generate it at inference, its terminator included.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from glmforge.data.conversation import Conversation, Message
from glmforge.data.encoder import TextEncoder
from glmforge.errors import DataError

IGNORED = -100
Kind = Literal["control", "header", "content", "terminator"]
Labels = Literal["all_turns", "last_turn", "official"]
Ids = npt.NDArray[np.int32]


class Segment(NamedTuple):
    """A run of token ids; a tuple, which is made in half of the time: a row has dozens.

    ``kind`` says what wrote it: "control" (the template), "header" (the line with the tool's
    name, or the newline, that follows a role token), "content" (the message), "terminator".
    ``message`` is the index of the message it belongs to; -1 for the row's prefix.
    """

    token_ids: Sequence[int]
    trained: bool
    kind: Kind
    message: int = -1


Row = list[Segment]


class Inexpressible(DataError):
    """A dialogue that a family's format (or a policy) cannot take; becomes a ``Problem``."""

    def __init__(self, rule: str, text: str, advice: str) -> None:
        super().__init__(f"{text} [{rule}]; {advice}")
        self.rule, self.text, self.advice = rule, text, advice


class Template(Protocol):
    """How one family writes dialogues; ``templates`` has the table.

    ``one_row_per_turn``: the family has no turn end inside the history, so each trained turn is
    a row of its own. ``packable``: attention can be bounded by documents. ``encoder`` can
    be told to encode the texts of many dialogues at once (None: the template encodes by itself).
    """

    one_row_per_turn: bool
    packable: bool
    encoder: TextEncoder | None

    def rows(
        self, conversation: Conversation, trained: Sequence[bool], labels: Labels
    ) -> list[Row]:
        """Rows of a dialogue; ``trained`` has a flag for each message."""
        ...

    def prompt(self, conversation: Conversation) -> list[int]:
        """Ids up to where the model starts to generate the next assistant message."""
        ...

    def leaves_out_thinking(self, message: Message) -> bool:
        """Whether a message holds thinking text that the format has no place for."""
        ...

    def text_row(self, text: str) -> Row:
        """A row of continued pretraining."""
        ...


def row_length(row: Row) -> int:
    """Tokens in a row."""
    return sum(len(segment.token_ids) for segment in row)


def row_arrays(row: Row) -> tuple[Ids, Ids]:
    """Join a row's segments into ``input_ids`` and unshifted ``labels`` (int32, -100 untrained).

    The first label is always -100: nothing comes before it that could predict it.
    """
    lengths = [len(segment.token_ids) for segment in row]
    joined = chain.from_iterable([segment.token_ids for segment in row])
    input_ids = np.fromiter(joined, dtype=np.int32, count=sum(lengths))
    trained = np.repeat(np.array([segment.trained for segment in row], dtype=bool), lengths)
    labels = np.where(trained, input_ids, np.int32(IGNORED))
    labels[:1] = IGNORED
    return input_ids, labels
