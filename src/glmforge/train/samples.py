"""Answers to a few fixed prompts during training, so that people can read what is learned.

Called by ``session`` between steps, on all ranks together. Owns the sharding of prompts over ranks
and what ZeRO-3 needs of it; the sampler itself is ``models.generation``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from glmforge.distributed.collectives import Ranks
from glmforge.models.generation import answer


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePrompt:
    """A prompt that is answered at each evaluation."""

    text: str
    """The last message, for people."""
    input_ids: list[int]
    """The whole generation prompt."""
    reference: str | None = None
    """The answer that is right; None where nothing is known."""


def generate_samples(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[SamplePrompt],
    ranks: Ranks,
    *,
    max_new_tokens: int,
    zero_stage: int,
) -> list[dict[str, Any]]:
    """Answer `prompts` greedily, sharded over ranks; return all rows in order, on every rank.

    Under ZeRO-3 each forward gathers weights on all ranks, so every rank must do the same number
    of forwards: short shards are filled with a repeated prompt whose answer is thrown away, and
    generation goes on until the last rank has finished.
    """
    model.eval()
    together = zero_stage == 3 and ranks.world_size > 1
    rounds = -(-len(prompts) // ranks.world_size)
    mine = []
    for turn in range(rounds):
        number = turn * ranks.world_size + ranks.rank
        if number >= len(prompts) and not together:
            continue
        prompt = prompts[min(number, len(prompts) - 1)]
        result = answer(
            model,
            tokenizer,
            prompt.input_ids,
            max_new_tokens=max_new_tokens,
            synced_ranks=together,
        )
        if number < len(prompts):
            row = {
                "prompt": prompt.text,
                "answer": result.text,
                "stop_reason": result.stop_reason,
                "new_tokens": len(result.token_ids),
            }
            known = {} if prompt.reference is None else {"reference": prompt.reference}
            mine.append((number, row | known))
    shards = ranks.gather_objects(mine)
    rows = {number: row for shard in shards for number, row in shard}
    return [rows[number] for number in sorted(rows)]
