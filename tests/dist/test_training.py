"""Real runs on two ranks: the loss does not depend on how a batch is split, resume is exact."""

import pytest

CASES = (
    "stage_2",
    "stage_0",
    "stage_1",
    "stage_3",
    "micro_2",
    "unpacked_rows",
    "lora_stage_2",
    "lora_stage_0",
    "lora_stage_3",
    "resume_full_1",
    "resume_full_2",
    "resume_full_3",
    "resume_lora_2",
    "resume_lora_3",
    "resume_dora_3",
    "stopped_by_a_signal",
    "lost_steps",
    "only_lost_steps",
    "lost_gradients",
    "out_of_memory",
)
ALONE = ("stage_2", "stage_0", "micro_2", "micro_4", "lora_stage_2", "unpacked_rows")
ELASTIC = (
    "elastic_full_1",
    "elastic_full_2",
    "elastic_full_3",
    "elastic_lora_2",
    "elastic_lora_3",
)
TOLERANCE = 1e-6  # fp32, five steps: summation order only


@pytest.fixture(scope="module")
def two(launch):
    return launch(2, *CASES)


@pytest.fixture(scope="module")
def one(launch):
    return launch(1, *ALONE)


def test_the_loss_falls(two):
    """Five steps at a high rate."""
    assert two["stage_2"]["loss"][-1] < 0.93 * two["stage_2"]["loss"][0]
    assert two["stage_2"]["steps"] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("other", ["micro_2", "micro_4"])
def test_accumulation_and_micro_batch_do_not_change_the_loss(one, other):
    """1 x 4 accumulated = 2 x 2 = 4 x 1, on one process."""
    assert one[other]["loss"] == pytest.approx(one["stage_2"]["loss"], rel=TOLERANCE)
    assert one[other]["grad_norm"] == pytest.approx(one["stage_2"]["grad_norm"], rel=1e-5)


def test_accumulation_at_stage_0_is_not_divided_twice(one):
    """DeepSpeed 0.19.8 halves these gradients when it is given the engine's own output."""
    assert one["stage_0"]["loss"] == pytest.approx(one["stage_2"]["loss"], rel=TOLERANCE)
    assert one["stage_0"]["grad_norm"] == pytest.approx(one["stage_2"]["grad_norm"], rel=1e-5)


@pytest.mark.parametrize("case", ["stage_2", "micro_2", "lora_stage_2", "unpacked_rows"])
def test_two_processes_give_the_losses_of_one(one, two, case):
    """At the same global batch: training and validation losses."""
    assert two[case]["loss"] == pytest.approx(one[case]["loss"], rel=TOLERANCE)
    assert two[case]["eval"] == pytest.approx(one[case]["eval"], rel=TOLERANCE)


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_every_zero_stage_gives_the_same_losses(two, stage):
    """Full parameters, against stage 2."""
    assert two[f"stage_{stage}"]["loss"] == pytest.approx(two["stage_2"]["loss"], rel=TOLERANCE)
    assert two[f"stage_{stage}"]["eval"] == pytest.approx(two["stage_2"]["eval"], rel=TOLERANCE)
    norms = two[f"stage_{stage}"]["grad_norm"]
    assert norms == pytest.approx(two["stage_2"]["grad_norm"], rel=1e-5)


@pytest.mark.parametrize("stage", [0, 3])
def test_every_zero_stage_gives_the_same_losses_with_lora(two, stage):
    """LoRA, against stage 2."""
    expected = two["lora_stage_2"]
    assert two[f"lora_stage_{stage}"]["loss"] == pytest.approx(expected["loss"], rel=TOLERANCE)


def test_generation_in_evaluation_is_the_same_under_zero_3(two):
    """Prompts of unequal length, sharded over ranks that must stay in step."""
    assert two["stage_3"]["samples"] == two["stage_2"]["samples"]


def test_every_rank_is_recorded(two):
    """A line a rank every logging_steps."""
    assert two["stage_2"]["ranks"] == [0, 1]


