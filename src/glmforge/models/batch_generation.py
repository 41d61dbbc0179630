"""Answers to several prompts at once: the batch form of the sampler in ``generation``.

Prompts are padded on the left. What a row gets does not depend on its padding: attention, positions
and the repetition penalty all leave padding out. Every setting of generate() is stated here, so
that a model's own generation_config.json (other temperatures, other stop ids) changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from glmforge.models.generation import Answer, RefuseNaN


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next token is chosen: greedily, by beams, or drawn with a seed.

    ``temperature`` and ``top_p`` count only where tokens are drawn (``seed`` is not None).
    ``repetition_penalty`` divides the positive logits (multiplies the negative ones) of tokens that
    the prompt or the answer holds already, 1.0 = off (Keskar et al. 2019).
    """

    seed: int | None = None
    num_beams: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    repetition_penalty: float = 1.0


class _RepetitionPenalty(LogitsProcessor):
    """Transformers' penalty counts padding as said: with a pad that is a stop id, short prompts
    of a batch would find it harder to end than alone.
    """

    def __init__(self, penalty: float, mask_BT: Tensor) -> None:
        self._penalty = penalty
        self._mask_BT = mask_BT

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        width = self._mask_BT.shape[1]
        mask = self._mask_BT.repeat_interleave(len(input_ids) // len(self._mask_BT), dim=0)
        said = input_ids.clone()
        # In the place of padding stands the last token of the prompt, which is said anyway.
        said[:, :width] = torch.where(mask.bool(), said[:, :width], said[:, width - 1 : width])
        found = scores.gather(1, said)
        changed = torch.where(found < 0, found * self._penalty, found / self._penalty)
        return scores.scatter(1, said, changed)


@torch.no_grad()
def answer_batch(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    *,
    stops: Sequence[int],
    max_new_tokens: int,
    sampling: Sampling,
) -> list[Answer]:
    """Answer a batch of prompts.

    Args:
        model: any causal LM in evaluation mode (PEFT-wrapped or not).
        tokenizer: its tokenizer.
        prompts: generation prompts, each ending where the model's own tokens begin.
        stops: ids that end an answer.
        max_new_tokens: longest answer in tokens.
        sampling: how tokens are chosen. A seed is set for the batch as a whole: the same batch
            with the same seed gives the same answers, another batch draws other numbers.

    Raises:
        ModelError: logits are NaN.
    """
    device = next(iter(model.parameters())).device
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else stops[0]
    width = max(len(prompt) for prompt in prompts)
    rows = [[pad] * (width - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    input_ids = torch.tensor(rows, dtype=torch.long, device=device)
    mask_BT = torch.tensor(mask, dtype=torch.long, device=device)
    drawn = sampling.seed is not None
    processors = LogitsProcessorList([RefuseNaN()])
    if sampling.repetition_penalty != 1.0:
        processors.append(_RepetitionPenalty(sampling.repetition_penalty, mask_BT))
    if sampling.seed is not None:
        torch.manual_seed(sampling.seed)
    with torch.compiler.set_stance("force_eager"):
        output = model.generate(
            input_ids=input_ids,
            attention_mask=mask_BT,
            logits_processor=processors,
            max_new_tokens=max_new_tokens,
            eos_token_id=list(stops),
            pad_token_id=pad,
            do_sample=drawn,
            num_beams=sampling.num_beams,
            temperature=sampling.temperature if drawn else 1.0,
            top_p=sampling.top_p if drawn else 1.0,
            top_k=0 if drawn else 50,  # 50 is transformers' own default, without effect here
            **_NEUTRAL,
        )
    return [_answer(row, tokenizer, stops) for row in output[:, width:].tolist()]


# What a generation_config.json may carry besides, at the values that do nothing.
_NEUTRAL = {
    "repetition_penalty": 1.0,
    "length_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "min_new_tokens": 0,
    "num_return_sequences": 1,
}


def _answer(new_ids: list[int], tokenizer: Any, stops: Sequence[int]) -> Answer:
    ended = next((place for place, token in enumerate(new_ids) if token in stops), None)
    kept = new_ids if ended is None else new_ids[:ended]
    return Answer(
        token_ids=tuple(kept),
        text=tokenizer.decode(kept).strip(),
        stop_reason="length" if ended is None else "stop",
    )
