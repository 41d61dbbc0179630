"""Every rule about one record, all of them checked before anything is tokenised.

``check`` returns every ``Problem`` of a conversation: errors (the record cannot be trained as it
stands) and warnings (it can, but look at it). ``repair`` applies only the repairs that the user
named. Rules about how to *read* a record (a missing field, a value that is no text) live in
``formats`` and ``reading``; rules about many records at once live in ``quality``.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from glmforge.data.calls import call_findings
from glmforge.data.conversation import Conversation, Finding, Level, Message, Problem
from glmforge.data.results import result_findings

REPAIRS: dict[str, str] = {
    "merge": "join neighbouring messages of one role with a newline",
    "trim": "strip white space at both ends of every message",
    "flatten": "join the text parts of a content list (read by the formats)",
    "gbk": "read a line that is not UTF-8 as GB18030 (read by the files)",
}

# Spellings of control tokens in the four generations; people type or paste them.
CONTROL_SPELLINGS = re.compile(
    r"\[g?s?MASK\]|<\|(?:system|user|assistant|observation|endoftext|begin_of_\w+|end_of_\w+)\|>"
    r"|</?s>|<[se]op>|\b[se]op\b|<pad>|<unk>"
)
# ChatGLM-6B's only pieces for a newline, a tab and 2 to 80 blanks; it cannot tell them apart.
BLANK_SPELLINGS = re.compile(r"<n>|<\|tab\|>|<\|blank_(?:[2-9]|[1-7]\d|80)\|>")
# {{name}} of identity sets, <NAME>, <AUTHOR> of the older ones, <image> of those with pictures.
PLACEHOLDERS = re.compile(r"\{\{\s*\w+\s*\}\}|<(?!UNK>)[A-Z][A-Z_]{2,}>|<(?:image|video|audio)>")
# What preparing a set for a smaller vocabulary left in place of a word (ADGEN has many).
LOST_WORDS = re.compile(r"<UNK>|\[UNK\]")
SURROGATES = re.compile("[\ud800-\udfff]")
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# What no reader sees: white space, and characters without width.
_INVISIBLE = re.compile(r"[\s\u00ad\u200b-\u200f\u2060\ufeff]*")
# One look that spares most texts the five: every match of those holds one of these.
_SUSPICIOUS = re.compile("[<\\[{\ud800-\udfff\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffd]|[se]op")


def check(conversation: Conversation) -> list[Problem]:
    """Every problem of one conversation, in reading order.

    Args:
        conversation: as ``formats`` made it.

    Returns:
        Problems with the record's ``file:line``; empty when there is nothing to say.
    """
    findings: list[Finding] = []
    if conversation.is_text:
        findings.extend(_text_findings(conversation.messages[0], "the text"))
    else:
        findings.extend(_order_findings(conversation.messages))
        findings.extend(call_findings(conversation.messages, conversation.tools))
        findings.extend(result_findings(conversation.messages))
        for number, tool in enumerate(conversation.tools, 1):
            findings.extend(_surrogate_findings(_texts_in(tool), f"tool {number}"))
        for number, message in enumerate(conversation.messages, 1):
            findings.extend(_text_findings(message, f"message {number} ({message.role})"))
    return [
        Problem(source=conversation.source, rule=rule, text=text, advice=advice, level=level)
        for rule, text, advice, level in findings
    ]


def faults_of(conversation: Conversation) -> list[Problem]:
    """The problems for which a record cannot be trained on."""
    return [problem for problem in check(conversation) if problem.level == "error"]


def _order_findings(messages: Sequence[Message]) -> Iterator[Finding]:
    if not messages:
        yield "empty-record", "it has no messages", "remove the record", "error"
        return
    previous = None
    for number, message in enumerate(messages, 1):
        finding = _order_finding(previous, message, number)
        if finding is not None:
            yield finding
        if finding is None or finding[0] != "system-in-the-middle":  # named once, then passed over
            previous = message
    if not any(message.role == "assistant" for message in messages):
        yield (
            "no-assistant",
            "it has no assistant message, so nothing to train on",
            "add the answer or remove the record",
            "error",
        )
    elif not any(message.role == "assistant" and message.train for message in messages):
        yield (
            "nothing-trained",
            "every assistant message is marked as not trained",
            "remove the record or one of the marks",
            "error",
        )


def _order_finding(before: Message | None, message: Message, number: int) -> Finding | None:
    previous, role = before.role if before else "", message.role
    if role == "text":
        return ("role-order", f"message {number} is plain text inside a dialogue", _SPLIT, "error")
    if role == "system" and previous == "system":
        return ("role-order", f"messages {number - 1} and {number} are both system", _MERGE,
                "error")  # fmt: skip
    if role == "system" and previous:
        text = f"message {number} is a system message in the middle"
        return ("system-in-the-middle", text, "move it to the front or remove it", "error")
    if role == "observation" and previous not in ("assistant", "observation"):
        text = f"message {number} is an observation without a call before it"
        return ("observation-without-call", text, "put the assistant's call before it", "error")
    if role == "assistant" and previous in ("", "system"):
        text = f"message {number} is an assistant message with no user message before it"
        return ("role-order", text, "put the user's message first or remove this one", "error")
    if role == previous == "assistant" and before and not (before.is_call or message.is_call):
        text = f"messages {number - 1} and {number} are both assistant"
        return "role-order", text, _MERGE if before.train == message.train else _ONE_MARK, "error"
    if role == "user" and previous == "user":
        return ("role-order", f"messages {number - 1} and {number} are both user", _MERGE, "error")
    if role == "user" and previous == "observation":
        text = f"message {number} is a user message where the tool's result awaits an answer"
        return ("role-order", text, "add the assistant's answer before it", "error")
    return None


_MERGE = "set repair: [merge] to join them, or fix the record"
_ONE_MARK = (
    "give them one mark (one is trained, one is not) and set repair: [merge], or fix the record"
)
_SPLIT = "give text its own record"


def _text_findings(message: Message, where: str) -> Iterator[Finding]:
    text = message.text
    if message.name:
        yield from _surrogate_findings(message.name, f"the name in {where}")
    if message.reasoning and _SUSPICIOUS.search(message.reasoning):
        yield from _character_findings(message.reasoning, f"the reasoning of {where}")
    if not message.is_call and (not text or _INVISIBLE.fullmatch(text)):
        yield from _empty_finding(message, where)
        return
    if _SUSPICIOUS.search(text):
        yield from _character_findings(text, where)
    if message.arguments is None and text != text.strip("\r\n"):
        yield (
            "outer-newline",
            f"{where} begins or ends with a newline",
            "set repair: [trim] to strip it",
            "warning",
        )


def _texts_in(value: Any) -> str:
    """Every text in a JSON value of any depth, keys too."""
    texts: list[str] = []
    rest = [value]
    while rest:
        item = rest.pop()
        if isinstance(item, Mapping):
            rest += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple):
            rest += item
        elif isinstance(item, str):
            texts.append(item)
    return "\n".join(texts)


def _surrogate_findings(text: str, where: str) -> Iterator[Finding]:
    surrogate = SURROGATES.search(text)
    if surrogate:
        code = f"U+{ord(surrogate.group()):04X}"
        yield (
            "lone-surrogate",
            f"{where} holds half of a surrogate pair ({code}), which UTF-8 cannot write",
            "repair the text at its source",
            "error",
        )


def _character_findings(text: str, where: str) -> Iterator[Finding]:
    if SURROGATES.search(text):
        yield from _surrogate_findings(text, where)
        return
    if control := sorted({f"U+{ord(match):04X}" for match in CONTROL_CHARACTERS.findall(text)}):
        yield (
            "control-character",
            f"{where} holds control characters: {', '.join(control)}",
            "remove them unless the model must write them",
            "warning",
        )
    if spellings := sorted(set(CONTROL_SPELLINGS.findall(text))):
        yield (
            "control-spelling",
            f"{where} spells control tokens: {' '.join(spellings)}",
            "it is encoded as plain text; check that this is meant",
            "warning",
        )
    if blanks := sorted(set(BLANK_SPELLINGS.findall(text))):
        yield (
            "blank-spelling",
            f"{where} spells white space: {' '.join(blanks)}",
            "ChatGLM-6B reads it as that white space, the others as plain text; write the white "
            "space itself, or check that this is meant",
            "warning",
        )
    if placeholders := sorted(set(PLACEHOLDERS.findall(text))):
        yield (
            "placeholder",
            f"{where} holds placeholders: {' '.join(placeholders)}",
            "fill them in before training",
            "warning",
        )
    if LOST_WORDS.search(text):
        yield (
            "lost-word",
            f"{where} holds <UNK> where a word was lost",
            "the model will learn to write it: restore the word or remove the record",
            "warning",
        )
    if "�" in text:
        yield (
            "replacement-character",
            f"{where} holds U+FFFD, the mark of an earlier decoding fault",
            "read the original file in its own encoding",
            "warning",
        )


def _empty_finding(message: Message, where: str) -> Iterator[Finding]:
    if message.role == "system":
        return
    level: Level = "error" if message.role in ("assistant", "text") else "warning"
    advice = (
        "only a stop token would be learned: remove the record or write the answer"
        if level == "error"
        else "check that an empty message is meant"
    )
    state = "only white space" if message.text else "empty"
    yield "empty-content", f"{where} is {state}", advice, level


def repair(conversation: Conversation, repairs: Iterable[str]) -> tuple[Conversation, list[str]]:
    """Apply the named repairs; return the conversation and the names of those that changed it."""
    applied = []
    for name in repairs:
        step = _STEPS.get(name)
        messages = step(conversation.messages) if step else conversation.messages
        if messages != conversation.messages:
            conversation = conversation.with_messages(messages)
            applied.append(name)
    return conversation, applied


def _merge(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    merged: list[Message] = []
    for message in messages:
        last = merged[-1] if merged else None
        if (
            last is not None
            and last.role == message.role
            and message.role in ("system", "user", "assistant")
            and not last.is_call
            and not message.is_call
            and (message.role != "assistant" or last.train == message.train)
        ):
            merged[-1] = Message(
                role=last.role,
                content=f"{last.content}\n{message.content}",
                reasoning="\n".join(filter(None, (last.reasoning, message.reasoning))),
                train=last.train,
            )
        else:
            merged.append(message)
    return tuple(merged)


def _trim(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    return tuple(
        replace(message, content=message.content.strip(), reasoning=message.reasoning.strip())
        for message in messages
    )


_STEPS: dict[str, Callable[[tuple[Message, ...]], tuple[Message, ...]]] = {
    "merge": _merge,
    "trim": _trim,
}
