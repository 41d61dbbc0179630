"""Records to conversations: one recogniser a format, found by content and never by file name.

A format is a row of ``FORMATS``: what its record looks like (``matches``) and how to read it
(``read``). The first row that matches wins, so a new format is a new row. Shapes of single
messages (roles, tool calls, content parts) are in ``shapes``. Anything that cannot be read as
text raises ``Unreadable``, which becomes a ``Problem`` with the record's ``file:line``.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from glmforge.data.conversation import Conversation, Message, Problem
from glmforge.data.reading import Record, numbered
from glmforge.data.record_readers import (
    BESIDE,
    Reader,
    is_filled,
    list_reader,
    pair_reader,
    plain_reader,
    read_instances,
    turns_reader,
)
from glmforge.data.shapes import ShapeOptions, Unreadable, value_of
from glmforge.data.told_tools import read_dialogue
from glmforge.data.unread import (
    ANSWERS,
    QUESTIONS,
    competing_field,
    field_beside_messages,
    unread_fields,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One record format: its name, the question asked of a record, and its reader.

    ``read`` yields (messages, tools as found) once for every dialogue of the record. ``fields``
    are those that hold the dialogue; none for text, which may repeat a dialogue in its own way.
    ``beside`` are the others that are read; ``messages`` is the field with a list of messages.
    """

    name: str
    matches: Callable[[Mapping[str, Any]], bool]
    read: Reader
    fields: tuple[str, ...] = ()
    beside: tuple[str, ...] = BESIDE
    messages: str = ""


def to_conversations(
    record: Record, options: ShapeOptions | None = None
) -> Iterator[Conversation | Problem]:
    """Read one record in whatever format it is in.

    Args:
        record: a JSON value and its place.
        options: column mapping and repairs that concern reading.

    Returns:
        The record's conversation (several for formats that hold several), or a problem.
    """
    options = options or ShapeOptions()
    value = record.value
    try:
        if not isinstance(value, dict):
            raise Unreadable(
                "not-an-object",
                f"the record is {_kind(value)}, not an object",
                'write records like {"messages": [...]}',
            )
        value = _with_lists(options.renamed(value))
        form = find_format(value)
        if form is None:
            raise _unknown(value)
        _refuse_two(form, value, options)
        _refuse_competing(form, value, options)
        for place, (messages, tools) in enumerate(form.read(value, options), 1):
            found = read_dialogue(messages, tools, numbered(record.source, place))
            unread = unread_fields(value, (*form.fields, *form.beside), form.messages)
            yield replace(found, unread=unread) if unread and place == 1 else found
    except Unreadable as error:
        yield Problem(source=record.source, rule=error.rule, text=error.text, advice=error.advice)


