"""JSON text to values, and nothing lost: a key that stands twice is a fault, not its last value.

So are what Python reads only to fail on later (values nested by the hundred) and what it refuses
in words about itself (integers of thousands of digits). ``reading`` and ``documents`` read records
with this, ``shapes`` and ``calls`` the JSON that stands as text inside of them.
"""

import json
import sys
from typing import Any

DEEPEST = 100
"""Levels of lists and objects in a value; Python's own limit depends on who calls."""


class BadJson(ValueError):
    """JSON that no record can be made of: a rule, what it does (without a subject), and advice.

    ``end`` is where the value ends in its text; None where that cannot be told.
    """

    def __init__(self, rule: str, text: str, advice: str, end: int | None) -> None:
        super().__init__(text)
        self.rule, self.text, self.advice, self.end = rule, text, advice, end


class _DoubledKey(ValueError):
    """An object has a key twice."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        keys = [key for key, _ in pairs]
        raise _DoubledKey(next(key for key in keys if keys.count(key) > 1))
    return value


_strict = json.JSONDecoder(object_pairs_hook=_object).raw_decode
_lenient = json.JSONDecoder(parse_int=str).raw_decode


def read_json(text: str) -> Any:
    """Return the value that a text is.

    Raises:
        json.JSONDecodeError: the text is not JSON.
        BadJson: it is, and still no value to train on.
    """
    value, end = read_json_at(text, len(text) - len(text.lstrip()))
    rest = text[end:].lstrip()
    if rest:
        raise json.JSONDecodeError("Extra data", text, len(text) - len(rest))
    return value


def read_json_at(text: str, start: int) -> tuple[Any, int]:
    """Return the value that begins at ``start``, and where it ends; raises as ``read_json``."""
    try:
        value, end = _strict(text, start)
    except json.JSONDecodeError:
        raise
    except _DoubledKey as error:
        key = str(error)[:80]
        what = f"has the key {key!r} twice in one object, and only the last would be read"
        raise BadJson("doubled-key", what, "keep one of them", _end(text, start)) from error
    except RecursionError as error:
        raise _deep(None) from error
    except ValueError as error:  # int() takes only so many digits
        what = f"has an integer of more than {sys.get_int_max_str_digits():,} digits"
        advice = "write it as text, in quotes, or remove it"
        raise BadJson("not-json", what, advice, _end(text, start)) from error
    openings = text.count("{", start, end) + text.count("[", start, end)
    if openings > DEEPEST and _is_deep(value):
        raise _deep(end)
    return value, end


def _deep(end: int | None) -> BadJson:
    what = f"is nested more than {DEEPEST} levels deep"
    return BadJson("not-json", what, "write it with fewer brackets, or leave it out", end)


def _end(text: str, start: int) -> int | None:
    try:
        return _lenient(text, start)[1]
    except RecursionError:
        return None


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return bool(level)
