"""The tools that a record tells, and the dialogue that they belong to.

Tools stand beside the messages, on a message, or in both places; they are kept as they are
written. ``shapes`` reads the messages.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from glmforge.data.calls import marked_calls
from glmforge.data.conversation import Conversation, Message
from glmforge.data.results import in_call_order
from glmforge.data.shapes import Unreadable, value_of
from glmforge.tool_calls import shown, tool_fault


def read_dialogue(messages: Sequence[Message], tools: Any, source: str) -> Conversation:
    """Messages with the tools found beside them, as one record.

    Raises:
        Unreadable: the tools are no list of objects, or a call has no name.
    """
    told = read_tools(tools)
    ordered = in_call_order(marked_calls(messages, told))
    return Conversation(messages=ordered, tools=told, source=source)


def agreed_tools(found: Sequence[Any]) -> Any:
    """The tools that are told in one or several places, as the first of them has them.

    Raises:
        Unreadable: the places differ, or one of them holds no tools.
    """
    told = [tools for tools in found if tools]
    if len(told) > 1 and any(_bare(tools) != _bare(told[0]) for tools in told[1:]):
        raise Unreadable(
            "two-tools",
            "the record has tools in two places, which differ",
            "keep them in one place",
        )
    return told[0] if told else None


def _bare(tools: Any) -> list[Any]:
    """Tools without the wrapper that the OpenAI format puts around them."""
    return [tool.get("function", tool) for tool in read_tools(tools)]


def read_tools(value: Any) -> tuple[Mapping[str, Any], ...]:
    """Tools as objects: a list of them, or it as JSON text; nothing is added or dropped.

    Raises:
        Unreadable: the value is neither, or a function has no name.
    """
    if value in (None, "", [], {}, ()):
        return ()
    tools = value_of(value, "tools") if isinstance(value, str) else value
    if not isinstance(tools, list | tuple):
        what = "is text that is no JSON list" if tools is None else f"is {shown(tools)}, not a list"
        raise Unreadable("bad-tools", f"tools {what}", "write a list of tools: [{...}]")
    for number, tool in enumerate(tools, 1):
        fault = tool_fault(tool)
        if fault:
            raise Unreadable(
                "bad-tools", f"tool {number} {fault}", 'write functions like {"name": "...", ...}'
            )
    return tuple(tools)
