"""Which prompts a tuned model was trained on: exact match against its run's training data.

A prompt is seen when a training dialogue opens with the same messages up to a user message, system
messages and white space at the ends aside. Records that the run held out for validation do not
count, and what it trained on is read from the files its config names.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from glmforge.compare.prompts import Prompt
from glmforge.compare.run_data import split_of
from glmforge.config import RunConfig
from glmforge.config.paths import sources_of
from glmforge.data import Conversation, Message
from glmforge.data.sources import ReadOptions, iterate
from glmforge.errors import DataError

Key = bytes


def mark_seen(
    prompts: Sequence[Prompt],
    runs: Sequence[RunConfig],
    tokenizer: Any,
    say: Callable[[str], None],
) -> list[Prompt]:
    """Say of each prompt of the user whether it stands in the training data of one of `runs`.

    Args:
        prompts: all prompts; those of the general set are checked as well.
        runs: of the tuned models; without any, nothing is known and nothing changes.
        tokenizer: of the model, to find what a run held out.
        say: is told where training data cannot be read any more.
    """
    wanted = {key_of(prompt.messages) for prompt in prompts}
    seen: set[Key] = set()
    known = False
    for run in runs:
        try:
            seen.update(wanted.intersection(training_keys(run, tokenizer)))
        except DataError as error:
            say(f"seen or held out is not marked: the training data cannot be read ({error})")
            return list(prompts)
        known = True
    if not known:
        return list(prompts)
    return [dataclasses.replace(prompt, seen=key_of(prompt.messages) in seen) for prompt in prompts]


def training_keys(run: RunConfig, tokenizer: Any) -> Iterator[Key]:
    """Yield the key of every question, with its history, in the training data of a run.

    Raises:
        DataError: a file is not there any more.
    """
    held_out = _held_out(run, tokenizer)
    options = ReadOptions(columns=run.data.columns, repairs=tuple(run.data.repair))
    for number, (path, _) in enumerate(sources_of(run.data.train)):
        for item in iterate(path, options):
            if isinstance(item, Conversation) and (number, item.source) not in held_out:
                yield from _keys(item.messages)


def key_of(messages: Iterable[Message]) -> Key:
    """Return the key of a question with its history."""
    said = [[m.role, m.text.strip()] for m in messages if m.role != "system"]
    return hashlib.sha256(json.dumps(said).encode()).digest()


def _keys(messages: Sequence[Message]) -> Iterator[Key]:
    for end, message in enumerate(messages, 1):
        if message.role == "user":
            yield key_of(messages[:end])


def _held_out(run: RunConfig, tokenizer: Any) -> set[tuple[int, str]]:
    """(source number, file:line) of every record that a run held out of its training data."""
    split = split_of(run, tokenizer)
    if split is None:
        return set()
    return {
        (int(number), split.validation[row].source) for row, number in enumerate(split.set_numbers)
    }
