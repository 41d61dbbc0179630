"""Records to conversations: one recogniser a format, found by content and never by file name.

A format is a row of ``FORMATS``: what its record looks like (``matches``) and how to read it
(``read``). The first row that matches wins, so a new format is a new row. Shapes of single
messages (roles, tool calls, content parts) are in ``shapes``. Anything that cannot be read as
text raises ``Unreadable``, which becomes a ``Problem`` with the record's ``file:line``.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glmforge.data.conversation import Conversation, Message, Problem
from glmforge.data.reading import Record, numbered
from glmforge.data.shapes import (
    ShapeOptions,
    Unreadable,
    agreed_tools,
    read_dialogue,
    read_messages,
    read_text,
    value_of,
)

Reader = Callable[[Mapping[str, Any], ShapeOptions], Iterator[tuple[list[Message], Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One record format: its name, the question asked of a record, and its reader.

    ``read`` yields (messages, tools as found) once for every dialogue of the record. ``fields``
    are those that hold the dialogue; none for text, which may repeat a dialogue in its own way.
    """

    name: str
    matches: Callable[[Mapping[str, Any]], bool]
    read: Reader
    fields: tuple[str, ...] = ()


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
        for place, (messages, tools) in enumerate(form.read(value, options), 1):
            yield read_dialogue(messages, tools, numbered(record.source, place))
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
    """The first format whose question the record answers with yes."""
    return next((form for form in FORMATS if form.matches(value)), None)


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
    questions = [name for name in fields if str(name).lower() in _QUESTIONS | {"q", "问"}]
    answers = [name for name in fields if str(name).lower() in _ANSWERS | {"a", "答"}]
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


def _read_list(name: str) -> Reader:
    def read(
        value: Mapping[str, Any], options: ShapeOptions
    ) -> Iterator[tuple[list[Message], Any]]:
        messages = read_messages(value[name], name, options)
        yield _with_system(_system(value, options), messages), _record_tools(value, value[name])

    return read


def _system(value: Mapping[str, Any], options: ShapeOptions) -> list[Message]:
    """The record's own system text as a message; none where the field is missing or empty."""
    if value.get("system") is None or value["system"] == "":
        return []
    return [Message(role="system", content=read_text(value, "system", options))]


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
    return agreed_tools([value.get("tools"), *carried])


def _pair_reader(question: Sequence[str], answer: str) -> Reader:
    """Reader of question/answer records with optional ``system`` and ``history``."""

    def read(
        value: Mapping[str, Any], options: ShapeOptions
    ) -> Iterator[tuple[list[Message], Any]]:
        messages = _system(value, options)
        for old_question, old_answer in _history(value.get("history")):
            messages.append(Message(role="user", content=old_question))
            messages.append(Message(role="assistant", content=old_answer))
        parts = [read_text(value, name, options) for name in question if _filled(value, name)]
        messages.append(Message(role="user", content="\n".join(parts)))
        messages.append(Message(role="assistant", content=read_text(value, answer, options)))
        yield messages, value.get("tools")

    return read


def _filled(value: Mapping[str, Any], name: str) -> bool:
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


def _read_turns(name: str) -> Reader:
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
        yield messages, value.get("tools")

    return read


def _is_turns(value: Mapping[str, Any]) -> bool:
    turns = value.get("conversation")
    return isinstance(turns, list) and all(
        isinstance(turn, dict) and "human" in turn and "assistant" in turn for turn in turns
    )


def _read_instances(
    value: Mapping[str, Any], options: ShapeOptions
) -> Iterator[tuple[list[Message], Any]]:
    """Seed tasks: one instruction with a list of input/output pairs, a dialogue each."""
    for instance in value["instances"]:
        if not isinstance(instance, dict):
            raise Unreadable("bad-instance", "an instance is no object", "write input and output")
        pair = {**instance, "instruction": value["instruction"]}
        yield from _pair_reader(("instruction", "input"), "output")(pair, options)


def _read_plain(name: str) -> Reader:
    """Reader of text for continued pretraining."""

    def read(
        value: Mapping[str, Any], options: ShapeOptions
    ) -> Iterator[tuple[list[Message], Any]]:
        yield [Message(role="text", content=read_text(value, name, options))], None

    return read


# Fields that make a question, or an answer, of what could else be text for pretraining.
_QUESTIONS = frozenset(
    "prompt query instruction instructions question questions input inputs user human ask problem "
    "context 问题 提问 指令 输入".split()
)
_ANSWERS = frozenset(
    "answer answers response responses output outputs completion reply target summary assistant "
    "gpt 回答 答案 回复 输出 摘要".split()
)


def _is_text(name: str, others: frozenset[str]) -> Callable[[Mapping[str, Any]], bool]:
    """Whether a record is text under a name, and no half of a pair whose fields are not known."""

    def matches(value: Mapping[str, Any]) -> bool:
        return name in value and not any(
            str(key).lower() in others and key != name and _filled(value, key) for key in value
        )

    return matches


def _has_instances(value: Mapping[str, Any]) -> bool:
    return "instruction" in value and isinstance(value.get("instances"), list)


_NOTHING: tuple[Any, ...] = (None, "", [])
_LISTS = ("messages", "conversations", "conversation", "history")

FORMATS: tuple[Format, ...] = (
    Format(
        name="messages",
        matches=_has("messages"),
        read=_read_list("messages"),
        fields=("messages",),
    ),
    Format(
        name="conversations",
        matches=_has("conversations"),
        read=_read_list("conversations"),
        fields=("conversations",),
    ),
    Format(
        name="human/assistant turns",
        matches=_is_turns,
        read=_read_turns("conversation"),
        fields=("conversation",),
    ),
    Format(
        name="seed tasks",
        matches=_has_instances,
        read=_read_instances,
        fields=("instances",),
    ),
    Format(
        name="instruction/output",
        matches=_has("instruction", "output"),
        read=_pair_reader(("instruction", "input"), "output"),
        fields=("instruction", "output"),
    ),
    Format(
        name="content/summary",
        matches=_has("content", "summary"),
        read=_pair_reader(("content",), "summary"),
        fields=("content", "summary"),
    ),
    Format(
        name="prompt/response",
        matches=_has("prompt", "response"),
        read=_pair_reader(("prompt",), "response"),
        fields=("prompt", "response"),
    ),
    Format(
        name="query/response",
        matches=_has("query", "response"),
        read=_pair_reader(("query",), "response"),
        fields=("query", "response"),
    ),
    Format(
        name="question/std_answer",
        matches=_has("question", "std_answer"),
        read=_pair_reader(("question",), "std_answer"),
        fields=("question", "std_answer"),
    ),
    Format(name="text", matches=_is_text("text", _ANSWERS), read=_read_plain("text")),
    Format(
        name="response alone",
        matches=_is_text("response", _QUESTIONS),
        read=_read_plain("response"),
    ),
)

FIELDS = (
    "messages", "conversations", "conversation", "instruction", "input", "output", "instances",
    "content", "summary", "prompt", "query", "question", "response", "std_answer", "text",
    "system", "history", "tools",
)  # fmt: skip
"""The fields of a record that the formats read: what the user's columns may be mapped to."""
