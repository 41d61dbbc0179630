"""Attention: one entry (`attend`) for dense, padded and packed rows, which picks the kernel.

Owns the choice of kernel and the masks. `plan_rows` looks at what the batch is once per forward;
every layer then calls `attend`. Packed rows never meet a dense block mask: on CUDA they use a
variable-length kernel, elsewhere each document is attended to alone. Right padding needs no mask
under causal attention; left padding does. Eager attention is the oracle of the others.

Shapes: B batch, T query tokens, S key tokens, N query heads, K key/value heads, H head width.
"""

import importlib.util
import inspect
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from glmforge.errors import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRows:
    """How the tokens of one forward may see each other.

    ``mask`` is bool ``[B or 1, 1, T, S]``, True = visible (None: causal over whole rows, or
    packed). ``cu_seq_lens`` int32 ``[documents + 1]`` bounds the documents of the flattened
    ``B * T`` tokens for the variable-length kernel; ``documents`` the same as host integers where
    documents are attended to one by one.
    """

    mask: Tensor | None = None
    cu_seq_lens: Tensor | None = None
    max_length: int = 0
    documents: tuple[tuple[int, int], ...] = ()
    eager: bool = False


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
    if rows.cu_seq_lens is not None:
        return _attend_varlen(q_BNTH, k_BKSH, v_BKSH, rows)
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


def _attend_varlen(q_BNTH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, rows: AttentionRows) -> Tensor:
    batch, num_heads, length, width = q_BNTH.shape

    def flat(x_BNTH: Tensor) -> Tensor:
        return x_BNTH.transpose(1, 2).reshape(batch * length, x_BNTH.shape[1], width)

    q, k, v = flat(q_BNTH), flat(k_BKSH), flat(v_BKSH)
    bounds, longest = rows.cu_seq_lens, rows.max_length
    if _FLASH_ATTN:
        from flash_attn import flash_attn_varlen_func  # type: ignore[import-not-found]

        out = flash_attn_varlen_func(q, k, v, bounds, bounds, longest, longest, causal=True)
    else:
        from torch.nn.attention.varlen import varlen_attn

        if "enable_gqa" not in _VARLEN_OPTIONS:
            k, v = (x.repeat_interleave(num_heads // x.shape[1], 1) for x in (k, v))
        out = varlen_attn(q, k, v, bounds, bounds, longest, longest, **_VARLEN_OPTIONS)
    return out.view(batch, length, num_heads, width)


def _varlen_options() -> dict[str, object]:
    # The causal switch was renamed between torch 2.10 and 2.11; both are in use.
    from torch.nn.attention.varlen import varlen_attn

    known = inspect.signature(varlen_attn).parameters
    options: dict[str, object] = {"enable_gqa": True} if "enable_gqa" in known else {}
    if "window_size" in known:
        return {**options, "window_size": (-1, 0)}
    return {**options, "is_causal": True}


_VARLEN_OPTIONS = _varlen_options()
_FLASH_ATTN = importlib.util.find_spec("flash_attn") is not None


def has_varlen_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether packed rows on this device and dtype use a variable-length kernel."""
    return device.type == "cuda" and dtype in (torch.bfloat16, torch.float16)
