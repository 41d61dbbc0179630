"""The choice of attention and its masks, against the plain arithmetic."""

import pytest
import torch

from glmforge.errors import ModelError
from glmforge.models.attention import attend, has_varlen_kernel, plan_rows

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
