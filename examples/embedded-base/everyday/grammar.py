# ruff: noqa: E501
"""Templates with alternatives: one line stands for many sentences.

``[a|b|c]`` is one of its parts (they may nest, and one may be empty), ``{name}`` is filled from the
slots given. Every other module of this folder writes its sentences so; nothing here knows a topic.
"""

import random
import re
from collections.abc import Callable, Sequence

Turns = list[tuple[str, str]]
"""(what the user says, what the assistant answers) of one dialogue."""
Maker = Callable[[random.Random], Turns]

_INNERMOST = re.compile(r"\[([^\[\]]*)\]")
_DIGITS = "零一二三四五六七八九"


def say(rng: random.Random, template: str, **slots: object) -> str:
    """Write one sentence of a template."""
    while "[" in template:
        template = _INNERMOST.sub(lambda found: rng.choice(found.group(1).split("|")), template)
    return template.format(**slots) if slots else template


def one_of(rng: random.Random, templates: Sequence[str], **slots: object) -> str:
    """Write one sentence of one of several templates."""
    return say(rng, rng.choice(templates), **slots)


def table(text: str) -> list[list[str]]:
    """Rows of a table written as lines of cells divided by blanks or, where there are any, by " | "."""
    rows = [line.strip() for line in text.strip().split("\n") if line.strip()]
    return [[c.strip() for c in row.split(" | ")] if " | " in row else row.split() for row in rows]


def chinese_number(number: int) -> str:
    """Write 0 to 9999 in Chinese characters, as people say them."""
    if number < 10:
        return _DIGITS[number]
    text, zero = "", False
    for unit, name in ((1000, "千"), (100, "百"), (10, "十"), (1, "")):
        digit, number = divmod(number, unit)
        if digit:
            text += ("零" if zero else "") + _DIGITS[digit] + name
            zero = False
        elif text and number:
            zero = True
    return text.removeprefix("一") if text.startswith("一十") else text


def clock(minutes: int) -> str:
    """Write minutes after midnight as 8:30."""
    return f"{minutes // 60}:{minutes % 60:02d}"


def spoken_clock(minutes: int) -> str:
    """Write minutes after midnight as 上午八点半."""
    hour, rest = divmod(minutes, 60)
    part = "早上" if hour < 9 else "上午" if hour < 12 else "中午" if hour < 13 else ""
    part = part or ("下午" if hour < 18 else "晚上")
    shown = hour if hour <= 12 else hour - 12
    hours = ("两" if shown == 2 else chinese_number(shown)) + "点"
    return part + hours + {0: "", 30: "半", 15: "一刻", 45: "三刻"}.get(rest, f"{rest}分")
