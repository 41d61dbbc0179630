"""The variable-length attention kernel of a CUDA device, whichever library has it.

Owns the call and nothing else: flash-attn where it is installed, torch's own otherwise. Both are
flash attention 2 or later: where queries and keys differ in length, causal rows are aligned at
their ends (the last query sees all keys).

Shapes: Q and S flattened query and key tokens, N query heads, K key/value heads, H head width.
"""

import importlib.util
import inspect
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

_FLASH_ATTN = importlib.util.find_spec("flash_attn") is not None
_OPTIONS = frozenset(inspect.signature(varlen_attn).parameters)


def has_varlen_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether packed rows on this device and dtype use a variable-length kernel."""
    return device.type == "cuda" and dtype in (torch.bfloat16, torch.float16)


def attend_varlen(
    q_QNH: Tensor,
    k_SKH: Tensor,
    v_SKH: Tensor,
    *,
    query_bounds: Tensor,
    key_bounds: Tensor,
    longest_query: int,
    longest_key: int,
    causal: bool,
) -> Tensor:
    """Attend inside each stretch of the flattened tokens and return ``[Q, N, H]``.

    Args:
        q_QNH: queries.
        k_SKH: keys.
        v_SKH: values.
        query_bounds: int32 ``[stretches + 1]``, where each stretch of queries begins.
        key_bounds: the same of keys.
        longest_query: tokens of the longest stretch, or more.
        longest_key: the same of keys.
        causal: a query sees keys up to its own place, counted from the stretch's end.

    """
    lengths = (query_bounds, key_bounds, longest_query, longest_key)
    if _FLASH_ATTN:
        from flash_attn import flash_attn_varlen_func  # type: ignore[import-not-found]

        # torch's own kernel below asks torch for its deterministic mode itself.
        fixed = torch.are_deterministic_algorithms_enabled()
        return flash_attn_varlen_func(
            q_QNH, k_SKH, v_SKH, *lengths, causal=causal, deterministic=fixed
        )
    # The causal switch and grouped heads were renamed and added between torch 2.10 and 2.12.
    options: dict[str, Any] = {}
    if "enable_gqa" in _OPTIONS:
        options["enable_gqa"] = True
    else:
        repeats = q_QNH.shape[1] // k_SKH.shape[1]
        k_SKH, v_SKH = (x.repeat_interleave(repeats, dim=1) for x in (k_SKH, v_SKH))
    if "window_size" in _OPTIONS:
        options["window_size"] = (-1, 0) if causal else (-1, -1)
    else:
        options["is_causal"] = causal
    return varlen_attn(q_QNH, k_SKH, v_SKH, *lengths, **options)
