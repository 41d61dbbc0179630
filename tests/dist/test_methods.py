"""Every training method and option on two ranks: the ZeRO stage changes nothing but memory."""

import pytest

TOLERANCE = 1e-6  # fp32, five steps: summation order only
LORA = (
    "plain_lora",
    "dora_stage_0",
    "dora_stage_2",
    "dora_stage_3",
    "loraplus_stage_2",
    "loraplus_stage_3",
)


@pytest.fixture(scope="module")
def two(launch):
    return launch(2, *LORA)


@pytest.mark.parametrize("stage", [0, 3])
def test_dora_with_rslora_and_lora_plus_is_the_same_at_every_stage(two, stage):
    """Magnitudes and their norms are right where ZeRO-3 has cut the base into parts too."""
    expected, found = two["dora_stage_2"], two[f"dora_stage_{stage}"]
    assert found["loss"] == pytest.approx(expected["loss"], rel=TOLERANCE)
    assert found["eval"] == pytest.approx(expected["eval"], rel=TOLERANCE)


def test_lora_plus_is_the_same_at_stage_3(two):
    """The ratio of the groups survives DeepSpeed's own groups."""
    expected = two["loraplus_stage_2"]["loss"]
    assert two["loraplus_stage_3"]["loss"] == pytest.approx(expected, rel=TOLERANCE)


def test_lora_plus_learns_faster_than_lora_at_the_same_rate(two):
    """Warm-up makes the first two losses equal; then eight times the rate on lora_B shows."""
    plain, fast = two["plain_lora"]["loss"], two["loraplus_stage_2"]["loss"]
    assert fast[:2] == plain[:2]
    assert fast[-1] < plain[-1] - 0.05
