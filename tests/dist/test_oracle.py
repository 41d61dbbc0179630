"""The trainer against the same training in plain torch, and against itself in another layout."""

import math

import pytest

TOLERANCE = 1e-6  # fp32, five steps: summation order only
# torch's clip_grad_norm_ adds up squares in fp32, the trainer in fp64.
NORM_TOLERANCE = 3e-5
ONE_DIALOGUE = ("one_dialogue_0", "one_dialogue_2", "one_dialogue_3")


@pytest.fixture(scope="module")
def two(launch):
    oracles = ("oracle_ddp", "oracle_fsdp2")
    rows = tuple(f"single_rows_{stage}" for stage in range(4))
    layouts = ("whole_set_packed", "whole_set_packed_3", "whole_set_single")
    return launch(2, *oracles, *rows, *layouts, *ONE_DIALOGUE)


@pytest.mark.parametrize("oracle", ["oracle_ddp", "oracle_fsdp2"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_every_zero_stage_is_the_training_written_in_plain_torch(two, stage, oracle):
    """Losses and gradient norms of every step, with clipping, warm-up and decay."""
    found, expected = two[f"single_rows_{stage}"], two[oracle]
    assert found["loss"] == pytest.approx(expected["loss"], rel=TOLERANCE)
    assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=NORM_TOLERANCE)


@pytest.mark.parametrize("packed", ["whole_set_packed", "whole_set_packed_3"])
def test_packed_rows_train_as_single_ones(two, packed):
    """The same dialogues in a step: losses, norms and evaluations over five updates."""
    found, expected = two[packed], two["whole_set_single"]
    assert found["loss"] == pytest.approx(expected["loss"], rel=TOLERANCE)
    assert found["eval"] == pytest.approx(expected["eval"], rel=TOLERANCE)
    assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-5)


@pytest.mark.parametrize("case", ONE_DIALOGUE)
def test_rows_without_trained_tokens_make_no_difference(launch, two, case):
    """One dialogue on two ranks: the second trains fillers only, and nothing becomes NaN."""
    alone = launch(1, "one_dialogue_2")["one_dialogue_2"]
    assert all(math.isfinite(loss) for loss in two[case]["loss"])
    assert two[case]["loss"] == pytest.approx(alone["loss"], rel=TOLERANCE)
    assert two[case]["grad_norm"] == pytest.approx(alone["grad_norm"], rel=1e-5)
