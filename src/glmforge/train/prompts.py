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
from glmforge.data.examples import faults_of
from glmforge.data.sources import ReadOptions, iterate
from glmforge.data.splitting import Split

_LOOKED_AT = 1000  # held-out dialogues among which those with a question are looked for


def read_options(data: DataSettings) -> ReadOptions:
    """How the files of a config are read."""
    return ReadOptions(columns=data.columns, repairs=tuple(data.repair))


def run_prompts(
    config: RunConfig, tokenizer: Any, split: Split | None
) -> list[tuple[str, list[int]]]:
    """Return (last message, generation prompt ids) of every prompt.

    Args:
        config: of the run.
        tokenizer: of its model.
        split: what was held out of the training data, where it was.

    Raises:
        DataError: a prompt cannot be expressed in the model's format.
    """
    generation = config.generation
    if generation.prompts is not None:
        asked = [
            Conversation(messages=(Message(role="user", content=text),))
            for text in generation.prompts
        ]
    elif split is not None:
        asked = _held_out(config, split)
    else:
        paths = [path for path, _ in sources_of(config.data.validation)]
        found = _questions(paths, config.data) if paths else iter(())
        asked = list(islice(found, generation.num_prompts))
    return [
        (
            conversation.messages[-1].content,
            generation_prompt(conversation.messages, tokenizer, conversation.tools or None),
        )
        for conversation in asked
    ]


def _questions(paths: str | Sequence[str], data: DataSettings) -> Iterator[Conversation]:
    """The faultless dialogues of some files up to their first user message."""
    for item in iterate(paths, read_options(data)):
        if not isinstance(item, Conversation) or faults_of(item):
            continue
        roles = [message.role for message in item.messages]
        if "user" in roles:
            yield item.with_messages(item.messages[: roles.index("user") + 1])


def _held_out(config: RunConfig, split: Split) -> list[Conversation]:
    """The first questions of the dialogues that were held out, in the order of the sources."""
    first = np.flatnonzero(split.validation.facts.starts)[:_LOOKED_AT]
    wanted = [(split.set_numbers[row], split.validation[int(row)].source) for row in first]
    found: list[Conversation] = []
    for number, (path, _) in enumerate(sources_of(config.data.train)):
        names = {name for where, name in wanted if where == number}
        for conversation in _questions(path, config.data) if names else ():
            if len(found) == config.generation.num_prompts:
                return found
            if conversation.source in names:
                found.append(conversation)
                names.discard(conversation.source)
                if not names:
                    break
    return found
