"""Single messages: roles under any of their names, content, tool calls, train marks.

``read_messages`` turns a list of message objects (OpenAI, ChatGLM3, GLM-4 or ShareGPT style, told
by their fields) into ``Message`` values. What is no text is never spelled as text: null, numbers
and lists raise ``Unreadable`` with the message's number. ``formats`` calls this for each record.
"""

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from glmforge.data.conversation import Message, Role
from glmforge.data.json_text import BadJson, read_json
from glmforge.data.parts import part_of
from glmforge.data.unread import said_twice
from glmforge.tool_calls import BadCall, calls_of, read_call, shown

ROLE_NAMES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "bot": "assistant",
    "chatglm": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "observation": "observation",
    "tool": "observation",
    "function": "observation",
    "function_response": "observation",
    "tool_response": "observation",
}
_CALL_ROLES = ("function_call", "tool_call")
_WORDS: dict[Any, Role] = {
    name: role for name, role in ROLE_NAMES.items() if name not in _CALL_ROLES
}
"""Roles whose text is a message as it stands."""


class Unreadable(Exception):
    """A record or message that no reader can turn into text; carries rule, text and advice."""

    def __init__(self, rule: str, text: str, advice: str) -> None:
        super().__init__(text)
        self.rule, self.text, self.advice = rule, text, advice


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeOptions:
    """How records are read: ``columns`` maps our field name to the file's, ``flatten`` joins
    content parts.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    flatten: bool = False

    def renamed(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """The record under the names that the formats know."""
        if not self.columns:
            return value
        missing = [theirs for theirs in self.columns.values() if theirs not in value]
        if missing:
            raise Unreadable(
                "missing-column",
                f"the record has no field {missing[0]!r}, which data.columns names",
                "correct data.columns",
            )
        taken = set(self.columns.values())
        kept = {key: item for key, item in value.items() if key not in taken}
        return kept | {ours: value[theirs] for ours, theirs in self.columns.items()}


def read_messages(value: Any, name: str, options: ShapeOptions) -> list[Message]:
    """Read a list of message objects.

    Raises:
        Unreadable: the value is no list, a role is unknown or missing, a content is no text.
    """
    if not isinstance(value, list):
        raise Unreadable(
            "not-a-list", f"{name} is {shown(value)}, not a list", "write a list of messages"
        )
    messages: list[Message] = []
    for number, item in enumerate(value, 1):
        if not isinstance(item, dict):
            raise Unreadable(
                "not-a-message",
                f"message {number} is {shown(item)}, not an object",
                'write {"role": ..., "content": ...}',
            )
        if len(item) == 2 and isinstance(text := item.get("content"), str):
            said_by = item.get("role")
            if isinstance(said_by, str) and (role := _WORDS.get(said_by)) is not None:
                messages.append(
                    Message(role=role, content=text)
                )  # as most are: nothing else to see
                continue
        found = _read_message(item, number, options)
        if item.get("reasoning_content") is not None:
            found = _with_reasoning(item, found, number)
        messages.extend(found)
    return messages


def _read_message(item: Mapping[str, Any], number: int, options: ShapeOptions) -> Iterator[Message]:
    raw_role = item.get("role", item.get("from"))
    role = _role(raw_role, number)
    if ROLE_NAMES.get(str(item.get("from", raw_role)), role) != role:
        text = f"message {number} has the role {raw_role!r} and is from {item['from']!r}"
        raise Unreadable("two-values", text, "keep one of them")
    train = _train_mark(item, number)
    if raw_role == "tool" and "parameters" in item and "observation" in item:
        yield from _tool_step(item, number, train, options)
        return
    if len(item) > 2 and (twice := said_twice(item)):  # more than a role and a text
        raise Unreadable("two-values", f"message {number} {twice}", "keep one of them")
    key = "value" if "value" in item and "content" not in item else "content"
    calls = calls_of(item)
    if calls or item.get("reasoning_content") or not isinstance(item.get(key), str):
        _refuse_foreign(item, key, role, number)
    if calls:
        yield from _openai_calls(item, key, calls, number, train, options)
        return
    if isinstance(item.get(key), list):
        yield from _parts(role, item[key], number, train, options)
        return
    content = read_text(item, key, options, f"message {number} ({role})")
    if raw_role in _CALL_ROLES:
        yield from _calls_from_text(content, number, train)
        return
    name = _metadata(item, role, number)
    call_id = _id(item, "tool_call_id")
    yield Message(role=role, content=content, name=name, train=train, call_id=call_id)


def _with_reasoning(
    item: Mapping[str, Any], messages: Iterator[Message], number: int
) -> Iterator[Message]:
    """The messages of one object; its thinking text goes to the first, be it words or a call."""
    reasoning = item.get("reasoning_content")
    if reasoning is not None and not isinstance(reasoning, str):
        raise Unreadable(
            "not-text",
            f"reasoning_content of message {number} is {shown(reasoning)}, not text",
            "write it as text, or remove the field",
        )
    for message in messages:
        yield replace(message, reasoning=reasoning) if reasoning else message
        reasoning = ""


def _refuse_foreign(item: Mapping[str, Any], key: str, role: Role, number: int) -> None:
    """Refuse calls and thinking on a message that is not the assistant's, and calls twice."""
    parts = item[key] if isinstance(item.get(key), list) else []
    kinds = {str(part.get("type")) for part in parts if isinstance(part, dict)}
    who = f"message {number} has the role {item.get('role', item.get('from'))!r}"
    if item.get("tool_calls") and item.get("function_call"):
        text = f"message {number} has both tool_calls and function_call"
        raise Unreadable("bad-call", text, "keep one of them")
    if role == "assistant":
        return
    if calls_of(item) or "tool_call" in kinds:
        raise Unreadable(
            "bad-call",
            f"{who} and holds a tool call, which only the assistant makes",
            "correct its role, or remove the call",
        )
    if item.get("reasoning_content") or "reasoning" in kinds:
        raise Unreadable(
            "bad-reasoning",
            f"{who} and holds thinking text, which only the assistant writes",
            "correct its role, or remove the thinking",
        )


