"""What a model has positions for, looked at before weights are read.

Beyond them a model was never trained, or cannot run at all, and an answer of thousands of tokens
takes minutes to be worth nothing. `glmforge serve` answers such a request with 400; comparing and
evaluating refuse it in the same words.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from glmforge.compare.prompts import Prompt
from glmforge.errors import UsageError
from glmforge.models import load_config

_SHOWN = 3


def positions_of(directories: Iterable[Path]) -> int | None:
    """Return the fewest positions (tokens) of some models; None where none of them says any."""
    found = [
        positions
        for directory in dict.fromkeys(directories)
        if (positions := getattr(load_config(directory), "max_position_embeddings", None))
    ]
    return min(found, default=None)


def refuse_too_long(
    positions: int | None,
    prompts: Sequence[Prompt],
    prompt_ids: Sequence[Sequence[int]],
    max_new_tokens: int,
) -> None:
    """Refuse questions that leave the model no room for the longest answer.

    Raises:
        UsageError: says how many, the first of them, and what would fit.
    """
    if positions is None:
        return
    sizes = [(len(row), prompt) for prompt, row in zip(prompts, prompt_ids, strict=True)]
    long = [(size, prompt.id) for size, prompt in sizes if size + max_new_tokens > positions]
    if not long:
        return
    room = positions - max(size for size, _ in sizes)
    fits = f"give {room} or less" if room > 0 else "it is alone too long: shorten it"
    names = ", ".join(name for _, name in long[:_SHOWN]) + (", …" if len(long) > _SHOWN else "")
    raise UsageError(
        f"--max-new-tokens {max_new_tokens}: with it {len(long)} of {len(prompts)} prompts "
        f"({names}) are longer than the model's {positions} positions; the longest prompt has "
        f"{positions - room} tokens: {fits}"
    )
