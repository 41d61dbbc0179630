"""Messages in the shapes that chat templates read: OpenAI's objects, calls in several forms.

Templates differ in where they look for a call: ``tool_calls`` with arguments as an object or as
text, or (GLM-4-0414) an assistant message whose ``metadata`` is the tool's name.
``template_probe`` finds the form that a template reads.
"""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glmforge.data.conversation import Message
from glmforge.tool_calls import json_call


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    """How a call is handed to a template.

    ``metadata``: as a message of its own, named by its metadata; else in ``tool_calls``, there with
    ``text_arguments`` as JSON text.
    """

    metadata: bool = False
    text_arguments: bool = False


CALL_FORMS = (CallForm(), CallForm(text_arguments=True), CallForm(metadata=True))
"""Every form a template may read, the usual one first."""


def turns_of(messages: Sequence[Message]) -> list[tuple[int, int]]:
    """Runs of assistant messages (words and calls of one turn) and single other messages."""
    turns: list[tuple[int, int]] = []
    for index, message in enumerate(messages):
        if turns and message.role == "assistant" and messages[index - 1].role == "assistant":
            turns[-1] = (turns[-1][0], index + 1)
        else:
            turns.append((index, index + 1))
    return turns


def reasoning_of(turn: Sequence[Message]) -> str:
    """The thinking texts of a turn's messages as one."""
    return "\n".join(message.reasoning for message in turn if message.reasoning)


def chat_messages(
    messages: Sequence[Message], observation: str, form: CallForm
) -> list[dict[str, Any]]:
    """Messages as a template expects them.

    Args:
        messages: a dialogue, or its beginning.
        observation: the template's name of the role that brings a tool's result.
        form: where the template looks for calls.
    """
    shaped: list[dict[str, Any]] = []
    for start, end in turns_of(messages):
        turn = messages[start:end]
        role = observation if turn[0].role == "observation" else turn[0].role
        words = "\n".join(message.content for message in turn if message.arguments is None)
        calls = [message for message in turn if message.arguments is not None]
        apart = form.metadata and bool(calls)
        items: list[dict[str, Any]] = []
        if not apart or words:
            items.append({"role": role, "content": words})
        if apart:
            items += [
                {"role": role, "metadata": call.name, "content": json_call(call.text)}
                for call in calls
            ]
        elif calls:
            items[0]["tool_calls"] = [_tool_call(call, form) for call in calls]
        if reasoning := reasoning_of(turn):
            items[0]["reasoning_content"] = reasoning
        shaped += items
    return shaped


def chat_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]] | None:
    """Tools in OpenAI's wrapper, which templates expect; None where there are none."""
    return [
        dict(tool) if "function" in tool or "type" in tool
        else {"type": "function", "function": dict(tool)}
        for tool in tools
    ] or None  # fmt: skip


def _tool_call(call: Message, form: CallForm) -> dict[str, Any]:
    arguments: Any = json_call(call.text)
    if not form.text_arguments:
        with contextlib.suppress(ValueError):  # refused elsewhere; a prompt keeps it as it is
            arguments = json.loads(arguments)
    return {"type": "function", "function": {"name": call.name, "arguments": arguments}}
