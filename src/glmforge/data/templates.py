"""Dialogue to token ids, for one model family: the table of templates and the public encoders.

``template_for`` finds the template by the tokenizer's ``family``; a tokenizer without one gets
its own chat template. ``encode_conversation`` and ``encode_rows`` are the plain-value doors of
the package: what they return is exactly what training uses (labels unshifted, -100 untrained).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from glmforge.data import role_templates, round_templates
from glmforge.data.chat_template import ChatTemplate
from glmforge.data.conversation import (
    Conversation,
    Message,
    Problem,
    turn_starts,
    without_trailing_user,
)
from glmforge.data.encoder import TokenizerLike
from glmforge.data.role_templates import RoleTemplate
from glmforge.data.round_templates import RoundTemplate
from glmforge.data.rules import faults_of
from glmforge.data.segments import Inexpressible, Labels, Row, Template, row_arrays
from glmforge.data.shapes import ShapeOptions, Unreadable, read_messages
from glmforge.data.told_tools import agreed_tools, read_dialogue
from glmforge.errors import DataError
from glmforge.tool_calls import shown

LABELS: tuple[Labels, ...] = ("all_turns", "last_turn", "official")
Messages = Sequence[Message] | Sequence[Mapping[str, Any]]


def template_for(tokenizer: TokenizerLike) -> Template:
    """The template of a tokenizer's family; a tokenizer without family has its own.

    Raises:
        DataError: the tokenizer names a family without a template.
    """
    family = getattr(tokenizer, "family", None)
    if family is None:
        return ChatTemplate(tokenizer)
    if family in role_templates.STYLES:
        return RoleTemplate(tokenizer, role_templates.STYLES[family])
    if family in round_templates.STYLES:
        return RoundTemplate(tokenizer, round_templates.STYLES[family])
    known = ", ".join([*role_templates.STYLES, *round_templates.STYLES])
    raise DataError(f"the tokenizer's family {family!r} has no dialogue template; known: {known}")


def conversation_of(
    messages: Messages, tools: Sequence[Mapping[str, Any]] | str | None = None, source: str = ""
) -> Conversation:
    """Plain messages as a ``Conversation``.

    Args:
        messages: objects of any shape that files may hold, or ``Message`` values.
        tools: the dialogue's tools; those of a message that carries some must be the same.
        source: where they come from, for error messages.

    Raises:
        DataError: a message cannot be read, or tools in two places differ.
    """
    try:
        messages = _listed(messages)
        own = [message for message in messages if isinstance(message, Message)]
        if len(own) < len(messages):
            own = read_messages(messages, "messages", ShapeOptions())
            carried = [m.get("tools") for m in messages if isinstance(m, Mapping)]
            tools = agreed_tools([tools, *carried])
        return read_dialogue(own, tools, source)
    except Unreadable as error:
        problem = Problem(source=source, rule=error.rule, text=error.text, advice=error.advice)
        raise DataError(str(problem)) from error


def _listed(messages: Any) -> list[Any]:
    """Messages as a list, whatever they came in."""
    if isinstance(messages, Iterable) and not isinstance(messages, str | bytes | Mapping):
        return list(messages)
    raise Unreadable(
        "not-a-list", f"messages is {shown(messages)}, not a list", "give a list of messages"
    )


def trained_flags(conversation: Conversation, labels: Labels) -> list[bool]:
    """Which messages are trained: assistant, not marked otherwise, in a turn that counts.

    ``last_turn`` is everything the assistant writes after the last user message.
    """
    first = 0
    if labels == "last_turn":
        first = max(turn_starts(conversation.messages), default=0)
    return [
        message.role in ("assistant", "text") and message.train and index >= first
        for index, message in enumerate(conversation.messages)
    ]


def render(conversation: Conversation, template: Template, labels: Labels) -> list[Row]:
    """Rows of a conversation that ends on an assistant message; empty without trained tokens."""
    if conversation.is_text:
        return [template.text_row(conversation.messages[0].content)]
    flags = trained_flags(conversation, labels)
    rows = template.rows(conversation, flags, labels)
    return [row for row in rows if any(segment.trained for segment in row)]


def ended(
    conversation: Conversation, template: Template, labels: Labels
) -> tuple[Conversation, int]:
    """The dialogue without the messages at its end that nobody answers, and their number.

    Official code keeps them where a dialogue is one row.
    """
    if labels == "official" and not template.one_row_per_turn:
        return conversation, 0
    return without_trailing_user(conversation)


def nothing_trained(labels: Labels) -> Inexpressible:
    """The error for a dialogue of which these labels train no token."""
    return Inexpressible(
        "nothing-trained",
        f"with labels {labels} none of its tokens is trained",
        "remove the record, or a mark that says not to train",
    )


def encode_rows(
    messages: Messages,
    tokenizer: TokenizerLike,
    tools: Sequence[Mapping[str, Any]] | str | None = None,
    labels: Labels = "all_turns",
) -> list[tuple[list[int], list[int]]]:
    """Every row that training would make of a dialogue, before any truncation.

    Args:
        messages: ``{"role", "content"}`` objects or ``Message`` values.
        tokenizer: a tokenizer from ``load_tokenizer``.
        tools: the tools the dialogue may use.
        labels: which turns are trained: "all_turns", "last_turn" or "official".

    Returns:
        (input_ids, labels) pairs; labels unshifted, -100 = not trained.

    Raises:
        DataError: a message cannot be read, the dialogue breaks a rule (the findings of training,
            all of them), the family cannot express it, or no token of it is trained.
    """
    if labels not in LABELS:
        raise DataError(f"labels {labels!r} is unknown; use one of {', '.join(LABELS)}")
    conversation = conversation_of(messages, tools)
    if faults := faults_of(conversation):
        raise DataError([str(fault) for fault in faults])
    template = template_for(tokenizer)
    conversation, _ = ended(conversation, template, labels)
    rows = render(conversation, template, labels)
    if not rows:
        raise nothing_trained(labels)
    arrays = [row_arrays(row) for row in rows]
    return [(ids.tolist(), targets.tolist()) for ids, targets in arrays]


def encode_conversation(
    messages: Messages,
    tokenizer: TokenizerLike,
    tools: Sequence[Mapping[str, Any]] | str | None = None,
) -> tuple[list[int], list[int]]:
    """A dialogue as one row: (input_ids, labels), labels unshifted, -100 = not trained.

    For ChatGLM-6B and ChatGLM2 this is the row of the last assistant turn (``encode_rows`` gives
    all of them).

    Raises:
        DataError: as ``encode_rows``.
    """
    return encode_rows(messages, tokenizer, tools)[-1]


def generation_prompt(
    messages: Messages,
    tokenizer: TokenizerLike,
    tools: Sequence[Mapping[str, Any]] | str | None = None,
) -> list[int]:
    """Ids from which the model answers: the history up to where its own tokens begin.

    Raises:
        DataError: a message cannot be read, or the family (the model's chat template) cannot
            express it or leaves it out.
    """
    return template_for(tokenizer).prompt(conversation_of(messages, tools))