@pytest.mark.parametrize("case", [c for c in CASES if c.startswith("resume")])
def test_a_resumed_run_is_bitwise_the_straight_one(two, case):
    """Resumed after step 2 of 5: losses, samples, evaluations and weights are equal."""
    straight, resumed = two[case]["straight"], two[case]["resumed"]
    assert resumed["loss"] == straight["loss"]
    assert resumed["eval"] == straight["eval"]
    assert resumed["samples"] == straight["samples"]
    assert resumed["steps"] == [1, 2, 3, 4, 5]
    assert two[case]["weights_equal"]


def test_a_run_stopped_by_a_signal_goes_on_as_if_nothing_happened(two):
    """One rank gets SIGTERM: all save and leave; the evaluation it had no time for is made up."""
    case = two["stopped_by_a_signal"]
    assert case["message"].startswith("SIGTERM: stopped after step ")
    assert "--resume auto" in case["message"]
    for key in ("loss", "eval", "samples"):
        assert case["resumed"][key] == case["straight"][key]
    assert case["resumed"]["steps"] == list(range(1, 9))
    assert case["weights_equal"]


@pytest.fixture(scope="module")
def fewer(launch, two):
    """One rank goes on with what two ranks began."""
    return launch(1, *ELASTIC)


@pytest.fixture(scope="module")
def more(launch, two):
    """Two ranks go on with what one rank began."""
    launch(1, "resume_full_2", "resume_full_3")
    return launch(2, "elastic_full_2", "elastic_full_3")


@pytest.mark.parametrize("case", ELASTIC)
def test_fewer_ranks_go_on_with_the_same_losses(fewer, case):
    """The optimizer's state is carried over: the steps after the change give the same losses."""
    check_elastic(fewer[case])


@pytest.mark.parametrize("case", ["elastic_full_2", "elastic_full_3"])
def test_more_ranks_go_on_with_the_same_losses(more, case):
    """The same the other way."""
    check_elastic(more[case])


def check_elastic(case):
    assert case["resumed"]["steps"] == [1, 2, 3, 4, 5]
    assert case["resumed"]["loss"] == pytest.approx(case["straight"]["loss"], rel=1e-7)
    assert case["resumed"]["samples"] == case["straight"]["samples"]
    assert case["left"] == []


@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_a_step_without_a_finite_loss_changes_nothing(two, stage):
    """It is skipped on all ranks together and counted; the next ones go on."""
    case = two["lost_steps"][stage]
    lost = [number for number, loss in enumerate(case["loss"]) if loss is None]
    assert 1 <= len(lost) <= 4
    assert case["skipped"][-1] == len(lost)
    clean = [loss for loss in case["loss"] if loss is not None]
    assert clean[-1] < clean[0]


def test_ten_lost_steps_in_a_row_end_the_run(two):
    """With the diagnosis; none of them is saved, not as the best either."""
    case = two["only_lost_steps"]
    assert len(case["steps"]) == 10
    assert "for 10 step(s) in a row" in case["message"]
    assert "Last checkpoint: none yet" in case["message"]


@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_a_step_without_finite_gradients_changes_nothing(two, stage):
    """Its loss is finite and one rank's gradient is not: skipped on all ranks, and counted."""
    case = two["lost_gradients"][stage]
    assert None not in case["loss"]
    assert case["skipped"] == [0, 0, 1, 1, 1]
    assert case["grad_norm"][2] is None


def test_stage_0_in_fp32_ends_at_gradients_that_are_not_finite(two):
    """Nothing guards the weights there."""
    message = two["lost_gradients"]["0"]["message"]
    assert message.startswith("step 3: the gradients were not finite (loss ")
    assert "train.jsonl:" in message


def test_a_run_without_memory_for_an_update_ends_with_the_advice(two):
    """Phase, step and batch, and why in final.json."""
    case = two["out_of_memory"]
    message = case["message"]
    assert message.startswith(
        "the GPU ran out of memory in the optimizer's update at step 3 (asked for 1.50 GiB more); "
        "the batch had 1 x "
    )
    assert "1. deepspeed.zero_optimization.offload_optimizer.device=cpu" in message
    assert (case["final"]["status"], case["final"]["step"]) == ("failed", 2)
    assert case["final"]["why"] == message
