"""Tool calls in an answer, back into a name and JSON arguments.

The reverse of ``glmforge.tool_calls``: a family that calls tools writes the tool's name on the line
after ``<|assistant|>``, then ChatGLM3 a code block ``tool_call(city='杭州')`` and GLM-4 the
arguments as JSON. What is neither stays text: nothing is guessed.
"""

from typing import Any

from glmforge.tool_calls import TOOL_NAME, read_called

__all__ = ["names_tool", "read_called", "tool_names"]


def tool_names(tools: Any) -> tuple[str, ...]:
    """Return the names of the tools of a request, in either of the shapes that tools have."""
    named = [tool.get("function", tool) for tool in tools or () if isinstance(tool, dict)]
    return tuple(str(tool["name"]) for tool in named if isinstance(tool, dict) and "name" in tool)


def names_tool(text: str) -> bool:
    """Say whether an answer's first line could be the name of a tool."""
    header, newline, _ = text.lstrip(" ").partition("\n")
    return bool(newline) and TOOL_NAME.fullmatch(header.strip()) is not None
