"""The questions that every model is asked: the user's file, and the general set of this package.

A prompt is a history that ends with a question, the answer that is right where it is known, and a
check where a program can tell. Any file that can be trained on gives prompts (the last question of
each dialogue, its answer as reference); so do a text file, a question a line, and JSON Lines of
``{"prompt": ..., "reference": ..., "check": ...}``.
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from glmforge.assets import asset_path
from glmforge.compare.checks import check_faults
from glmforge.data import Conversation, Message, Problem
from glmforge.data.reading import Record
from glmforge.data.sources import ReadOptions, convert, data_files, named, read_records
from glmforge.errors import DataError

Group = Literal["asked", "general"]
_OWN_KEYS = ("id", "prompt", "system", "history", "reference", "check", "area", "language")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One question for all models.

    ``seen`` says whether the question stands in the training data of a tuned model (None: not
    known, no run was given). ``check`` is a rule of ``checks``; ``area`` and ``language`` belong
    to the general set.
    """

    id: str
    messages: tuple[Message, ...]
    source: str
    tools: tuple[Mapping[str, Any], ...] = ()
    reference: str | None = None
    check: Mapping[str, Any] | None = None
    group: Group = "asked"
    area: str = ""
    language: str = ""
    seen: bool | None = None

    @property
    def text(self) -> str:
        """The question itself, the last message."""
        return self.messages[-1].content

    @property
    def history(self) -> tuple[tuple[str, str], ...]:
        """(role, text) of every message, the question last."""
        return tuple((message.role, message.text) for message in self.messages)


def read_prompts(path: Path) -> list[Prompt]:
    """Read the prompts of a file.

    Raises:
        DataError: the file cannot be read, or records of it are no prompts; all problems at once.
    """
    prompts: list[Prompt] = []
    problems: list[str] = []
    for found in _read(path):
        if isinstance(found, Prompt):
            prompts.append(found)
        else:
            problems.append(found)
    if not prompts and not problems:
        problems.append(f"{path}: no prompt in it; write one question a line")
    names = Counter(prompt.id for prompt in prompts)
    problems += [f"{path}: {n} prompts have the id {name!r}" for name, n in names.items() if n > 1]
    if problems:
        raise DataError(problems)
    return prompts


def general_prompts() -> list[Prompt]:
    """Return the general set: arithmetic, facts, instructions and safety, Chinese and English."""
    prompts = read_prompts(asset_path("general/prompts.jsonl"))
    return [dataclasses.replace(prompt, group="general", source="") for prompt in prompts]


def _read(path: Path) -> Iterator[Prompt | str]:
    """Prompts and problems, in order."""
    if path.suffix == ".txt":
        yield from _lines(path)
        return
    options = ReadOptions()
    number = 0
    for file in data_files(path):
        for item in named(read_records(file, options), file, str(file)):
            for found in _prompts_of(item, options):
                number += isinstance(found, Prompt)
                nameless = isinstance(found, Prompt) and found.id == ""
                yield dataclasses.replace(found, id=f"p{number}") if nameless else found  # type: ignore[type-var]


def _lines(path: Path) -> Iterator[Prompt | str]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        yield f"{path}: cannot be read as UTF-8 text ({error}); check the path"
        return
    lines = [(n, line.strip()) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    for place, (number, line) in enumerate(lines, 1):
        messages = (Message(role="user", content=line),)
        yield Prompt(id=f"p{place}", messages=messages, source=f"{path}:{number}")


def _prompts_of(item: Record | Problem, options: ReadOptions) -> Iterator[Prompt | str]:
    if isinstance(item, Problem):
        yield str(item)
        return
    value = item.value
    if isinstance(value, str):
        value = {"prompt": value}
    if isinstance(value, dict) and isinstance(value.get("prompt"), str) and "response" not in value:
        yield from _own(value, item.source)
        return
    for found in convert(iter([item]), options):
        yield str(found) if isinstance(found, Problem) else _asked(found)


def _own(value: Mapping[str, Any], source: str) -> Iterator[Prompt | str]:
    """A record of our own shape."""
    unknown = [name for name in value if name not in _OWN_KEYS]
    faults = [f"unknown field {name!r}; known: {', '.join(_OWN_KEYS)}" for name in unknown]
    texts = [name for name in _OWN_KEYS if name not in ("id", "check", "history")]
    for name in texts:
        if not isinstance(value.get(name, ""), str):
            faults.append(f"{name} is {value[name]!r}, expected a text")
    if not value["prompt"].strip():
        faults.append("the prompt is empty")
    turns = value.get("history", [])
    if not _are_turns(turns):
        faults.append(f"history is {turns!r}, expected a list of [question, answer] pairs")
    if "check" in value:
        faults += check_faults(value["check"])
    if faults:
        yield from (f"{source}: {fault}" for fault in faults)
        return
    head = [Message(role="system", content=value["system"])] if value.get("system") else []
    for question, answer in turns:
        head += [Message(role="user", content=question), Message(role="assistant", content=answer)]
    yield Prompt(
        id=str(value.get("id", "")),
        messages=(*head, Message(role="user", content=value["prompt"])),
        source=source,
        reference=value.get("reference"),
        check=value.get("check"),
        area=value.get("area", ""),
        language=value.get("language", ""),
    )


def _are_turns(value: Any) -> bool:
    pairs = value if isinstance(value, list) else [None]
    return all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)
        for pair in pairs
    )


def _asked(found: Conversation) -> Prompt | str:
    """The last question of a dialogue and, where text follows it, its answer."""
    ends = [place for place, message in enumerate(found.messages) if message.role == "user"]
    if not ends:
        return f"{found.source}: no user message to answer; write one, or remove the record"
    messages, rest = found.messages[: ends[-1] + 1], found.messages[ends[-1] + 1 :]
    told = bool(rest) and rest[0].role == "assistant" and not rest[0].is_call
    return Prompt(
        id="",
        messages=messages,
        tools=found.tools,
        source=found.source,
        reference=rest[0].content if told else None,
    )


def prompt_values(prompts: Iterable[Prompt]) -> list[dict[str, Any]]:
    """Plain values of prompts, for JSON."""
    return [
        {
            "id": prompt.id,
            "group": prompt.group,
            "area": prompt.area,
            "language": prompt.language,
            "source": prompt.source,
            "seen": prompt.seen,
            "messages": [list(part) for part in prompt.history],
            "tools": json.loads(json.dumps(list(prompt.tools))),
            "reference": prompt.reference,
            "check": dict(prompt.check) if prompt.check is not None else None,
        }
        for prompt in prompts
    ]


def without_references(prompts: Sequence[Prompt]) -> list[Prompt]:
    """The same prompts with nothing to compare answers with."""
    return [dataclasses.replace(prompt, reference=None) for prompt in prompts]
