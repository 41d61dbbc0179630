"""Evaluation on two ranks: few rows, answers with references, early stopping, plain text."""

import pytest

CASES = (
    "held_out_0",
    "held_out_1",
    "held_out_3",
    "held_out_3_single",
    "early_stop",
    "plain_text",
)
MEASURES = {"eval_exact_match", "eval_bleu_4", "eval_rouge_l", "eval_repetition"}


@pytest.fixture(scope="module")
def two(launch):
    return launch(2, *CASES)


@pytest.mark.parametrize("count", [1, 3])
def test_fewer_rows_than_ranks_are_evaluated_once_each(launch, two, count):
    """ZeRO-3 on two ranks gives what one rank gives, loss and answers."""
    case = f"held_out_{count}"
    alone = launch(1, case)[case]
    assert two[case]["eval"] == pytest.approx(alone["eval"], rel=1e-6)
    assert two[case]["samples"] == alone["samples"]
    for found, expected in zip(two[case]["evaluations"], alone["evaluations"], strict=True):
        assert found["eval_tokens"] == expected["eval_tokens"]
        assert found.keys() > MEASURES


def test_packed_and_single_rows_have_one_validation_loss(two):
    """Before the first update; later the runs' steps hold other dialogues."""
    packed, single = two["held_out_3"], two["held_out_3_single"]
    assert packed["eval"][0] == pytest.approx(single["eval"][0], rel=1e-6)
    keys = ("eval_tokens", *MEASURES)
    first, other = packed["evaluations"][0], single["evaluations"][0]
    assert {key: first[key] for key in keys} == {key: other[key] for key in keys}


def test_without_validation_rows_prompts_are_answered_all_the_same(two):
    """No loss, no measure that needs a reference, and no best checkpoint to choose."""
    for row in two["held_out_0"]["evaluations"]:
        assert "eval_loss" not in row
        assert "eval_rouge_l" not in row
        assert 0 <= row["eval_stopped_share"] <= 1


def test_patience_ends_the_run_with_its_last_and_best_checkpoint(two):
    """On all ranks at the same step; the finished run is complete and stays so."""
    case = two["early_stop"]
    assert case["steps"] == [1, 2, 3]
    assert (case["best"], case["latest"]) == ("step-000001", "step-000003")
    final = case["final"]
    assert (final["status"], final["ended_early"]) == ("complete", True)
    assert (final["step"], final["total_steps"], final["best_step"]) == (3, 20, 1)
    assert case["again"] == 3


def test_plain_texts_are_learned(two):
    """Continued pretraining; a validation set of texts gives a loss and no prompt."""
    case = two["plain_text"]
    assert case["eval"][-1] < 0.9 * case["eval"][0]
    assert case["samples"] == ""
    assert all("eval_stopped_share" not in row for row in case["evaluations"])
