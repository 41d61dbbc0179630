"""Under ZeRO-3 a model is never whole on a rank, from the first tensor of the file on."""

import pytest


@pytest.fixture(scope="module")
def loaded(launch):
    return launch(2, "loaded_in_parts", "half_precision_in_parts")


@pytest.fixture(scope="module")
def parts(loaded):
    return loaded["loaded_in_parts"]


def test_one_parameter_at_a_time_is_whole_while_loading_and_none_after(parts):
    """Counted on each rank after every tensor that was read; the values are the file's."""
    assert parts["tensors"] == parts["parameters"] > 10
    assert parts["whole_while_loading"] == 0
    assert parts["whole_after_loading"] == 0
    assert parts["wrong"] == []
    assert parts["dtypes"] == ["torch.float32"]


def test_each_rank_keeps_its_half(parts):
    """Padding of odd sizes is all that is kept besides."""
    assert 0.5 <= parts["share_kept"] < 0.51


def test_half_precision_and_buffers_are_those_of_the_whole_model(loaded):
    """Transformers' own class: its rotary buffer stays in fp32."""
    assert loaded["half_precision_in_parts"]["compared"] > 20
    assert loaded["half_precision_in_parts"]["wrong"] == []
