"""What a chat template left out: a rendering held against the dialogue that went in.

A template writes what it has a place for and passes over the rest without a word: a system message,
tools, calls, results. ``left_out`` looks for every text in the rendering, in order; thinking is not
looked for here (templates strip that of earlier turns on purpose). ``template_probe`` asks the same
of the template itself, once, with texts that stand nowhere else.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from glmforge.data.conversation import Message

_THINK, _END_THINK = "<think>", "</think>"


def left_out(
    text: str, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Name what of a dialogue its rendering does not hold; empty when all is there.

    Args:
        text: the rendering.
        messages: the messages that were rendered.
        tools: the dialogue's tools.
    """
    lost = []
    names = [str(tool.get("function", tool).get("name", tool.get("type"))) for tool in tools]
    if any(_end_of(name, text, 0) < 0 for name in names):
        lost.append("the tools")
    at = 0
    for number, message in enumerate(messages, 1):
        anywhere = message.role == "system"  # some templates move it into a user's message
        end = 0 if anywhere else at
        for piece in _sought(message):
            end = _end_of(piece, text, end)
            if end < 0:
                break
        if end >= 0 and message.arguments is not None:
            end = _end_of_arguments(message.arguments, text, end)
        if end < 0:
            lost.append(named(message, number))
        elif not anywhere:
            at = end
    return lost


def named(message: Message, number: int) -> str:
    """A message in the words of a report; ``number`` counts from 1."""
    if message.role == "system":
        return "the system message"
    if message.is_call:
        return f"the call of {message.name!r} (message {number})"
    return f"the content of message {number} ({message.role})"


def _sought(message: Message) -> tuple[str, ...]:
    """The texts that must be in a message's rendering in order, as templates may trim them."""
    if message.arguments is not None:
        return (message.name,)
    if message.role == "assistant" and _END_THINK in message.content:
        thinking, _, answer = message.content.rpartition(_END_THINK)
        before = thinking.partition(_THINK)[0] if _THINK in thinking else ""
        return before.strip(), answer.strip()
    return (message.content.strip(),)


def _end_of(piece: str, text: str, start: int) -> int:
    """Where a piece ends in a text, written as it is or as JSON; -1 where it is not."""
    at = text.find(piece, start)
    if at >= 0:
        return at + len(piece)
    for ascii_only in (False, True):
        written = json.dumps(piece, ensure_ascii=ascii_only)[1:-1]
        at = text.find(written, start)
        if at >= 0:
            return at + len(written)
    return -1


def _end_of_arguments(arguments: str, text: str, start: int) -> int:
    """Where a call's arguments end: the JSON as a whole, or each of its keys and values."""
    at = text.find(arguments, start)
    if at >= 0:
        return at + len(arguments)
    try:
        value = json.loads(arguments)
    except ValueError:
        return -1
    whole = json.dumps(value, ensure_ascii=False)
    at = text.find(whole, start)
    if at >= 0:
        return at + len(whole)
    last = start
    for leaf in _leaves(value):
        found = [end for form in leaf if (end := _end_of(form, text, start)) >= 0]
        if not found:
            return -1
        last = max(last, found[0])
    return last


def _leaves(value: Any) -> Iterator[tuple[str, ...]]:
    """Every key and plain value of a JSON value, each in the forms that templates write."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield (key,)
            yield from _leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, str):
        yield (value,)
    else:
        yield json.dumps(value), str(value)
