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
FREEZE = (
    "freeze_stage_0",
    "freeze_stage_2",
    "freeze_stage_3",
    "resume_freeze_3",
    "full_stage_2",
    "offload_param_3",
)
OPTIONS = ("every_second_layer", "stable_then_down", "resume_noisy")


@pytest.fixture(scope="module")
def two(launch):
    return launch(2, *LORA, *FREEZE, *OPTIONS)


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


@pytest.mark.parametrize("stage", [0, 3])
def test_freezing_is_the_same_at_every_stage(two, stage):
    """Against stage 2."""
    expected = two["freeze_stage_2"]["loss"]
    assert two[f"freeze_stage_{stage}"]["loss"] == pytest.approx(expected, rel=TOLERANCE)


def test_freezing_trains_the_last_layer_and_the_final_norm_only(two):
    """Every other weight of the finished model is the base's, bit for bit."""
    changed, names = two["freeze_stage_3"]["changed"], two["freeze_stage_3"]["names"]
    last = [n for n in names if "layers.1." in n or n.endswith("final_layernorm.weight")]
    assert changed == last


def test_a_resumed_run_with_frozen_layers_is_bitwise_the_straight_one(two):
    """ZeRO-3, after step 2 of 5."""
    case = two["resume_freeze_3"]
    assert case["resumed"]["loss"] == case["straight"]["loss"]
    assert case["weights_equal"]


def test_offloaded_parameters_change_nothing(two):
    """ZeRO-3 with its parts on the CPU side, optimizer states not offloaded."""
    expected = two["full_stage_2"]["loss"]
    assert two["offload_param_3"]["loss"] == pytest.approx(expected, rel=TOLERANCE)


def test_checkpointing_every_second_layer_changes_nothing(two):
    """Against all layers, bit for bit."""
    assert two["every_second_layer"]["loss"] == two["full_stage_2"]["loss"]


def test_noise_disturbs_training_and_no_evaluation(two):
    """The first evaluation is the plain run's; the losses are others."""
    noisy, plain = two["stable_then_down"], two["full_stage_2"]
    assert noisy["eval"][0] == plain["eval"][0]
    assert noisy["loss"][0] != plain["loss"][0]
    assert noisy["loss"][-1] < noisy["loss"][0]


def test_a_resumed_run_draws_the_same_noise(two):
    """Random states are part of a checkpoint."""
    case = two["resume_noisy"]
    assert case["resumed"]["loss"] == case["straight"]["loss"]
    assert case["weights_equal"]
