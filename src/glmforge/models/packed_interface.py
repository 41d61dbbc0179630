"""Packed rows for transformers' own models, through its public attention interface.

Owns the function that transformers' Glm and Glm4 layers call in place of their attention:
documents of a packed row are bounded by ``cu_seq_lens_q`` (models/attention.py picks the kernel),
any other batch goes the usual sdpa way. Registered by name when such a model is opened; no class
of transformers is changed.
"""

import math
from typing import Any

from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from glmforge.errors import ModelError
from glmforge.models.attention import attend, plan_rows

PACKED_ATTENTION = "glmforge_packed"
"""Name of the attention implementation (``config._attn_implementation``)."""


def register_packed_attention() -> None:
    """Make transformers know the implementation; repeating it changes nothing."""
    AttentionInterface.register(PACKED_ATTENTION, packed_attention_forward)
    AttentionMaskInterface.register(PACKED_ATTENTION, sdpa_mask)


def packed_attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend as a layer of transformers asks.

    Args:
        module: the attention layer.
        query: ``[B, N, T, H]``, rotated.
        key: ``[B, K, S, H]``.
        value: ``[B, K, S, H]``.
        attention_mask: what the model built; without meaning for packed rows.
        dropout: of the attention weights; packed rows have none.
        scaling: of the scores, by default 1 / sqrt(H).
        cu_seq_lens_q: int32 ``[documents + 1]``, given for packed rows.
        max_length_q: the longest document, in tokens.
        kwargs: what transformers' sdpa function takes.

    Returns:
        ``[B, T, N, H]``, and no weights.

    Raises:
        ModelError: packed rows and attention dropout.

    """
    if cu_seq_lens_q is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    if dropout:
        raise ModelError(
            f"packed rows have no attention dropout: set attention_dropout (now {dropout}) to 0 "
            "in config.json, or data.packing to false"
        )
    rows = plan_rows(
        num_query_tokens=query.shape[2],
        cu_seq_lens=cu_seq_lens_q,
        max_length=max_length_q,
        device=query.device,
        dtype=query.dtype,
    )
    if scaling is not None:
        query = query * (scaling * math.sqrt(query.shape[-1]))
    return attend(query, key, value, rows), None
