"""ChatGLM-6B's positions and its prefix-LM mask, from the ids alone.

Owns the rule: a row is ``context … [gMASK] <sop> answer``. Tokens before ``<sop>`` see each other
and are seen by all, the rest is causal. In the 2-D form a token has two positions: its place in
the context (from ``<sop>`` on, the place of the mask token), and its place in the answer (0 in
the context, 1 at ``<sop>``). Padding on the left is counted out.

Shapes: B batch, T tokens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from glmforge.errors import ModelError
from glmforge.models.chatglm.configuration import ChatGLM6BConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixRows:
    """Where things are in each row, int64 ``[B]``; lengths and places count padding in.

    ``context`` is the place of ``<sop>``, ``mask_place`` that of the mask token, ``padding`` the
    number of pads on the left. ``whole`` says whether the mask token is [gMASK].
    """

    context: Tensor
    mask_place: Tensor
    padding: Tensor
    whole: Tensor


def find_prefix(
    input_ids_BT: Tensor, config: ChatGLM6BConfig, attention_mask_BT: Tensor | None = None
) -> PrefixRows:
    """Find the context of every row.

    Raises:
        ModelError: a row has tokens but no ``<sop>``, or neither [gMASK] nor [MASK].
    """
    sop = input_ids_BT == config.bos_token_id
    gmask = input_ids_BT == config.gmask_token_id
    mask = input_ids_BT == config.mask_token_id
    whole = gmask.any(-1)
    filled = (input_ids_BT != config.pad_token_id).any(-1)
    wrong = filled & ~(sop.any(-1) & (whole | mask.any(-1)))
    if bool(wrong.any()):
        rows = ", ".join(str(row) for row in wrong.nonzero().flatten().tolist())
        raise ModelError(
            f"rows {rows} of the batch lack <sop> (id {config.bos_token_id}) or the mask token "
            f"before it ([gMASK], id {config.gmask_token_id}): a ChatGLM-6B prompt ends with "
            "both; use its tokenizer with special tokens, or its chat template"
        )
    places = torch.where(whole[:, None], gmask, mask).int().argmax(-1)
    padding = torch.zeros_like(places)
    if attention_mask_BT is not None:
        kept = attention_mask_BT[:, : input_ids_BT.shape[1]] != 0
        padding = torch.where(kept.any(-1), kept.int().argmax(-1), padding)
    return PrefixRows(context=sop.int().argmax(-1), mask_place=places, padding=padding, whole=whole)


def prefix_positions(prefix: PrefixRows, num_tokens: int, config: ChatGLM6BConfig) -> Tensor:
    """Return int64 positions, ``[B, 2, T]`` in the 2-D form, ``[B, T]`` in the 1-D form."""
    index_1T = torch.arange(num_tokens, device=prefix.context.device)[None]
    padding, context = prefix.padding[:, None], prefix.context[:, None]
    plain = (index_1T - padding).clamp(min=0)
    answered = index_1T >= context
    at_mask = torch.where(answered, prefix.mask_place[:, None] - padding, plain)
    if config.position_encoding_2d:
        block = torch.where(answered, index_1T - context + 1, 0)
        return torch.stack((at_mask, block), dim=1)
    # In the 1-D form an answer to [gMASK] goes on counting; one to [MASK] stays at the mask.
    return torch.where(prefix.whole[:, None], plain, at_mask)


def prefix_visibility(prefix: PrefixRows, num_tokens: int) -> Tensor:
    """Return bool ``[B, 1, T, T]``, True = visible; padding sees itself only."""
    index = torch.arange(num_tokens, device=prefix.context.device)
    key_11T, query_1T1 = index[None, None, :], index[None, :, None]
    seen = (key_11T <= query_1T1) | (key_11T < prefix.context[:, None, None])
    seen = seen & (key_11T >= prefix.padding[:, None, None])
    seen = seen & (query_1T1 >= prefix.padding[:, None, None])
    return (seen | (key_11T == query_1T1))[:, None]
