"""Tool calls in an answer, back into a name and JSON arguments.

The reverse of ``glmforge.tool_calls``: a family that calls tools writes the tool's name on the line
after ``<|assistant|>``, then ChatGLM3 a code block ``tool_call(city='杭州')`` and GLM-4 the
arguments as JSON. What is neither stays text: nothing is guessed.
"""

import ast
import json
import re
from typing import Any

from glmforge.tool_calls import ToolCall

_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_BLOCK = re.compile(r"^```(?:python)?\s*\n(.*?)\n?```$", re.DOTALL)


def tool_names(tools: Any) -> tuple[str, ...]:
    """Return the names of the tools of a request, in either of the shapes that tools have."""
    named = [tool.get("function", tool) for tool in tools or () if isinstance(tool, dict)]
    return tuple(str(tool["name"]) for tool in named if isinstance(tool, dict) and "name" in tool)


def names_tool(text: str) -> bool:
    """Say whether an answer's first line could be the name of a tool."""
    header, newline, _ = text.lstrip(" ").partition("\n")
    return bool(newline) and _NAME.fullmatch(header.strip()) is not None


def read_called(text: str) -> ToolCall | None:
    r"""Return the call that an answer is, header line included, or None where it is none.

    Args:
        text: the answer as decoded, such as ``get_weather\n{"city": "杭州"}``.
    """
    header, _, body = text.strip().partition("\n")
    arguments = _json_object(body.strip()) or _python_arguments(body.strip())
    if not header.strip() or arguments is None:
        return None
    return ToolCall(name=header.strip(), arguments=arguments)


def _json_object(body: str) -> str | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(value, dict) else None


def _python_arguments(body: str) -> str | None:
    """Keyword arguments of ``tool_call(...)`` as JSON; only literals count, nothing is run."""
    block = _BLOCK.match(body)
    try:
        tree = ast.parse(block[1].strip() if block else body, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name) or tree.args:
        return None
    if tree.func.id != "tool_call":
        return None
    values: dict[str, Any] = {}
    try:
        for keyword in tree.keywords:
            if keyword.arg is None:
                return None
            values[keyword.arg] = ast.literal_eval(keyword.value)
        return json.dumps(values, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        return None
