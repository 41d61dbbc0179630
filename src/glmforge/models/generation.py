"""One answer from one prompt: the sampler shared by training samples, chat, export and comparison.

Stops at the family's stop ids, and says why it stopped. `RefuseNaN` is for whoever shows answers
to people: of logits that are no numbers generate() makes an answer of the first token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from glmforge.errors import ModelError
from glmforge.models.families import family_of, family_of_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A generated answer: its ids without the stop id, its text, and "stop" or "length"."""

    token_ids: tuple[int, ...]
    text: str
    stop_reason: str


class RefuseNaN(LogitsProcessor):
    """Ends generation with a ModelError at the first logits that are NaN."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores as they are; of input_ids [B, T] the last is what they follow."""
        if scores.isnan().any():
            raise ModelError(
                f"the model's logits are NaN after {input_ids.shape[1]:,} tokens: its weights hold "
                "NaN or infinity, or this precision overflows; take an earlier checkpoint, or bf16 "
                "or fp32 instead of fp16"
            )
        return scores


def stop_ids(model: Any, tokenizer: Any) -> list[int]:
    """Return the ids at which an answer ends: those of the family, and the model's own."""
    ids: dict[int, None] = {}
    names = family_of_tokenizer(tokenizer).stop_tokens or family_of(model.config).stop_tokens
    for name in names:
        index = tokenizer.convert_tokens_to_ids(name)
        # A tokenizer of transformers gives the unknown token's id, or None, for a name it lacks.
        if index is not None and tokenizer.convert_ids_to_tokens(index) == name:
            ids.setdefault(int(index))
    configured = getattr(model.generation_config, "eos_token_id", None)
    for value in configured if isinstance(configured, list) else [configured]:
        if value is not None:
            ids.setdefault(int(value))
    if tokenizer.eos_token_id is not None:
        ids.setdefault(int(tokenizer.eos_token_id))
    return list(ids)


def write_stops(model: Any, tokenizer: Any) -> None:
    """Put the stop ids into the model's generation config, for programs that know no family."""
    model.generation_config.eos_token_id = stop_ids(model, tokenizer)
    if model.generation_config.pad_token_id is None:
        model.generation_config.pad_token_id = tokenizer.pad_token_id


@torch.no_grad()
def answer(
    model: Any,
    tokenizer: Any,
    prompt_ids: Sequence[int],
    *,
    max_new_tokens: int,
    synced_ranks: bool = False,
    streamer: Any = None,
    **sampling: Any,
) -> Answer:
    """Generate one answer, greedily unless `sampling` says otherwise.

    Args:
        model: any causal LM in evaluation mode (PEFT-wrapped or not).
        tokenizer: its tokenizer.
        prompt_ids: a generation prompt, ending where the model's own tokens begin.
        max_new_tokens: longest answer in tokens.
        synced_ranks: keep all ranks generating until the last one has finished (ZeRO-3).
        streamer: transformers' streamer, fed token by token.
        sampling: generate()'s options, such as do_sample, temperature, num_beams.
    """
    device = next(iter(model.parameters())).device
    input_ids = torch.tensor([list(prompt_ids)], dtype=torch.long, device=device)
    stops = stop_ids(model, tokenizer)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else stops[0]
    # Layers compiled for training stay so: each length of the cache would be compiled anew, and
    # past torch's limit the layers would fall back to eager for the rest of the run.
    with torch.compiler.set_stance("force_eager"):
        output = model.generate(
            input_ids=input_ids,
            attention_mask=torch.ones_like(input_ids),
            max_new_tokens=max_new_tokens,
            eos_token_id=stops,
            pad_token_id=pad,
            synced_gpus=synced_ranks,
            streamer=streamer,
            **{"do_sample": False, **sampling},
        )
    new_ids = output[0, input_ids.shape[1] :].tolist()
    ended = next((i for i, token in enumerate(new_ids) if token in stops), None)
    kept = new_ids if ended is None else new_ids[:ended]
    return Answer(
        token_ids=tuple(kept),
        text=tokenizer.decode(kept).strip(),
        stop_reason="length" if ended is None else "stop",
    )
