"""The parts of a message's content where it is a list, and which of them can be trained on.

OpenAI's exports, and those of models that see pictures, write a message's text so. ``shapes`` joins
the parts where the ``flatten`` repair is set.
"""

from typing import Any

_KINDS = ("text", "reasoning", "tool_call")


def part_of(part: Any) -> tuple[str, str] | None:
    """The kind and the text of a part; None where it is nothing to train on."""
    if isinstance(part, str):
        return "text", part
    if not isinstance(part, dict):
        return None
    kind = part.get("type", "text" if "text" in part else None)
    text = part.get("value", part.get("text"))
    return (kind, text) if kind in _KINDS and isinstance(text, str) else None
