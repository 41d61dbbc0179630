"""What a tool call is, in the shapes that messages carry it, and how a family spells it.

Owns the reading of one call object (OpenAI's ``tool_calls`` and ``function_call``, bare
``{"name", "arguments"}``) and ChatGLM3's and GLM-4's spellings, there and back. Training rows
(`data`) and ``apply_chat_template`` (`models`) both take them from here, so that a prompt is what
was trained; `serve` reads answers with it.
"""

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TOOL_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\[^u]"
)
_BLOCK = re.compile(r"^```(?:python)?\s*\n(.*?)\n?```$", re.DOTALL)


_CALL = 'write {"name": ..., "arguments": {...}}'
_PLAIN = "give texts, numbers, lists and objects only"


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
        raise BadCall("has no tool name", _CALL)
    if not function["name"].strip() or len(function["name"].splitlines()) > 1:
        raise BadCall(f"has a tool name of no or several lines ({function['name'][:40]!r})", _CALL)
    arguments = function.get("arguments", function.get("parameters"))
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, str):
        try:
            arguments = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise BadCall(f"has arguments that JSON cannot write ({error})", _PLAIN) from error
    return ToolCall(name=function["name"], arguments=arguments)


def json_call(arguments: str) -> str:
    r"""Return the content of a call in GLM-4's words: its arguments as JSON.

    They stay as they are, but characters that a writer of plain ASCII escaped (``\u676d``): the
    model writes them itself.
    """
    return _ESCAPE.sub(_unescaped, arguments) if "\\u" in arguments else arguments


def _unescaped(escape: re.Match[str]) -> str:
    if not escape.group().startswith("\\u"):
        return escape.group()
    character = str(json.loads(f'"{escape.group()}"'))
    keeps = character < "\x80" or "\ud800" <= character <= "\udfff"
    return escape.group() if keeps else character


def python_call(arguments: str) -> str:
    """Return the content of a call in ChatGLM3's words: ``tool_call(city='杭州')`` as a code block.

    Raises:
        BadCall: the arguments are no JSON object.
    """
    if not is_json_object(arguments):
        raise BadCall(f"has {ARGUMENTS_FAULT}: {arguments[:80]!r}", ARGUMENTS_ADVICE)
    values = json.loads(arguments)
    inner = ", ".join(f"{name}={value!r}" for name, value in values.items())
    return f"```python\ntool_call({inner})\n```"


ARGUMENTS_FAULT = "arguments that are no JSON object"
ARGUMENTS_ADVICE = 'write them like {"city": "..."}'


def is_json_object(text: str) -> bool:
    """Say whether a text is one JSON object; NaN and Infinity are no JSON."""
    try:
        return isinstance(json.loads(text, parse_constant=_refuse_constant), dict)
    except (ValueError, RecursionError):
        return False


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def read_called(text: str) -> ToolCall | None:
    r"""Return the call that an answer is, header line included, or None where it is none.

    Args:
        text: the answer as decoded, such as ``get_weather\n{"city": "杭州"}``.
    """
    header, _, body = text.strip().partition("\n")
    arguments = written_arguments(body)
    if not header.strip() or arguments is None:
        return None
    return ToolCall(name=header.strip(), arguments=arguments)


def written_arguments(body: str) -> str | None:
    """Return a call's arguments as JSON text from either family's words; None where it is none."""
    body = body.strip()
    return body if is_json_object(body) else python_arguments(body)


def python_arguments(body: str) -> str | None:
    """Keyword arguments of ``tool_call(...)`` as JSON; only literals count, nothing is run."""
    block = _BLOCK.match(body.strip())
    try:
        tree = ast.parse(block[1].strip() if block else body.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name) or tree.args:
        return None
    if tree.func.id != "tool_call":
        return None
    values: dict[str, Any] = {}
    try:
        for keyword in tree.keywords:
            if keyword.arg is None or keyword.arg in values:
                return None
            values[keyword.arg] = ast.literal_eval(keyword.value)
        return json.dumps(values, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        return None


def tool_fault(tool: Any) -> str:
    """Say what is wrong with one tool, or nothing; other types than function are not looked at."""
    if not isinstance(tool, Mapping):
        return f"is {shown(tool)}, not an object"
    if "function" not in tool and tool.get("type", "function") != "function":
        return ""
    function = tool.get("function", tool)
    if not isinstance(function, Mapping):
        return f"has a function that is {shown(function)}, not an object"
    try:
        json.dumps(tool)
    except (TypeError, ValueError, RecursionError) as error:
        return f"holds what JSON cannot write ({error})"
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
    return json.dumps(value, ensure_ascii=False, default=repr)[:40]
