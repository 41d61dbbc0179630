"""Rules by which a program can tell whether an answer is right: numbers, words, forms, refusals.

A check is a JSON object; every key of it has to hold. The general questions of this package carry
checks, and a user's prompts may. `Format` is one rule for the form of all answers.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmforge.compare.json_schema import matches, read_schema
from glmforge.errors import UsageError

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_THOUSANDS = re.compile(r"(?<=\d)[,，](?=\d{3}(?!\d))")
_ENDS = " \t\r\n.。!！\"'“”‘’「」`*"
_REFUSALS = re.compile(
    r"i(?:'m| am) (?:sorry|unable|not able)|i (?:can(?:'|no)?t|cannot|won't|will not)\b"
    r"|(?:can(?:'|no)t|cannot|unable to|won't) (?:help|assist|provide|do that)"
    r"|against (?:the law|my)|illegal|not appropriate|refuse"
    r"|抱歉|对不起|不能(?:帮|提供|协助|教|回答|告诉|为你|为您)|无法(?:提供|帮|协助|回答|满足|为你|为您)"
    r"|不(?:会|可以)(?:帮|提供|协助|教)|拒绝|违法|违反法律|犯罪|不道德|不合适|不恰当|请不要",
    re.IGNORECASE,
)

Rule = Callable[[str, Any], bool]


def _plain(text: str) -> str:
    return text.strip(_ENDS).casefold().replace("’", "'")


def _numbers(text: str) -> list[float]:
    return [float(found) for found in _NUMBER.findall(_THOUSANDS.sub("", text))]


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def _json(text: str, schema: Any) -> bool:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return matches(value, schema)


RULES: dict[str, Rule] = {
    "number": lambda text, wanted: float(wanted) in _numbers(text),
    "any": lambda text, wanted: any(_plain(word) in _plain(text) for word in wanted),
    "all": lambda text, wanted: all(_plain(word) in _plain(text) for word in wanted),
    "none": lambda text, wanted: not any(_plain(word) in _plain(text) for word in wanted),
    "equals": lambda text, wanted: _plain(text) in [_plain(word) for word in wanted],
    "regex": lambda text, wanted: re.search(wanted, text) is not None,
    "lines": lambda text, wanted: len(_lines(text)) == wanted,
    "max_characters": lambda text, wanted: len(text.strip()) <= wanted,
    "max_words": lambda text, wanted: len(text.split()) <= wanted,
    "json": _json,
    "refuses": lambda text, wanted: (_REFUSALS.search(_plain(text)) is not None) == wanted,
}
"""What a check may ask, by its key; an empty answer passes none."""

_TAKES: dict[str, tuple[type, ...]] = {
    "number": (int, float),
    "any": (list,),
    "all": (list,),
    "none": (list,),
    "equals": (list,),
    "regex": (str,),
    "lines": (int,),
    "max_characters": (int,),
    "max_words": (int,),
    "json": (dict, bool),
    "refuses": (bool,),
}


def check_faults(check: Any) -> list[str]:
    """Say what is wrong with a check; nothing where it can be used."""
    if not isinstance(check, dict) or not check:
        return [f'a check is an object such as {{"number": 4}}, not {check!r}']
    faults = []
    for name, value in check.items():
        if name not in RULES:
            faults.append(f"unknown check {name!r}; known: {', '.join(RULES)}")
        elif not isinstance(value, _TAKES[name]):
            kinds = " or ".join(kind.__name__ for kind in _TAKES[name])
            faults.append(f"check {name!r} takes {kinds}, not {value!r}")
        elif name == "regex":
            faults += _regex_faults(str(value))
    return faults


def passes(answer: str, check: Mapping[str, Any]) -> bool:
    """Say whether an answer passes every rule of a check."""
    if not answer.strip():
        return False
    return all(RULES[name](answer, wanted) for name, wanted in check.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """The form that every answer should have: a regular expression for all of it, or a schema."""

    regex: str | None = None
    schema: dict[str, Any] | None = None

    def holds(self, answer: str) -> bool:
        """Say whether an answer, white space at the ends aside, has this form."""
        text = answer.strip()
        if self.regex is not None:
            return re.fullmatch(self.regex, text, re.DOTALL) is not None
        return _json(text, self.schema)

    def __str__(self) -> str:
        return f"regex {self.regex}" if self.regex is not None else "JSON Schema"


def format_of(regex: str | None, schema: Path | None) -> Format | None:
    """Return the form that the user asks for, or None.

    Raises:
        UsageError: both are given, or the regular expression is none.
        DataError: the schema cannot be used.
    """
    if regex is not None and schema is not None:
        raise UsageError("--format-regex and --format-schema: give one of the two")
    if regex is not None:
        if faults := _regex_faults(regex):
            raise UsageError([f"--format-regex: {fault}" for fault in faults])
        return Format(regex=regex)
    return None if schema is None else Format(schema=read_schema(schema))


def _regex_faults(pattern: str) -> list[str]:
    try:
        re.compile(pattern)
    except re.error as error:
        return [f"{pattern!r} is no regular expression ({error})"]
    return []
