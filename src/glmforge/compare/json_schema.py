"""The part of JSON Schema that describes an answer's form, checked without a package.

Knows types, objects, arrays, enums, limits, patterns and combinations of draft 2020-12. A keyword
that it does not know is refused when the schema is read, so that no rule is passed over in silence.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from glmforge.errors import DataError

_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: _is_number(value),
    "integer": lambda value: _is_number(value) and value == int(value),
}
_NOTES = frozenset("$schema $id title description default examples $comment".split())
_LIMITS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "minimum": ("number", lambda value, limit: value >= limit),
    "maximum": ("number", lambda value, limit: value <= limit),
    "exclusiveMinimum": ("number", lambda value, limit: value > limit),
    "exclusiveMaximum": ("number", lambda value, limit: value < limit),
    "minLength": ("string", lambda value, limit: len(value) >= limit),
    "maxLength": ("string", lambda value, limit: len(value) <= limit),
    "minItems": ("array", lambda value, limit: len(value) >= limit),
    "maxItems": ("array", lambda value, limit: len(value) <= limit),
    "minProperties": ("object", lambda value, limit: len(value) >= limit),
    "maxProperties": ("object", lambda value, limit: len(value) <= limit),
    "pattern": ("string", lambda value, limit: re.search(limit, value) is not None),
    "required": ("object", lambda value, limit: all(name in value for name in limit)),
}
_OTHERS = frozenset(
    "type enum const properties additionalProperties items allOf anyOf oneOf not".split()
)


def read_schema(path: Path) -> dict[str, Any]:
    """Read a schema and check that every keyword of it is known.

    Raises:
        DataError: not JSON, not an object, or keywords that are not checked; all of them.
    """
    try:
        schema = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not readable as JSON ({error}); give a JSON Schema") from error
    problems = list(_faults(schema, "$"))
    if problems:
        known = ", ".join(sorted(_OTHERS | _LIMITS.keys()))
        raise DataError([f"{path}: {problem}; known: {known}" for problem in problems])
    return dict(schema)


def _faults(schema: Any, place: str) -> Iterator[str]:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        yield f"{place} is {type(schema).__name__}, expected an object"
        return
    for name, value in schema.items():
        if name not in _OTHERS and name not in _LIMITS and name not in _NOTES:
            yield f"{place}.{name}: this keyword is not checked"
        elif name == "pattern":
            yield from _pattern_faults(value, f"{place}.pattern")
        elif name == "type":
            for kind in value if isinstance(value, list) else [value]:
                if kind not in _TYPES:
                    yield f"{place}.type: {kind!r} is no type of JSON"
    for inner_place, inner in _inner(schema, place):
        yield from _faults(inner, inner_place)


def _pattern_faults(value: Any, place: str) -> Iterator[str]:
    try:
        re.compile(value)
    except (re.error, TypeError) as error:
        yield f"{place}: {value!r} is no regular expression ({error})"


def _inner(schema: Mapping[str, Any], place: str) -> Iterator[tuple[str, Any]]:
    """The schemas inside a schema, with their places."""
    for name, inner in schema.get("properties", {}).items():
        yield f"{place}.properties.{name}", inner
    for name in ("items", "additionalProperties", "not"):
        if name in schema:
            yield f"{place}.{name}", schema[name]
    for name in ("allOf", "anyOf", "oneOf"):
        for number, inner in enumerate(schema.get(name, [])):
            yield f"{place}.{name}[{number}]", inner


def matches(value: Any, schema: Any) -> bool:
    """Say whether a JSON value has the form that `schema` (see `read_schema`) describes."""
    if isinstance(schema, bool):
        return schema
    kinds = schema.get("type", list(_TYPES))
    if not any(_TYPES[kind](value) for kind in (kinds if isinstance(kinds, list) else [kinds])):
        return False
    if "enum" in schema and not any(_same(value, wanted) for wanted in schema["enum"]):
        return False
    if "const" in schema and not _same(value, schema["const"]):
        return False
    for name, (kind, holds) in _LIMITS.items():
        if name in schema and _TYPES[kind](value) and not holds(value, schema[name]):
            return False
    return _members_match(value, schema) and _combinations_match(value, schema)


def _members_match(value: Any, schema: Mapping[str, Any]) -> bool:
    if isinstance(value, dict):
        named = schema.get("properties", {})
        others = schema.get("additionalProperties", True)
        return all(matches(inner, named.get(name, others)) for name, inner in value.items())
    if isinstance(value, list):
        return all(matches(inner, schema.get("items", True)) for inner in value)
    return True


def _combinations_match(value: Any, schema: Mapping[str, Any]) -> bool:
    return (
        all(matches(value, inner) for inner in schema.get("allOf", []))
        and ("anyOf" not in schema or any(matches(value, inner) for inner in schema["anyOf"]))
        and ("oneOf" not in schema or sum(matches(value, inner) for inner in schema["oneOf"]) == 1)
        and not ("not" in schema and matches(value, schema["not"]))
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same(value: Any, wanted: Any) -> bool:
    """Equal as JSON: true is not 1."""
    return value == wanted and isinstance(value, bool) == isinstance(wanted, bool)
