"""The schema seen as a tree: sections, fields, their defaults and their types in words.

Serves the error messages (`load.py`), the table of all fields (`explain.py`) and the rules
between fields (`rules.py`), so that each of them has one source: `schema.py`.
"""

import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic.fields import FieldInfo

from glmforge.config.fields import Settings
from glmforge.config.schema import RunConfig

OPEN_FIELD = "deepspeed"
"""The one field whose inner keys belong to someone else (DeepSpeed's own settings)."""


def section_of(name: str) -> type[Settings] | None:
    """Return the settings class of a section, or None where `name` is a plain field or unknown."""
    field = RunConfig.model_fields.get(name)
    if field is not None and isinstance(field.annotation, type):
        return field.annotation if issubclass(field.annotation, Settings) else None
    return None


def leaf_fields() -> dict[str, FieldInfo]:
    """Map each setting's dotted name ("training.seed", "method") to its field, in file order."""
    leaves: dict[str, FieldInfo] = {}
    for name, field in RunConfig.model_fields.items():
        section = section_of(name)
        if section is None:
            leaves[name] = field
        else:
            leaves |= {f"{name}.{key}": inner for key, inner in section.model_fields.items()}
    return leaves


def expected(field: FieldInfo) -> str:
    """Say in words what a field accepts, such as "a whole number ≥ 1, or null"."""
    assert field.annotation is not None, "every field is annotated"
    return _words(field.annotation, list(field.metadata))


def _words(annotation: Any, metadata: list[Any]) -> str:
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *more = get_args(annotation)
        return _words(inner, [*more, *metadata])
    if origin in (Union, types.UnionType):
        return ", or ".join(_words(part, metadata) for part in get_args(annotation))
    if origin is Literal:
        values = get_args(annotation)
        return values[0] if len(values) == 1 else "one of " + ", ".join(map(str, values))
    if origin is list:
        least = "non-empty " if any(isinstance(item, MinLen) for item in _flat(metadata)) else ""
        return f"a {least}list of {_plural(get_args(annotation)[0])}"
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        fields = annotation.model_fields.items()
        named = [f"{name}{_limits(field.annotation, field.metadata)}" for name, field in fields]
        return f"a map {{{', '.join(named)}}}"
    if annotation is type(None):
        return "null"
    if origin is dict or annotation is dict:
        return "a map"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    return names[annotation] + _limits(annotation, metadata)


def _plural(annotation: Any) -> str:
    """Say what a list holds: "texts", "texts or maps {path, weight}"."""
    if get_origin(annotation) in (Union, types.UnionType):
        return " or ".join(_plural(part) for part in get_args(annotation))
    words = _words(annotation, [])
    if words.startswith("a map {"):
        return words.replace("a map", "maps", 1)
    return words if words.startswith("one of ") else f"{words.removeprefix('a ')}s"


def _limits(annotation: Any, metadata: list[Any]) -> str:
    """Write the bounds of a number, such as " ≥ 0 and < 1"."""
    if annotation not in (int, float):
        return ""
    signs = {Gt: (">", "gt"), Ge: ("≥", "ge"), Lt: ("<", "lt"), Le: ("≤", "le")}
    bounds: list[str] = []
    for constraint in _flat(metadata):
        if type(constraint) in signs:
            sign, attribute = signs[type(constraint)]
            bounds.append(f"{sign} {getattr(constraint, attribute)}")
    return f" {' and '.join(bounds)}" if bounds else ""


def _flat(metadata: list[Any]) -> list[Any]:
    """Open the constraints that sit inside a `Field(...)` used as an annotation."""
    flat: list[Any] = []
    for item in metadata:
        flat += item.metadata if isinstance(item, FieldInfo) else [item]
    return flat


def in_words(value: object) -> str:
    """Say what a written value is, for messages: `'abc' (a text)`, `3 (a whole number)`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"{str(value).lower()} (true/false)"
    kinds = {int: "a whole number", float: "a number", str: "a text", list: "a list", dict: "a map"}
    shown = repr(value)
    if len(shown) > 80:
        shown = shown[:77] + "..."
    return f"{shown} ({kinds.get(type(value), type(value).__name__)})"
