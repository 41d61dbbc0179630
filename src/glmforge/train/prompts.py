"""The prompts that a run answers on the way, at each evaluation.

They are those of the config, or the first questions of the validation dialogues with their system
messages and tools. Prepared sets hold ids only, so the dialogues are read from their files again;
where validation is held out of the training data, they are found by their ``file:line``.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from glmforge.config import RunConfig
from glmforge.config.paths import sources_of
from glmforge.config.schema import DataSettings
from glmforge.data import Conversation, generation_prompt
from glmforge.data.conversation import Message
from glmforge.data.rules import faults_of
from glmforge.data.sources import ReadOptions, iterate
from glmforge.data.splitting import Split
from glmforge.train.samples import SamplePrompt

_LOOKED_AT = 1000  # held-out dialogues among which those with a question are looked for


def read_options(data: DataSettings) -> ReadOptions:
    """How the files of a config are read; they are named as in its prepared sets."""
    beside = [path for part in (data.train, data.validation) for path, _ in sources_of(part)]
    return ReadOptions(columns=data.columns, repairs=tuple(data.repair), beside=tuple(beside))


def run_prompts(config: RunConfig, tokenizer: Any, split: Split | None) -> list[SamplePrompt]:
    """Return every prompt, with the answer that is right where it is known.

    Args:
        config: of the run.
        tokenizer: of its model.
        split: what was held out of the training data, where it was.

    Raises:
        DataError: a prompt cannot be expressed in the model's format.
    """
    generation = config.generation
    if generation.prompts is not None:
        references: Sequence[str | None] = generation.references or [None] * len(generation.prompts)
        return [
            _prompt(Conversation(messages=(Message(role="user", content=text),)), known, tokenizer)
            for text, known in zip(generation.prompts, references, strict=True)
        ]
    if split is not None:
        dialogues = _held_out(config, split)
    else:
        paths = [path for path, _ in sources_of(config.data.validation)]
        found = _dialogues(paths, config.data) if paths else iter(())
        dialogues = list(islice(found, generation.num_prompts))
    prompts = []
    for dialogue in dialogues:
        end = [message.role for message in dialogue.messages].index("user") + 1
        asked = dialogue.with_messages(dialogue.messages[:end])
        prompts.append(_prompt(asked, _answer(dialogue.messages[end:]), tokenizer))
    return prompts


def _prompt(asked: Conversation, reference: str | None, tokenizer: Any) -> SamplePrompt:
    return SamplePrompt(
        text=asked.messages[-1].content,
        input_ids=generation_prompt(asked.messages, tokenizer, asked.tools or None),
        reference=reference,
    )


def _answer(rest: Sequence[Message]) -> str | None:
    """The answer to a first question, where it is text: a tool call is not compared as text."""
    if not rest or rest[0].role != "assistant" or rest[0].is_call:
        return None
    return rest[0].content


def _dialogues(paths: str | Sequence[str], data: DataSettings) -> Iterator[Conversation]:
    """The faultless dialogues of some files that have a question."""
    for item in iterate(paths, read_options(data)):
        if not isinstance(item, Conversation) or faults_of(item):
            continue
        if any(message.role == "user" for message in item.messages):
            yield item


def _held_out(config: RunConfig, split: Split) -> list[Conversation]:
    """The first dialogues with a question that were held out, in the order of the sources."""
    first = np.flatnonzero(split.validation.facts.starts)[:_LOOKED_AT]
    wanted = [(split.set_numbers[row], split.validation[int(row)].source) for row in first]
    found: list[Conversation] = []
    for number, (path, _) in enumerate(sources_of(config.data.train)):
        names = {name for where, name in wanted if where == number}
        for conversation in _dialogues(path, config.data) if names else ():
            if len(found) == config.generation.num_prompts:
                return found
            if conversation.source in names:
                found.append(conversation)
                names.discard(conversation.source)
                if not names:
                    break
    return found