def _with_lists(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """The record with its lists read where they are JSON text, as in the cell of a table."""
    found = {}
    for name in _LISTS:
        text = value.get(name)
        if isinstance(text, str) and text.lstrip().startswith(("[", "{")):
            read = value_of(text, name)
            found[name] = text if read is None else read
    return {**value, **found} if found else value


def find_format(value: Mapping[str, Any]) -> Format | None:
    """The first format whose question the record answers with yes, by filled fields if it can."""
    found = [form for form in FORMATS if form.matches(value)]
    filled = (f for f in found if any(is_filled(value, key) for key in f.fields or f.beside))
    return next(filled, found[0] if found else None)


def _refuse_two(form: Format, value: Mapping[str, Any], options: ShapeOptions) -> None:
    """Refuse a record that holds dialogues in two formats, unless both say the same.

    Raises:
        Unreadable: there is another one, which differs or cannot be read.
    """
    if not form.fields:
        return
    for other in FORMATS:
        names = other.fields
        if not names or other is form or any(value.get(key) in _NOTHING for key in names):
            continue
        if other.matches(value) and _said(form, value, options) != _said(other, value, options):
            places = f"{'/'.join(form.fields)} and in {'/'.join(names)}"
            raise Unreadable(
                "two-dialogues",
                f"the record has two dialogues, in {places}, which differ",
                "keep one of them",
            )


def _refuse_competing(form: Format, value: Mapping[str, Any], options: ShapeOptions) -> None:
    """Refuse a question or an answer that would not be trained, unless the user chose columns.

    Raises:
        Unreadable: there is one.
    """
    if options.columns:
        return
    if form.messages:
        name = field_beside_messages(value, value[form.messages])
    else:
        read = (*form.fields, *form.beside)
        name = competing_field(value, read, text=not form.fields)
    if name:
        raise Unreadable(
            "competing-field",
            f"the record is read as {form.name}, which leaves out the text of its field {name!r}",
            "join them into one field, remove one, or name what is to be read with data.columns, "
            "such as response=response",
        )


def _said(form: Format, value: Mapping[str, Any], options: ShapeOptions) -> list[list[Message]]:
    """The dialogues that a format sees in a record; none where it cannot read them."""
    try:
        return [messages for messages, _ in form.read(value, options)]
    except Unreadable:
        return []


def _unknown(value: Mapping[str, Any]) -> Unreadable:
    keys = ", ".join(str(key) for key in list(value)[:8]) or "none"
    known = "; ".join(form.name for form in FORMATS)
    pairs = columns_of_pair(value)
    options = " ".join(f"--column {ours}={theirs}" for ours, theirs in pairs.items())
    setting = ", ".join(f"{ours}: {theirs}" for ours, theirs in pairs.items())
    advice = f"map them with data.columns, such as query=question, or use one of: {known}"
    if pairs:
        advice = f"map them: {options}, or in a run config `columns: {{{setting}}}` under data"
    lists = [key for key, items in value.items() if _is_list_of_records(items)]
    if lists:
        named = " or ".join(map(repr, lists[:3]))
        advice = f"it holds lists of records: write the list under {named} to a file of its own"
    return Unreadable("unknown-format", f"no known format has the fields {keys}", advice)


def columns_of_pair(fields: Iterable[str]) -> dict[str, str]:
    """The mapping, ours to theirs, that makes a format of one question and one answer.

    Empty where the fields hold not just one of each by their names.
    """
    questions = [name for name in fields if str(name).lower() in _ASKED]
    answers = [name for name in fields if str(name).lower() in _ANSWERED]
    if len(questions) != 1 or len(answers) != 1:
        return {}
    asked = questions[0] if questions[0] in ("prompt", "query", "instruction") else "query"
    answered = "output" if asked == "instruction" else "response"
    pairs = {asked: questions[0], answered: answers[0]}
    return {ours: theirs for ours, theirs in pairs.items() if ours != theirs}


def _is_list_of_records(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _kind(value: Any) -> str:
    kinds = {list: "a list", str: "a text", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number")


def _has(*names: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda value: all(name in value for name in names)


def _is_turns(value: Mapping[str, Any]) -> bool:
    turns = value.get("conversation")
    return isinstance(turns, list) and all(
        isinstance(turn, dict) and "human" in turn and "assistant" in turn for turn in turns
    )


# Names that say question or answer where nothing else of the record does: elsewhere they may be
# ids, labels or parts of an answer.
_ASKED = QUESTIONS | frozenset("user human ask".split())
_ANSWERED = ANSWERS | frozenset("target summary assistant gpt 摘要 a 答".split())
_ABOUT = frozenset(
    "id uid uuid source lang language category type task model url date time dataset split license "
    "name title topic domain".split()
)
"""Fields that tell of a text and are no part of it."""


def _is_text(value: Mapping[str, Any]) -> bool:
    """Whether a record is text, and no half of a pair whose fields are not known."""
    others = _ANSWERED - {"a"}
    return "text" in value and not any(
        str(key).lower() in others and is_filled(value, key) for key in value
    )


def _is_response_alone(value: Mapping[str, Any]) -> bool:
    """Whether a response is all of a record's text: any other may be its question."""
    return "response" in value and not any(
        isinstance(item, str)
        and item.strip()
        and str(key).lower() not in _ABOUT | {"response", "text"}
        for key, item in value.items()
    )


def _has_instances(value: Mapping[str, Any]) -> bool:
    return "instruction" in value and isinstance(value.get("instances"), list)


_NOTHING: tuple[Any, ...] = (None, "", [])
_LISTS = ("messages", "conversations", "conversation", "history")

FORMATS: tuple[Format, ...] = (
    Format(
        name="messages",
        matches=_has("messages"),
        read=list_reader("messages"),
        fields=("messages",),
        messages="messages",
    ),
    Format(
        name="conversations",
        matches=_has("conversations"),
        read=list_reader("conversations"),
        fields=("conversations",),
        messages="conversations",
    ),
    Format(
        name="human/assistant turns",
        matches=_is_turns,
        read=turns_reader("conversation"),
        fields=("conversation",),
    ),
    Format(
        name="seed tasks",
        matches=_has_instances,
        read=read_instances,
        fields=("instances",),
        beside=("instruction", *BESIDE),
    ),
    Format(
        name="instruction/output",
        matches=_has("instruction", "output"),
        read=pair_reader(("instruction", "input"), "output"),
        fields=("instruction", "output"),
        beside=("input", "history", *BESIDE),
    ),
    Format(
        name="content/summary",
        matches=_has("content", "summary"),
        read=pair_reader(("content",), "summary"),
        fields=("content", "summary"),
        beside=("history", *BESIDE),
    ),
    Format(
        name="prompt/response",
        matches=_has("prompt", "response"),
        read=pair_reader(("prompt",), "response"),
        fields=("prompt", "response"),
        beside=("history", *BESIDE),
    ),
    Format(
        name="query/response",
        matches=_has("query", "response"),
        read=pair_reader(("query",), "response"),
        fields=("query", "response"),
        beside=("history", *BESIDE),
    ),
    Format(
        name="question/std_answer",
        matches=_has("question", "std_answer"),
        read=pair_reader(("question",), "std_answer"),
        fields=("question", "std_answer"),
        beside=("history", *BESIDE),
    ),
    Format(
        name="text",
        matches=_is_text,
        read=plain_reader("text"),
        beside=("text",),
    ),
    Format(
        name="response alone",
        matches=_is_response_alone,
        read=plain_reader("response"),
        beside=("response",),
    ),
)

FIELDS = (
    "messages", "conversations", "conversation", "instruction", "input", "output", "instances",
    "content", "summary", "prompt", "query", "question", "response", "std_answer", "text",
    "system", "history", "tools",
)  # fmt: skip
"""The fields of a record that the formats read: what the user's columns may be mapped to."""
