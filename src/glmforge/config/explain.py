"""The table of all settings: name, type, default and meaning, for `--help-config` and the docs.

Made from the schema alone, so it cannot differ from what is accepted.
"""

import textwrap
from dataclasses import dataclass

from pydantic.fields import FieldInfo

from glmforge.config import document
from glmforge.config.tree import expected, leaf_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """One setting, in words. `default` is YAML text, or "required"."""

    name: str
    type: str
    default: str
    meaning: str


def setting_rows() -> list[SettingRow]:
    """List every setting in the order of the file."""
    return [
        SettingRow(
            name=name,
            type=expected(field),
            default=_default(field),
            meaning=field.description or "",
        )
        for name, field in leaf_fields().items()
    ]


def explain_text(width: int = 100) -> str:
    """Write the table as plain text, at most `width` characters wide."""
    blocks: list[str] = []
    section = ""
    for row in setting_rows():
        head, _, _ = row.name.partition(".")
        if head != section:
            section = head
            if blocks:
                blocks.append("")
        blocks.append(f"{row.name}: {row.type}  [{_shown(row.default)}]")
        blocks.append(
            textwrap.fill(row.meaning, width, initial_indent="    ", subsequent_indent="    ")
        )
    return "\n".join(blocks) + "\n"


def explain_markdown() -> str:
    """Write the table for the documentation."""
    lines = ["| setting | type | default | meaning |", "|---|---|---|---|"]
    for row in setting_rows():
        cells = (f"`{row.name}`", row.type, f"`{row.default}`", row.meaning)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _shown(default: str) -> str:
    return default if default == "required" else f"default {default}"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return document.write(value).removesuffix("...\n").strip()