def _role(raw_role: Any, number: int) -> Role:
    if not isinstance(raw_role, str):
        what = "has no role" if raw_role is None else f"has {shown(raw_role)} as its role"
        raise Unreadable("unknown-role", f"message {number} {what}", "name its role")
    role = ROLE_NAMES.get(raw_role)
    if role is None:
        near = difflib.get_close_matches(raw_role.lower(), list(ROLE_NAMES), n=1, cutoff=0.6)
        advice = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(ROLE_NAMES)}"
        raise Unreadable("unknown-role", f"message {number} has the role {raw_role!r}", advice)
    return role


def _train_mark(item: Mapping[str, Any], number: int) -> bool:
    """The per-message flag under any of its names; a weight of 0 means not trained."""
    for name in ("train", "loss", "loss_weight", "weight"):
        mark = item.get(name)
        if mark is None:
            continue
        if not isinstance(mark, bool | int | float) or mark not in (0, 1):
            raise Unreadable(
                "bad-train-mark",
                f"message {number} has {name} {mark!r}",
                "use true or false (weights other than 0 and 1 are not supported)",
            )
        return bool(mark)
    return True


def _metadata(item: Mapping[str, Any], role: Role, number: int) -> str:
    """The tool's name that ChatGLM3 and GLM-4 records carry on a call; elsewhere empty."""
    name = item.get("metadata")
    if name in (None, "") or role != "assistant":
        return ""
    if isinstance(name, str) and not name.strip():
        return ""
    if not isinstance(name, str) or len(name.splitlines()) != 1:
        what = repr(name[:40]) if isinstance(name, str) else shown(name)
        text = f"message {number} has {what} as metadata"
        raise Unreadable("bad-metadata", text, "use the tool's name")
    return name


