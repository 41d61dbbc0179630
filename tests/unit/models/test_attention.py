"""The choice of attention and its masks, against the plain arithmetic."""

import pytest
import torch

from glmforge.errors import ModelError
from glmforge.models import attention
from glmforge.models.attention import attend, plan_prefix_rows, plan_rows
from glmforge.models.chatglm.positions import PrefixRows, prefix_visibility
from glmforge.models.varlen import has_varlen_kernel

CPU = torch.device("cpu")


def plan(**options):
    return plan_rows(device=CPU, dtype=torch.float32, **options)


def heads(batch=2, queries=6, keys=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = ((batch, 4, queries, 8), (batch, 2, keys, 8), (batch, 2, keys, 8))
    return [torch.randn(size, generator=generator) for size in sizes]


def test_right_padding_and_full_rows_need_no_mask():
    right = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    assert plan(num_query_tokens=4, attention_mask=right).mask is None
    assert plan(num_query_tokens=4, attention_mask=torch.ones(2, 4)).mask is None
    assert plan(num_query_tokens=4).mask is None


def test_left_padding_hides_padding_from_tokens_and_lets_padding_see_itself_only():
    mask = plan(num_query_tokens=3, attention_mask=torch.tensor([[0, 1, 1]])).mask
    expected = [[True, False, False], [False, True, False], [False, True, True]]
    assert mask[0, 0].tolist() == expected


def test_later_tokens_of_a_cached_row_see_all_before_them():
    mask = plan(num_query_tokens=2, past_tokens=3).mask
    assert mask[0, 0].tolist() == [[True] * 4 + [False], [True] * 5]
    assert plan(num_query_tokens=1, past_tokens=3).mask is None


@pytest.mark.parametrize("queries", [6, 2, 1])
def test_fused_and_eager_attention_agree_with_a_cache_and_with_padding(queries):
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    for attention_mask in (None, mask):
        plans = [
            plan(
                num_query_tokens=queries,
                past_tokens=6 - queries,
                attention_mask=attention_mask,
                eager=eager,
            )
            for eager in (False, True)
        ]
        outputs = [attend(*heads(queries=queries), rows) for rows in plans]
        assert outputs[0].shape == (2, queries, 4, 8)
        assert (outputs[0] - outputs[1]).abs().max() <= 1e-6


@pytest.mark.parametrize("eager", [False, True])
def test_documents_are_attended_to_alone(eager):
    bounds = torch.tensor([0, 2, 7, 8, 12], dtype=torch.int32)
    q, k, v = heads()
    packed = attend(
        q, k, v, plan(num_query_tokens=6, cu_seq_lens=bounds, max_length=5, eager=eager)
    )
    flat = packed.reshape(12, 4, 8)
    q, k, v = (x.transpose(0, 1).reshape(1, x.shape[1], 12, 8) for x in (q, k, v))
    for start, end in ((0, 2), (2, 7), (7, 8), (8, 12)):
        part = [x[:, :, start:end] for x in (q, k, v)]
        alone = attend(*part, plan(num_query_tokens=end - start, eager=True))
        assert (flat[start:end] - alone[0]).abs().max() <= 1e-6


def test_packed_rows_without_the_longest_length_are_refused():
    with pytest.raises(ModelError, match="max_length_q"):
        plan(num_query_tokens=6, cu_seq_lens=torch.tensor([0, 6]))


def test_the_variable_length_kernel_is_for_half_precision_on_cuda():
    assert not has_varlen_kernel(CPU, torch.bfloat16)
    assert has_varlen_kernel(torch.device("cuda"), torch.bfloat16)
    assert not has_varlen_kernel(torch.device("cuda"), torch.float32)


def reference_varlen(q, k, v, *, query_bounds, key_bounds, causal, longest_query, longest_key):
    """What the CUDA kernel computes, stretch by stretch; causal rows are aligned at their ends."""
    parts = []
    for (q_start, q_end), (k_start, k_end) in zip(
        zip(query_bounds[:-1].tolist(), query_bounds[1:].tolist()),
        zip(key_bounds[:-1].tolist(), key_bounds[1:].tolist()),
    ):
        num_queries, num_keys = q_end - q_start, k_end - k_start
        assert num_queries <= longest_query
        assert num_keys <= longest_key
        seen = torch.ones(num_queries, num_keys, dtype=torch.bool)
        if causal:
            seen = seen.tril(num_keys - num_queries)
        stretch = [x.transpose(0, 1)[None] for x in (q[q_start:q_end], k[k_start:k_end])]
        values = v[k_start:k_end].transpose(0, 1)[None]
        out = torch.nn.functional.scaled_dot_product_attention(
            *stretch, values, attn_mask=seen, enable_gqa=True
        )
        parts.append(out[0].transpose(0, 1))
    return torch.cat(parts)


def test_prefix_rows_in_two_kernel_calls_equal_the_masked_ones(monkeypatch):
    monkeypatch.setattr(attention, "attend_varlen", reference_varlen)
    context, padding = torch.tensor([3, 5, 0]), torch.tensor([0, 2, 0])
    q, k, v = heads(batch=3)
    ours = attend(q, k, v, plan_prefix_rows(context, padding, 6))
    prefix = PrefixRows(context=context, mask_place=context, padding=padding, whole=context > 0)
    mask = prefix_visibility(prefix, 6)
    expected = attend(q, k, v, plan(num_query_tokens=6, attention_mask=mask))
    kept = torch.arange(6) >= padding[:, None]
    assert (ours - expected)[kept].abs().max() <= 1e-6
    assert ours.isfinite().all()


def test_prefix_rows_without_any_context_are_plain_causal_rows():
    rows = plan_prefix_rows(torch.zeros(2, dtype=torch.long), torch.zeros(2, dtype=torch.long), 6)
    assert rows == attention.AttentionRows()


def test_packed_rows_of_the_kernel_equal_the_documents_alone(monkeypatch):
    bounds = torch.tensor([0, 2, 7, 8, 12], dtype=torch.int32)
    q, k, v = heads()
    by_document = attend(q, k, v, plan(num_query_tokens=6, cu_seq_lens=bounds, max_length=5))
    monkeypatch.setattr(attention, "attend_varlen", reference_varlen)
    by_kernel = attend(q, k, v, attention.AttentionRows(cu_seq_lens=bounds, max_length=5))
    assert (by_document - by_kernel).abs().max() <= 1e-6
