"""What a tool call is, in the shapes that messages carry it, and how a family spells it.

Owns the reading of one call object (OpenAI's ``tool_calls`` and ``function_call``, bare
``{"name", "arguments"}``) and ChatGLM3's and GLM-4's spellings. Training rows (`data`) and
``apply_chat_template`` (`models`) both take them from here, so that a prompt is what was trained.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class BadCall(ValueError):
    """A call that has no name, or whose arguments a family cannot write; ``advice`` helps."""

    def __init__(self, text: str, advice: str) -> None:
        super().__init__(text)
        self.advice = advice


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call: the tool's name, and its arguments as JSON text."""

    name: str
    arguments: str


def calls_of(message: Mapping[str, Any]) -> list[Any]:
    """Return the call objects that a message carries beside its content, in order."""
    calls = message.get("tool_calls") or message.get("function_call") or []
    return list(calls) if isinstance(calls, list | tuple) else [calls]


def read_call(call: Any) -> ToolCall:
    """Return a call from any of its shapes.

    Raises:
        BadCall: it is no object with the name of a tool.
    """
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise BadCall("has no tool name", 'write {"name": ..., "arguments": {...}}')
    arguments = function.get("arguments", function.get("parameters", {}))
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(name=function["name"], arguments=arguments)


def json_call(arguments: str) -> str:
    """Return the content of a call in GLM-4's words: its arguments as JSON."""
    return arguments


def python_call(arguments: str) -> str:
    """Return the content of a call in ChatGLM3's words: ``tool_call(city='杭州')`` as a code block.

    Raises:
        BadCall: the arguments are no JSON object.
    """
    try:
        values = json.loads(arguments)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise BadCall(
            f"has arguments that are no JSON object: {arguments[:80]!r}",
            'write them like {"city": "..."}',
        )
    inner = ", ".join(f"{name}={value!r}" for name, value in values.items())
    return f"```python\ntool_call({inner})\n```"


def tool_fault(tool: Any) -> str:
    """Say what is wrong with one tool, or nothing; other types than function are not looked at."""
    if not isinstance(tool, Mapping):
        return f"is {shown(tool)}, not an object"
    if "function" not in tool and tool.get("type", "function") != "function":
        return ""
    function = tool.get("function", tool)
    if not isinstance(function, Mapping):
        return f"has a function that is {shown(function)}, not an object"
    name = function.get("name")
    if name is None or name == "":
        return "has no name"
    return "" if isinstance(name, str) else f"has a name that is {shown(name)}, not text"


def shown(value: Any) -> str:
    """Name a value that is of the wrong kind, briefly."""
    if value is None:
        return "null"
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return f"{json.dumps(value)[:40]}"