def value_of(text: str, name: str) -> Any:
    """The value of JSON that stands as text in a record; None where it is no JSON.

    Raises:
        Unreadable: it is, and still no value to train on.
    """
    try:
        return read_json(text)
    except json.JSONDecodeError:
        return None
    except BadJson as error:
        raise Unreadable(error.rule, f"{name} {error.text}", error.advice) from error


def read_text(
    value: Mapping[str, Any], name: str, options: ShapeOptions, where: str = "the record"
) -> str:
    """The text under a field.

    Raises:
        Unreadable: the field is missing, null, or no text.
    """
    if name not in value:
        raise Unreadable("missing-content", f"{where} has no {name}", f"add the {name}")
    text = value[name]
    if not isinstance(text, str):
        advice = "write it as text"
        if isinstance(text, list):
            advice = "this trains text only"
            joins = where.startswith("message") and not options.flatten  # it joins no other lists
            if joins and text and all(part_of(part) for part in text):
                advice += ": set repair: [flatten] to join its text parts"
        raise Unreadable("not-text", f"{name} of {where} is {shown(text)}, not text", advice)
    return text


def _parts(
    role: Role, parts: list[Any], number: int, train: bool, options: ShapeOptions
) -> Iterator[Message]:
    """Content in parts: ``type``/``value`` parts are a format of their own; others by setting."""
    typed = all(isinstance(part, dict) and {"type", "value"} <= part.keys() for part in parts)
    if not parts or not (typed or options.flatten):
        read_text({"content": parts}, "content", options, f"message {number} ({role})")
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[str] = []
    targets = {"text": texts, "reasoning": reasoning, "tool_call": calls}
    for part in parts:
        found_part = part_of(part)
        if found_part is None:
            kind = part.get("type") if isinstance(part, dict) else shown(part)
            raise Unreadable(
                "not-text",
                f"message {number} ({role}) holds a part of type {kind!r}",
                "only text parts can be trained on",
            )
        kind, text = found_part
        targets[kind].append(text)
    found = [Message(role=role, content="".join(texts), train=train)] if texts or not calls else []
    for call in calls:
        found.extend(_calls_from_text(call, number, train))
    yield from _with_reasoning({"reasoning_content": "".join(reasoning)}, iter(found), number)


def _openai_calls(
    item: Mapping[str, Any],
    key: str,
    calls: Sequence[Any],
    number: int,
    train: bool,
    options: ShapeOptions,
) -> Iterator[Message]:
    if isinstance(item.get(key), list):
        yield from _parts("assistant", item[key], number, train, options)
    elif item.get(key) not in (None, ""):
        text = read_text(item, key, options, f"message {number} (assistant)")
        yield Message(role="assistant", content=text, train=train)
    for call in calls:
        yield _call(call, number, train)


def _calls_from_text(text: str, number: int, train: bool) -> Iterator[Message]:
    """Calls written as JSON text: one object, or a list of them for parallel calls."""
    value = value_of(text, f"the call of message {number}")
    for function in value if isinstance(value, list) else [value]:
        yield _call(function, number, train)


def _call(value: Any, number: int, train: bool) -> Message:
    try:
        call = read_call(value)
    except BadCall as error:
        raise Unreadable(
            "bad-call", f"the call of message {number} {error}", error.advice
        ) from error
    return Message(
        role="assistant",
        content="",
        name=call.name,
        arguments=call.arguments,
        train=train,
        call_id=_id(value, "id"),
    )


def _id(item: Mapping[str, Any], name: str) -> str:
    """The id of a call under a field; empty where there is none that is text."""
    value = item.get(name)
    return value if isinstance(value, str) else ""


def _tool_step(
    item: Mapping[str, Any], number: int, train: bool, options: ShapeOptions
) -> Iterator[Message]:
    """ChatGLM3's tool entry: call and result in one object."""
    yield _call(item, number, train)
    result = item["observation"]
    if not isinstance(result, str):
        try:
            result = json.dumps(result, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise Unreadable(
                "not-text",
                f"the observation of message {number} holds what JSON cannot write ({error})",
                "write it as text",
            ) from error
    yield Message(role="observation", content=result)
