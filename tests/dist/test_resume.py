"""Runs that go on with changes or with damage, and runs that start from others' weights."""

import pytest

CASES = (
    "finished_and_lengthened",
    "changed_data",
    "init_lora_2",
    "init_lora_3",
    "init_full_2",
    "init_full_3",
    "init_refusals",
    "damaged_files",
    "named_states",
    "background_full_3",
    "background_lora_2",
    "background_and_failure",
)


@pytest.fixture(scope="module")
def two(launch):
    return launch(2, *CASES)


def test_a_finished_run_is_left_alone(two):
    """Case R05: nothing is trained and no file is touched; nor by a change that is refused."""
    case = two["finished_and_lengthened"]
    assert case["untouched"]
    assert "training.max_steps was 5 when the run began and is 8 now" in case["refused"]
    assert "5 -> 8 steps; learning rate after 5 steps" in case["refused"]
    assert "--allow-changes" in case["refused"]
    assert "nothing is left to train" in case["shorter"]


def test_a_finished_run_that_lost_its_weights_writes_them_again(two):
    """From its last checkpoint, without another step; the pointers are put right too."""
    assert two["finished_and_lengthened"]["again_written"] == {
        "adapter_model.safetensors": True,
        "metrics.jsonl": True,
        "best": True,
        "latest": True,
    }


def test_weights_that_are_not_what_a_finished_run_wrote_are_refused(launch):
    """A flipped bit: not "already complete", and no start for another run; moved away, they come
    again."""
    case = launch(1, "damaged_weights")["damaged_weights"]
    assert "its bytes differ from what was written" in case["refused"]
    assert "model away, and --resume auto writes them again" in case["refused"]
    assert "its bytes differ from what was written" in case["started"]
    assert case["untouched"]
    assert case["again"]


def test_an_allowed_change_is_recorded_and_the_run_goes_on(two):
    """From its last step to the new end, once: the change belongs to the run from then on."""
    case = two["finished_and_lengthened"]
    assert case["longer"]["steps"] == list(range(1, 9))
    assert case["again"] == case["longer"]
    assert case["final"]["status"] == "complete"
    assert case["final"]["step"] == 8
    assert {row["what"] for row in case["noted"]} == {
        "training.max_steps",
        "the course of the learning rate",
    }
    assert {row["after_step"] for row in case["noted"]} == {5}


def test_other_data_is_refused_and_can_be_allowed(two):
    """The message counts the examples."""
    case = two["changed_data"]
    assert "the training data, tokenizer or template was" in case["refused"]
    assert "learning_rate" not in case["refused"]  # its config.yaml was edited, the run was not
    assert "training.learning_rate was 0.005 when the run began and is 0.5 now" in case["edited"]
    assert case["allowed"]["steps"] == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["init_lora_2", "init_lora_3", "init_full_2", "init_full_3"])
def test_a_new_run_starts_from_anothers_weights(two, name):
    """Its first evaluation is the other's at that place; so is that of its second beginning."""
    case = two[name]
    assert case["end"][0] == pytest.approx(case["first"][-1], rel=1e-6)
    assert case["middle"][0] == pytest.approx(case["first"][1], rel=1e-6)
    assert case["middle"][0] != pytest.approx(case["first"][0], rel=1e-6)
    assert case["given"].endswith("first/checkpoints/step-000002")
    assert case["again"] == case["middle"]


def test_weights_that_do_not_fit_are_refused_before_anything_is_made(two):
    """Rank, targets, kind of weights, a path that is not there, and two words at once."""
    case = two["init_refusals"]
    assert "lora.r is 4 and the adapter's is 8: write lora.r=8" in case["rank"]
    assert 'write lora.target_modules=["query_key_value"]' in case["targets"]
    assert "holds whole weights, and method lora starts from an adapter" in case["whole_for_lora"]
    assert "an adapter, and method full trains whole weights" in case["adapter_for_full"]
    assert "no such directory" in case["absent"]
    assert "give one of them" in case["with_resume"]
    assert case["made"] == []


def test_everything_that_resume_needs_is_in_the_checkpoint(two):
    """By list: shards without the frozen base, optimizer and loss scaler of each rank, random
    states, progress (the data's place is its step; the schedule is a function of it), best metric,
    config, the data's hash."""
    inside = two["damaged_files"]["inside"]
    assert {name for name in inside["files"] if not name.endswith(".py")} == {
        "adapter/adapter_config.json",
        "adapter/adapter_model.safetensors",
        "adapter/base.json",
        "global_step4/mp_rank_00_model_states.pt",
        "global_step4/zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "global_step4/zero_pp_rank_1_mp_rank_00_optim_states.pt",
        "latest",
        "manifest.json",
        "state/config.yaml",
        "state/data.json",
        "state/deepspeed.json",
        "state/progress.json",
        "state/rank-00000.pt",
        "state/rank-00001.pt",
        "state/versions.json",
    }
    assert inside["base_tensors"] == []
    for state in inside["optimizer"]:
        assert {"base_optimizer_state", "loss_scaler", "zero_stage"} <= set(state)
    assert {"step", "skipped_steps", "best_metric", "best_step"} <= set(inside["progress"])
    assert len(inside["data_hash"]) == 64


def test_damage_of_any_file_costs_no_run(two):
    """Flipped, cut, torn or gone: the one before is taken, and the end is bitwise the same."""
    case = two["damaged_files"]
    assert {row["way"] for row in case["found"]} == {"flip", "truncate", "delete", "tear"}
    assert len(case["found"]) >= 10
    assert [row for row in case["found"] if not (row["equal"] and row["aside"])] == []


def test_a_run_without_a_whole_checkpoint_never_begins_again(two):
    """It is refused with what each one lacks, and nothing is changed."""
    case = two["damaged_files"]
    assert "no complete checkpoint to resume from" in case["refused"]
    assert "step-000004" in case["refused"]
    assert "step-000002" in case["refused"]
    assert case["untouched"]


def test_checkpoints_asked_for_by_name_are_named_precisely(two):
    """With the newest complete one; and another ZeRO stage is refused."""
    case = two["named_states"]
    assert "optim_states.pt: 0 bytes" in case["damaged"]
    assert "goes on from step-000003" in case["damaged"]
    assert "step-000002: whole" in case["whole"]
    assert "--init-from" in case["whole"]
    assert "zero_optimization.stage was 2 when the run began and is 3 now" in case["stage"]


@pytest.mark.parametrize("name", ["background_full_3", "background_lora_2"])
def test_checkpoints_written_in_the_background_are_the_same(two, name):
    """Same run, same checkpoints, and it resumes from them bitwise; nothing is left behind."""
    case = two[name]
    assert case["equal"]
    assert case["names_equal"]
    assert case["resumed_equal"]
    assert case["left"] == []


def test_a_failing_run_finishes_the_checkpoint_that_it_was_writing(two):
    """The error is what it was; the checkpoint is whole and the latest, and the run goes on."""
    case = two["background_and_failure"]
    assert case["raised"] == "a bug"
    assert case["latest"] == "step-000002"
    assert case["step"] == 2
    assert case["hidden"] == []
    assert case["resumed"] == [1, 2, 3, 4, 5]
