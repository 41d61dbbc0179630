"""Attention: one entry (`attend`) for dense, padded and packed rows, which picks the kernel.

Owns the choice of kernel and the masks. `plan_rows` looks at what the batch is once per forward;
every layer then calls `attend`. Packed rows never meet a dense block mask: on CUDA they use a
variable-length kernel, elsewhere each document is attended to alone. Right padding needs no mask
under causal attention; left padding does. Eager attention is the oracle of the others.

Shapes: B batch, T query tokens, S key tokens, N query heads, K key/value heads, H head width.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from glmforge.errors import ModelError
from glmforge.models.varlen import attend_varlen, has_varlen_kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixSplit:
    """The two groups of a prefix-LM batch, as places among its flattened ``B * T`` tokens.

    Context tokens see their row's context, answer tokens see their row up to themselves; padding
    on the left is in neither group. ``*_bounds`` are int32 ``[B + 1]`` over each group's tokens,
    ``longest`` is T.
    """

    context: Tensor
    context_bounds: Tensor
    answer: Tensor
    answer_bounds: Tensor
    seen: Tensor
    seen_bounds: Tensor
    longest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRows:
    """How the tokens of one forward may see each other.

    ``mask`` is bool ``[B or 1, 1, T, S]``, True = visible (None: causal over whole rows, or
    packed). ``cu_seq_lens`` int32 ``[documents + 1]`` bounds the documents of the flattened
    ``B * T`` tokens for the variable-length kernel; ``documents`` the same as host integers where
    documents are attended to one by one. ``prefix`` is for prefix-LM rows where a
    variable-length kernel takes them without a mask.
    """

    mask: Tensor | None = None
    cu_seq_lens: Tensor | None = None
    max_length: int = 0
    documents: tuple[tuple[int, int], ...] = ()
    prefix: PrefixSplit | None = None
    eager: bool = False


def plan_prefix_rows(context_B: Tensor, padding_B: Tensor, num_tokens: int) -> AttentionRows:
    """Plan whole prefix-LM rows for a variable-length kernel: two calls and no mask.

    Args:
        context_B: int64 ``[B]``, the first place that is not context (padding counted in).
        padding_B: int64 ``[B]``, pads on the left.
        num_tokens: T.

    """
    place_1T = torch.arange(num_tokens, device=context_B.device)[None]
    in_answer_BT = place_1T >= context_B[:, None]
    in_row_BT = place_1T >= padding_B[:, None]

    def group(chosen_BT: Tensor) -> tuple[Tensor, Tensor]:
        bounds = functional.pad(chosen_BT.sum(-1).cumsum(0), (1, 0)).to(torch.int32)
        return chosen_BT.flatten().nonzero().squeeze(1), bounds

    context, context_bounds = group(in_row_BT & ~in_answer_BT)
    if context.numel() == 0:
        return AttentionRows()
    answer, answer_bounds = group(in_row_BT & in_answer_BT)
    seen, seen_bounds = group(in_row_BT)
    split = PrefixSplit(
        context=context,
        context_bounds=context_bounds,
        answer=answer,
        answer_bounds=answer_bounds,
        seen=seen,
        seen_bounds=seen_bounds,
        longest=num_tokens,
    )
    return AttentionRows(prefix=split)


def plan_rows(
    *,
    num_query_tokens: int,
    past_tokens: int = 0,
    attention_mask: Tensor | None = None,
    cu_seq_lens: Tensor | None = None,
    max_length: int | None = None,
    device: torch.device,
    dtype: torch.dtype,
    eager: bool = False,
) -> AttentionRows:
    """Decide once per forward how its tokens see each other.

    Args:
        num_query_tokens: T.
        past_tokens: tokens already in the cache; S = past + T.
        attention_mask: ``[B, S]``, 1 = token, 0 = padding; or ``[B, 1, T, S]`` bool (True =
            visible) or additive float, used as it is.
        cu_seq_lens: int32 ``[documents + 1]`` over the flattened ``B * T`` tokens of packed rows.
        max_length: the longest document, in tokens; needed with ``cu_seq_lens``.
        device: of the activations.
        dtype: of the activations.
        eager: use the plain arithmetic instead of a fused kernel.

    Raises:
        ModelError: packed rows came with a mask, a cache, or without ``max_length``.

    """
    if cu_seq_lens is not None:
        if attention_mask is not None or past_tokens or max_length is None:
            raise ModelError(
                "packed rows (cu_seq_lens_q) take max_length_q and position_ids that restart at "
                "each document, and neither attention_mask nor a filled cache"
            )
        if not eager and has_varlen_kernel(device, dtype):
            return AttentionRows(cu_seq_lens=cu_seq_lens.to(torch.int32), max_length=max_length)
        bounds = cu_seq_lens.tolist()
        documents = tuple((start, end) for start, end in pairwise(bounds) if end > start)
        return AttentionRows(documents=documents, max_length=max_length, eager=eager)
    mask = _visibility(num_query_tokens, past_tokens, attention_mask, device)
    return AttentionRows(mask=mask, eager=eager)


def _visibility(
    num_query_tokens: int, past_tokens: int, attention_mask: Tensor | None, device: torch.device
) -> Tensor | None:
    if attention_mask is not None and attention_mask.dim() == 4:
        return attention_mask
    total = past_tokens + num_query_tokens
    visible_BS = None
    if attention_mask is not None:
        visible_BS = attention_mask[:, :total].to(device=device, dtype=torch.bool)
        right_padded = past_tokens == 0 and bool((visible_BS[:, 1:] <= visible_BS[:, :-1]).all())
        if right_padded or bool(visible_BS.all()):
            visible_BS = None
    if visible_BS is None and (past_tokens == 0 or num_query_tokens == 1):
        return None
    query_T1 = torch.arange(past_tokens, total, device=device)[:, None]
    key_1S = torch.arange(total, device=device)[None, :]
    mask = (key_1S <= query_T1)[None, None]
    if visible_BS is not None:
        # A padding token sees itself: a row of the softmax with nothing in it would be NaN.
        mask = (mask & visible_BS[:, None, None, :]) | (key_1S == query_T1)[None, None]
    return mask


def attend(q_BNTH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, rows: AttentionRows) -> Tensor:
    """Attend and return ``[B, T, N, H]``; scores are scaled by 1 / sqrt(H), softmax in fp32."""
    if rows.prefix is not None:
        return _attend_prefix(q_BNTH, k_BKSH, v_BKSH, rows.prefix)
    if rows.cu_seq_lens is not None:
        return _attend_packed(q_BNTH, k_BKSH, v_BKSH, rows)
    if rows.documents:
        return _attend_documents(q_BNTH, k_BKSH, v_BKSH, rows)
    kernel = _eager if rows.eager else _sdpa
    return kernel(q_BNTH, k_BKSH, v_BKSH, rows.mask).transpose(1, 2)


def _repeat_heads(k_BKSH: Tensor, num_heads: int) -> Tensor:
    batch, groups, length, width = k_BKSH.shape
    if groups == num_heads:
        return k_BKSH
    expanded = k_BKSH[:, :, None].expand(batch, groups, num_heads // groups, length, width)
    return expanded.reshape(batch, num_heads, length, width)


def _sdpa(q_BNTH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, mask: Tensor | None) -> Tensor:
    num_heads, num_groups = q_BNTH.shape[1], k_BKSH.shape[1]
    if mask is not None:
        # Fused kernels take a mask only with as many key heads as query heads.
        if mask.dtype not in (torch.bool, q_BNTH.dtype):
            mask = mask.to(q_BNTH.dtype)
        k_BNSH, v_BNSH = _repeat_heads(k_BKSH, num_heads), _repeat_heads(v_BKSH, num_heads)
        return functional.scaled_dot_product_attention(q_BNTH, k_BNSH, v_BNSH, attn_mask=mask)
    return functional.scaled_dot_product_attention(
        q_BNTH,
        k_BKSH,
        v_BKSH,
        is_causal=q_BNTH.shape[2] > 1,
        enable_gqa=num_heads != num_groups,
    )


def _eager(q_BNTH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, mask: Tensor | None) -> Tensor:
    num_heads, num_queries, num_keys = q_BNTH.shape[1], q_BNTH.shape[2], k_BKSH.shape[2]
    k_BNSH, v_BNSH = _repeat_heads(k_BKSH, num_heads), _repeat_heads(v_BKSH, num_heads)
    scores_BNTS = (q_BNTH @ k_BNSH.transpose(2, 3)).float() * q_BNTH.shape[-1] ** -0.5
    if mask is None and num_queries > 1:
        mask = torch.ones(num_queries, num_keys, dtype=torch.bool, device=q_BNTH.device).tril()
    if mask is not None and mask.dtype == torch.bool:
        scores_BNTS = scores_BNTS.masked_fill(~mask, float("-inf"))
    elif mask is not None:
        scores_BNTS = scores_BNTS + mask
    return scores_BNTS.softmax(-1).to(v_BNSH.dtype) @ v_BNSH


def _attend_documents(
    q_BNTH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, rows: AttentionRows
) -> Tensor:
    batch, num_heads, length, width = q_BNTH.shape
    kernel = _eager if rows.eager else _sdpa

    def flat(x_BNTH: Tensor) -> Tensor:
        return x_BNTH.transpose(0, 1).reshape(1, x_BNTH.shape[1], batch * length, width)

    q, k, v = flat(q_BNTH), flat(k_BKSH), flat(v_BKSH)
    parts = [
        kernel(q[:, :, start:end], k[:, :, start:end], v[:, :, start:end], None)
        for start, end in rows.documents
    ]
    out = torch.cat(parts, dim=2)
    return out.view(num_heads, batch, length, width).permute(1, 2, 0, 3)


def flatten_tokens(x_BNTH: Tensor) -> Tensor:
    """Return ``[B * T, N, H]``."""
    return x_BNTH.transpose(1, 2).flatten(0, 1)


def _attend_packed(q_BNTH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, rows: AttentionRows) -> Tensor:
    assert rows.cu_seq_lens is not None
    out = attend_varlen(
        *(flatten_tokens(x) for x in (q_BNTH, k_BKSH, v_BKSH)),
        query_bounds=rows.cu_seq_lens,
        key_bounds=rows.cu_seq_lens,
        longest_query=rows.max_length,
        longest_key=rows.max_length,
        causal=True,
    )
    return out.unflatten(0, (q_BNTH.shape[0], q_BNTH.shape[2]))


def _attend_prefix(q_BNTH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, split: PrefixSplit) -> Tensor:
    q, k, v = (flatten_tokens(x) for x in (q_BNTH, k_BKSH, v_BKSH))
    groups = (
        (split.context, split.context_bounds, split.context, split.context_bounds, False),
        (split.answer, split.answer_bounds, split.seen, split.seen_bounds, True),
    )
    out = torch.zeros_like(q)
    for queries, query_bounds, keys, key_bounds, causal in groups:
        part = attend_varlen(
            q.index_select(0, queries),
            k.index_select(0, keys),
            v.index_select(0, keys),
            query_bounds=query_bounds,
            key_bounds=key_bounds,
            longest_query=split.longest,
            longest_key=split.longest,
            causal=causal,
        )
        out = out.index_copy(0, queries, part)
    return out.unflatten(0, (q_BNTH.shape[0], q_BNTH.shape[2]))
