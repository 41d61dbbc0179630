"""Readers of the record formats: each takes a record apart into messages and tools.

A reader yields (messages, tools as found) once for every dialogue of a record; ``formats`` has the
table that says which reader a record gets. What cannot be read as text raises ``Unreadable``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from glmforge.data.conversation import Message
from glmforge.data.shapes import ShapeOptions, Unreadable, read_messages, read_text
from glmforge.data.told_tools import agreed_tools

Reader = Callable[[Mapping[str, Any], ShapeOptions], Iterator[tuple[list[Message], Any]]]
BESIDE = ("system", "system_prompt", "tools", "functions")
"""Fields that are read beside the dialogue, whatever its format."""


def list_reader(name: str) -> Reader:
    """Reader of a list of messages under a field."""

    def read(
        value: Mapping[str, Any], options: ShapeOptions
    ) -> Iterator[tuple[list[Message], Any]]:
        messages = read_messages(value[name], name, options)
        yield _with_system(_system(value, options), messages), _record_tools(value, value[name])

    return read


def _system(value: Mapping[str, Any], options: ShapeOptions) -> list[Message]:
    """The record's own system text as a message; none where the field is missing or empty."""
    names = [name for name in ("system", "system_prompt") if is_filled(value, name)]
    texts = {read_text(value, name, options) for name in names}
    if len(texts) > 1:
        raise Unreadable(
            "two-systems",
            "the record has a system text and a system_prompt, which differ",
            "keep one of them",
        )
    return [Message(role="system", content=text) for text in texts]


def _with_system(system: list[Message], messages: list[Message]) -> list[Message]:
    """The record's system text first; the messages may begin with the same one."""
    if not system or not messages or messages[0].role != "system":
        return [*system, *messages]
    if messages[0].content not in ("", system[0].content):
        raise Unreadable(
            "two-systems",
            "the record has a system text, and its messages begin with another one",
            "keep one of them",
        )
    return [*system, *messages[1:]]


def _record_tools(value: Mapping[str, Any], messages: Sequence[Any]) -> Any:
    """Tools of the record, or of the system message (where ChatGLM3 and GLM-4 put them)."""
    carried = [message.get("tools") for message in messages if isinstance(message, dict)]
    return agreed_tools([value.get("tools"), value.get("functions"), *carried])


def pair_reader(question: Sequence[str], answer: str) -> Reader:
    """Reader of question/answer records with optional ``system`` and ``history``."""

    def read(
        value: Mapping[str, Any], options: ShapeOptions
    ) -> Iterator[tuple[list[Message], Any]]:
        messages = _system(value, options)
        for old_question, old_answer in _history(value.get("history")):
            messages.append(Message(role="user", content=old_question))
            messages.append(Message(role="assistant", content=old_answer))
        parts = [read_text(value, name, options) for name in question if is_filled(value, name)]
        messages.append(Message(role="user", content="\n".join(parts)))
        messages.append(Message(role="assistant", content=read_text(value, answer, options)))
        yield messages, _record_tools(value, ())

    return read


def is_filled(value: Mapping[str, Any], name: str) -> bool:
    """Whether a field is there and not empty."""
    return name in value and value[name] not in ("", None)


def _history(history: Any) -> Iterator[tuple[str, str]]:
    if history in (None, "", []):
        return
    if not isinstance(history, list):
        raise Unreadable(
            "bad-history", "history is not a list", "write it as [[question, answer], ...]"
        )
    for number, pair in enumerate(history, 1):
        texts = isinstance(pair, list) and len(pair) == 2 and all(isinstance(x, str) for x in pair)
        if not texts:
            raise Unreadable(
                "bad-history",
                f"history entry {number} is no pair of texts",
                "write it as [question, answer]",
            )
        yield pair[0], pair[1]


def turns_reader(name: str) -> Reader:
    """Reader of ``[{"human": ..., "assistant": ...}, ...]``."""

    def read(
        value: Mapping[str, Any], options: ShapeOptions
    ) -> Iterator[tuple[list[Message], Any]]:
        messages = _system(value, options)
        for turn in value[name]:
            messages.append(Message(role="user", content=read_text(turn, "human", options)))
            messages.append(
                Message(role="assistant", content=read_text(turn, "assistant", options))
            )
        yield messages, _record_tools(value, ())

    return read


def read_instances(
    value: Mapping[str, Any], options: ShapeOptions
) -> Iterator[tuple[list[Message], Any]]:
    """Seed tasks: one instruction with a list of input/output pairs, a dialogue each."""
    for instance in value["instances"]:
        if not isinstance(instance, dict):
            raise Unreadable("bad-instance", "an instance is no object", "write input and output")
        pair = {**instance, "instruction": value["instruction"]}
        yield from pair_reader(("instruction", "input"), "output")(pair, options)


def plain_reader(name: str) -> Reader:
    """Reader of text for continued pretraining."""

    def read(
        value: Mapping[str, Any], options: ShapeOptions
    ) -> Iterator[tuple[list[Message], Any]]:
        yield [Message(role="text", content=read_text(value, name, options))], None

    return read
