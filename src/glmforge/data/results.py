"""Calls and their results: in one order, and none without the other.

A call ends with the token that opens its result, so one that a user's message or an answer follows
would be trained to end wrongly. Where every call and result carries an id (OpenAI's
``tool_call_id``), the ids say which belong together; else they are counted.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from glmforge.data.conversation import Finding, Message


def in_call_order(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Put results in the order of their calls where ids say so; those moved are marked."""
    if not any(message.call_id for message in messages):
        return tuple(messages)
    ordered = list(messages)
    for calls, results in _exchanges(messages):
        found = {messages[index].call_id: messages[index] for index in results}
        wanted = [found[i] for i in (messages[c].call_id for c in calls) if i in found]
        if not _all_have_ids(messages, calls, results) or len(wanted) != len(results):
            continue
        for index, message in zip(results, wanted):
            if message is not messages[index]:
                ordered[index] = replace(message, moved=True)
    return tuple(ordered)


def result_findings(messages: Sequence[Message]) -> Iterator[Finding]:
    """Calls without a result inside a dialogue, and results that were put in order."""
    if not any(message.is_call for message in messages):
        return
    moved = [str(number) for number, message in enumerate(messages, 1) if message.moved]
    if moved:
        yield (
            "results-out-of-order",
            f"the results in messages {', '.join(moved)} stood in another order than their calls: "
            "they were put in that, by tool_call_id",
            "nothing to do if the ids are right",
            "warning",
        )
    for calls, results in _exchanges(messages):
        last = (results or calls)[-1]
        if last + 1 == len(messages):
            continue  # the dialogue ends before the result
        for index in _unanswered(messages, calls, results):
            if not messages[index].train:
                continue
            yield (
                "call-without-result",
                f"message {index + 1} (assistant) calls {messages[index].name!r}, and no result of "
                f"it follows before message {last + 2} ({messages[last + 1].role})",
                'add the result after the call, remove the call, or mark it "train": false: a call '
                "must end with the token that opens its result",
                "error",
            )


def _exchanges(messages: Sequence[Message]) -> Iterator[tuple[list[int], list[int]]]:
    """Indices of neighbouring calls and of the results right after them."""
    at = 0
    while at < len(messages):
        start = at
        while at < len(messages) and messages[at].is_call:
            at += 1
        middle = at
        while at < len(messages) and messages[at].role == "observation":
            at += 1
        if middle > start:
            yield list(range(start, middle)), list(range(middle, at))
        at = max(at, start + 1)


def _all_have_ids(
    messages: Sequence[Message], calls: Sequence[int], results: Sequence[int]
) -> bool:
    """Whether calls have ids of their own each, and so have results."""
    for indices in (calls, results):
        ids = {messages[index].call_id for index in indices}
        if "" in ids or len(ids) != len(indices):
            return False
    return True


def _unanswered(
    messages: Sequence[Message], calls: Sequence[int], results: Sequence[int]
) -> Sequence[int]:
    """The calls without a result: by ids, or as many of the last as results are too few."""
    if _all_have_ids(messages, calls, results):
        answered = {messages[index].call_id for index in results}
        return [index for index in calls if messages[index].call_id not in answered]
    if len(results) == 1 and _length(messages[results[0]].content) == len(calls):
        return []  # one list of all results
    return calls[len(results) :]


def _length(text: str) -> int | None:
    """How many values a JSON list holds; None of another text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return len(value) if isinstance(value, list) else None
