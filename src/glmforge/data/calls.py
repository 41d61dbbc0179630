"""Which assistant messages are tool calls, however a file spells them, and which only look so.

``marked_calls`` gives calls that stand in the text their name and arguments, so that every family
writes them in its own words; ``call_findings`` reports what is no right call. ``shapes`` reads the
calls that have fields of their own.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from glmforge.data.conversation import Finding, Message
from glmforge.data.json_text import BadJson, read_json
from glmforge.tool_calls import (
    ARGUMENTS_ADVICE,
    ARGUMENTS_FAULT,
    TOOL_NAME,
    ToolCall,
    is_json_object,
    python_arguments,
    read_call,
    read_called,
    written_arguments,
)

# Tools of ChatGLM3 and GLM-4 whose input is code or words of their own, not JSON.
_FREE_INPUT = ("interpreter", "code_interpreter", "python", "simple_browser", "cogview")


def marked_calls(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> tuple[Message, ...]:
    """See the calls that an assistant text or a tool's name on a message tells of.

    A text that is exactly a call (``{"name": ..., "arguments": ...}``, or the name and under it
    the arguments as the models write them) is one where a result or a call follows, or where the
    record has tools (that one, for the second form): a user may ask for JSON.
    """
    names = _names(tools)
    marked = list(messages)
    for index in reversed(range(len(marked))):
        message = marked[index]
        if message.role != "assistant" or message.arguments is not None:
            continue
        if not _may_hold_call(message.content):
            continue
        if message.name:
            marked[index] = _with_arguments(message)
            continue
        following = marked[index + 1] if index + 1 < len(marked) else None
        awaited = bool(following and (following.role == "observation" or following.is_call))
        call, has_own_line = call_in(message.content)
        if call is None:
            continue
        if awaited or (call.name in names if has_own_line else bool(tools)):
            marked[index] = _called(message, call, message.content if has_own_line else "")
    return tuple(marked)


def _may_hold_call(text: str) -> bool:
    """A quick look that spares most texts the others."""
    return "{" in text or "tool_call(" in text


def call_in(text: str) -> tuple[ToolCall | None, bool]:
    """The call that a text is exactly, if any; and whether the tool's name has its own line."""
    if not _may_hold_call(text):
        return None, False
    if text.lstrip().startswith("{"):
        try:
            value = read_json(text)
            whole = isinstance(value, dict) and set(value) == {"name", "arguments"}
            return (read_call(value) if whole else None), False
        except ValueError:  # BadCall and BadJson are such
            return None, False
    header, newline, _ = text.strip().partition("\n")
    if not newline or TOOL_NAME.fullmatch(header.strip()) is None:
        return None, False
    return read_called(text), True


def _with_arguments(message: Message) -> Message:
    """A message that names its tool, with the arguments that it writes."""
    text = message.content
    arguments = written_arguments(text)
    if arguments is None:
        return message
    spelled = text if python_arguments(text) is not None else ""
    return replace(message, content=spelled, arguments=arguments if spelled else text)


def _called(message: Message, call: ToolCall, text: str) -> Message:
    """The call that a message's text is; ChatGLM3's spelling of it is kept."""
    body = text.strip().partition("\n")[2]
    spelled = body if python_arguments(body) is not None else ""
    return replace(message, content=spelled, name=call.name, arguments=call.arguments)


def _names(tools: Sequence[Mapping[str, Any]]) -> set[str]:
    return {str(tool.get("function", tool).get("name")) for tool in tools}


def call_findings(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> Iterator[Finding]:
    """What is wrong with calls: arguments that are none, and texts in a call's place."""
    for number, message in enumerate(messages, 1):
        if message.role != "assistant":
            continue
        if not message.is_call:
            awaited = number < len(messages) and messages[number].role == "observation"
            if tools or awaited or _may_hold_call(message.content):
                yield from _text_findings(messages, number, _names(tools))
            continue
        text = _called_with(message, tools)
        if text is not None and (fault := _arguments_fault(text)):
            what = f"message {number} (assistant) calls {message.name!r} with {fault}"
            yield "bad-call", f"{what}: {text[:80]!r}", ARGUMENTS_ADVICE, "error"
        if tools and message.name not in (*_FREE_INPUT, *_names(tools)):
            yield _unlisted(message.name, number, tools)


def _arguments_fault(text: str) -> str:
    """What is wrong with a call's arguments; empty where they are one JSON object."""
    try:
        read_json(text)
        return "" if is_json_object(text) else ARGUMENTS_FAULT
    except json.JSONDecodeError:
        return ARGUMENTS_FAULT
    except BadJson as error:
        return f"an argument text that {error.text}"


def _unlisted(name: str, number: int, tools: Sequence[Mapping[str, Any]]) -> Finding:
    """The warning of a call (in message ``number``) of a tool that the record does not list."""
    listed = ", ".join(sorted(map(repr, _names(tools))))
    text = f"message {number} (assistant) calls {name!r}, and the record's tools list only {listed}"
    return "unlisted-tool", text, "correct the name, or add the tool to them", "warning"


def _called_with(message: Message, tools: Sequence[Mapping[str, Any]]) -> str | None:
    """What a call gives as arguments; None where code or words are its input."""
    if message.arguments is not None:
        return message.arguments
    text = message.content.lstrip()
    is_code = text.startswith("```") and "tool_call(" not in text
    free = is_code or message.name in _FREE_INPUT
    told = message.name in _names(tools) and not free
    return text if text.startswith("{") or told else None


def _text_findings(messages: Sequence[Message], number: int, names: set[str]) -> Iterator[Finding]:
    """Warnings about an assistant text (message ``number``, from 1) that may be meant as a call."""
    content, following = messages[number - 1].content, messages[number : number + 1]
    call, _ = call_in(content)
    first_line = content.strip().partition("\n")[0].strip() if names else ""
    text = ""
    advice = f'write the call as "tool_calls": {_CALL_SHAPE}'
    if call is not None:
        text = f"message {number} (assistant) reads like a call of {call.name!r}"
        advice += ", or list the tool in the record's tools, if it is one"
    elif first_line and first_line in names:
        text = f"message {number} (assistant) begins with the tool's name {first_line!r}"
    elif following and following[0].role == "observation":
        text = f"message {number} (assistant), which a tool's result follows, is no call"
    if text:
        yield "call-as-text", f"{text}; it is trained as text", advice, "warning"


_CALL_SHAPE = '[{"function": {"name": "...", "arguments": {...}}}]'
