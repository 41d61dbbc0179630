"""Fields of a record that no format reads: refused where they compete, counted where they do not.

A second question or another answer under a name of its own would be lost without a word: that is a
problem. Everything else (images, ids, scores, a mark where it has no meaning) is counted by name,
and one line tells of it before training.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from glmforge.data.conversation import shown

_NOTHING: tuple[Any, ...] = (None, "", [], {})
QUESTIONS = frozenset(
    "prompt query instruction instructions question questions input inputs problem context q "
    "user_input user_prompt user_query user_question human_input input_text prompt_text query_text "
    "question_text 问 问题 提问 指令 输入".split()
)
"""Names of fields, in lower case, whose text is a question."""
ANSWERS = frozenset(
    "answer answers response responses output outputs completion reply 回答 答案 回复 输出".split()
)
"""Names of fields whose text is an answer."""
_MARKS = frozenset(("train", "loss", "loss_weight", "weight"))
_OF_MESSAGES = _MARKS | frozenset(
    "role from content value tool_calls function_call metadata tools reasoning_content "
    "tool_call_id".split()
)
_PLAIN = frozenset(("role", "content", "from", "value"))  # what most messages have
_OF_RESULTS = _OF_MESSAGES | frozenset(("name", "parameters", "observation"))
_RESULTS = ("tool", "function", "observation")
_KEPT_NAMES = 200  # names that are counted; a file may have a new one in each record
_SHOWN_NAMES = 8
_LONGEST_NAME = 60  # characters that are shown of one


def unread_fields(
    value: Mapping[str, Any], read: Collection[str], messages: str = ""
) -> tuple[str, ...]:
    """Name the filled fields of a record that are not read.

    Args:
        value: the record.
        read: its fields that are.
        messages: the field with a list of messages, whose fields are looked at too.
    """
    found = [str(key) for key in value if key not in read and value[key] not in _NOTHING]
    if messages:
        of_messages = dict.fromkeys(_of_messages(value[messages]))
        found += [f"{messages}[].{name}" for name in of_messages]
    return tuple(found)


def _of_messages(messages: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for message in messages:
        if _PLAIN.issuperset(message):
            continue
        role = message.get("role", message.get("from"))
        result = role in _RESULTS
        for key in message.keys() - (_OF_RESULTS if result else _OF_MESSAGES):
            if message[key] not in _NOTHING:
                yield str(key)
        if role in ("user", "human", "system") or result:
            for key in _MARKS & message.keys():
                if message[key] is not None:
                    yield f"{key} ({role})"


def competing_field(value: Mapping[str, Any], read: Collection[str], *, text: bool) -> str:
    """Find a question or an answer beside those that are read; empty where there is none.

    Args:
        value: the record.
        read: its fields that are read.
        text: whether the record is read as text, so that ``text`` competes too.
    """
    said = {value[name].strip() for name in read if isinstance(value.get(name), str)}
    for key, item in value.items():
        name = str(key).lower()
        competes = name in QUESTIONS or name in ANSWERS or (text and name == "text")
        if (
            competes
            and key not in read
            and isinstance(item, str)
            and item.strip() not in {"", *said}
        ):
            return str(key)
    return ""


def field_beside_messages(value: Mapping[str, Any], messages: Any) -> str:
    """Find what belongs to a list of messages and stands outside of it; empty where nothing does.

    That is an answer where the last message is a question, and a history that is not in the list.

    Args:
        value: the record.
        messages: its list, as found.
    """
    history = value.get("history")
    if isinstance(history, list) and not set(_texts_in(history)) <= set(_texts_in(messages)):
        return "history"
    last = messages[-1] if isinstance(messages, list) and messages else None
    if not isinstance(last, dict) or last.get("role", last.get("from")) not in ("user", "human"):
        return ""
    for key, item in value.items():
        if str(key).lower() in ANSWERS and isinstance(item, str) and item.strip():
            return str(key)
    return ""


def said_twice(message: Mapping[str, Any]) -> str:
    """Say what a message holds under two names that differ; empty where nothing is.

    Only one of them would be read: the text, whether to train it, the thinking.
    """
    texts = [message[name] for name in ("content", "value") if message.get(name) not in _NOTHING]
    if len(texts) == 2 and texts[0] != texts[1]:
        return "has a content and a value, which differ"
    marks = {bool(message[name]) for name in _MARKS if message.get(name) is not None}
    if len(marks) > 1:
        return "is marked as trained and as not trained"
    inline = any(isinstance(text, str) and "</think>" in text for text in texts)
    if inline and message.get("reasoning_content") not in _NOTHING:
        return "has thinking in its text and in reasoning_content"
    return ""


def _texts_in(value: Any) -> Iterator[str]:
    """Every text in lists and objects, but for the names of roles."""
    if isinstance(value, str):
        yield value.strip()
    elif isinstance(value, list):
        for item in value:
            yield from _texts_in(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key not in ("role", "from"):
                yield from _texts_in(item)


def count_unread(counts: dict[str, int], names: Iterable[str]) -> None:
    """Add the names of one record to the counts."""
    for name in names:
        if name in counts or len(counts) < _KEPT_NAMES:
            counts[name] = counts.get(name, 0) + 1


def unread_line(counts: Mapping[str, int]) -> str:
    """Say which fields were not read, in how many records each; empty where there are none."""
    if not counts:
        return ""
    most = sorted(counts.items(), key=lambda item: -item[1])
    said = ", ".join(f"{_named(name)} × {number:,}" for name, number in most[:_SHOWN_NAMES])
    more = f" and {len(most) - _SHOWN_NAMES} more" if len(most) > _SHOWN_NAMES else ""
    return f"fields not read: {said}{more}"


def _named(name: str) -> str:
    """A field's name as it can stand in one line: names come from files, with anything in them."""
    short = name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME] + "…"
    return shown(short).replace("\n", "\\n")
