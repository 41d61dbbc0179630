"""What a training record is, whatever file it came from: messages, tools and where it was read.

A ``Conversation`` is plain text only; ``formats`` makes it from a record, ``rules`` judges it and
``templates`` renders it for one model family. A tool call is kept neutral (name + arguments as
JSON) so that each family can spell it in its own way; a call whose text is already in a family's
spelling stays verbatim in ``content``. Nothing here knows a tokenizer.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "observation", "text"]
ROLES: tuple[Role, ...] = ("system", "user", "assistant", "observation")
Level = Literal["error", "warning"]
Finding = tuple[str, str, str, Level]
"""A rule's name, what is wrong, what to do, and how bad it is: a ``Problem`` without its place."""
_LINE = re.compile(r":(\d+)(?:#(\d+))?$")
"""The place of a record in its file, at the end of a source."""
_UNPRINTABLE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f\ud800-\udfff]")


def shown(text: str) -> str:
    """Text that is safe to print: control characters and half surrogates by their names."""
    return _UNPRINTABLE.sub(lambda match: f"\\x{ord(match.group()):02x}", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a dialogue.

    ``role`` "text" marks a record for continued pretraining (it stands alone). ``name`` is the
    tool's name on a call (ChatGLM3 and GLM-4 say "metadata"). ``arguments`` is the call's JSON
    text (``content`` is then ChatGLM3's spelling of it where the file has that, else empty); None
    means that ``content`` is the message, verbatim. ``reasoning`` is thinking text
    that precedes the answer. ``train`` False keeps an assistant message in the history only.
    ``call_id`` is that of a call and of its result; ``moved`` marks a result that stood elsewhere.
    """

    role: Role
    content: str
    name: str = ""
    arguments: str | None = None
    reasoning: str = ""
    train: bool = True
    call_id: str = field(default="", compare=False)
    moved: bool = field(default=False, compare=False)

    @property
    def is_call(self) -> bool:
        """Whether the assistant hands over to a tool with this message."""
        return self.role == "assistant" and (self.arguments is not None or bool(self.name))

    @property
    def text(self) -> str:
        """The text a person would read: the arguments of a neutral call, else the content."""
        return self.content if self.arguments is None else self.arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A dialogue with its tools (JSON objects, key order kept) and its ``file:line``.

    ``unread`` names the record's fields that no format reads.
    """

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    source: str = ""
    unread: tuple[str, ...] = field(default=(), compare=False)

    @property
    def is_text(self) -> bool:
        """Whether this is a record for continued pretraining."""
        return len(self.messages) == 1 and self.messages[0].role == "text"

    def with_messages(self, messages: tuple[Message, ...]) -> "Conversation":
        """The same record with other messages."""
        return replace(self, messages=messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong with one record, in words that a user can act on.

    ``rule`` is a short stable name for counting; ``advice`` says what to do. An "error" stops
    or skips the record; a "warning" is reported and the record is used.
    """

    source: str
    rule: str
    text: str
    advice: str
    level: Level = "error"

    @property
    def line(self) -> tuple[int, int]:
        """The line of its record, and which record of that line it is; zeros where it has none."""
        found = _LINE.search(self.source)
        return (int(found[1]), int(found[2] or 1)) if found else (0, 0)

    @property
    def is_of_file(self) -> bool:
        """Whether a whole file, not one record of it, is wrong."""
        return bool(self.source) and self.line == (0, 0)

    def __str__(self) -> str:
        place = f"{self.source}: " if self.source else ""
        line = shown(f"{place}{self.text} [{self.rule}]; {self.advice}")
        return line.replace("\n", "\\x0a")


def turn_starts(messages: tuple[Message, ...]) -> list[int]:
    """Indices of the user messages that begin a turn (a turn runs to the next user message)."""
    return [index for index, message in enumerate(messages) if message.role == "user"]


def head_length(messages: tuple[Message, ...]) -> int:
    """How many leading system messages stand before the first turn."""
    count = 0
    for message in messages:
        if message.role != "system":
            break
        count += 1
    return count


def without_trailing_user(conversation: Conversation) -> tuple[Conversation, int]:
    """Drop what follows the last assistant message; return the rest and the number dropped.

    A question nobody answered (or a tool result nobody read) has nothing to train on.
    """
    messages = conversation.messages
    end = len(messages)
    while end and messages[end - 1].role in ("user", "observation", "system"):
        end -= 1
    if end == len(messages):
        return conversation, 0
    return conversation.with_messages(messages[:end]), len(messages) - end
