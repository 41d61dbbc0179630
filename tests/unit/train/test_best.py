"""The best evaluation follows the chosen measure, and patience ends a run."""

import json

import pytest

from glmforge.assets import asset_path
from glmforge.config import config_from_mapping
from glmforge.train.best import best_begins_anew, early_end_line, note_evaluation, note_step
from glmforge.train.metrics import StepRecord
from glmforge.train.state import Progress
from small_models import TINY_MODEL


def config(**training):
    data = str(asset_path("demo/validation.jsonl"))
    return config_from_mapping(
        {
            "model": {"model_name_or_path": str(TINY_MODEL)},
            "data": {"train": data, "validation": data},
            "training": {"output_dir": "run", **training},
        }
    )


def looks(settings, name, values):
    """Evaluations at steps 0, 1, 2, ... until the run ends; which were the best so far."""
    progress, best = Progress(), []
    for step, value in enumerate(values):
        progress.step = step
        measured = {"eval_loss": 9.0} | ({} if value is None else {name: value})
        best.append(note_evaluation(progress, measured, settings))
        if progress.ended_early:
            break
    return progress, best


def test_the_lowest_loss_is_the_best_and_step_0_does_not_count():
    """A model before its first update is nothing to keep."""
    progress, best = looks(config(), "eval_loss", [0.5, 2.0, 1.0, 1.0, 1.5])
    assert best == [False, True, True, False, False]
    assert (progress.best_step, progress.best_metric, progress.best_eval_loss) == (2, 1.0, 1.0)
    assert not progress.ended_early


@pytest.mark.parametrize(
    ("metric", "values", "step"),
    [
        ("eval_rouge_l", [0.1, 0.2, 0.4, 0.3], 2),
        ("eval_exact_match", [0.0, 0.0, 0.5, 0.1], 2),
        ("eval_repetition", [0.0, 0.4, 0.1, 0.2], 2),
    ],
)
def test_each_measure_knows_its_better_direction(metric, values, step):
    """Higher for nearness to references, lower for repetition."""
    progress, _ = looks(config(metric_for_best_model=metric), metric, values)
    assert progress.best_step == step
    assert progress.best_metric == values[step]


def test_the_direction_can_be_written():
    """greater_is_better decides alone where it is given."""
    settings = config(metric_for_best_model="eval_repetition", greater_is_better=True)
    progress, _ = looks(settings, "eval_repetition", [0.0, 0.1, 0.4, 0.2])
    assert progress.best_step == 2


def test_patience_ends_a_run_after_evaluations_in_a_row_without_gain():
    """A gain in between starts the count anew; an equal value is none."""
    settings = config(early_stopping_patience=2)
    progress, best = looks(settings, "eval_loss", [9, 5.0, 6.0, 4.0, 4.0, 4.5, 1.0])
    assert progress.ended_early
    assert (progress.step, progress.best_step) == (5, 3)
    assert best == [False, True, False, True, False, False]
    line = early_end_line(progress, settings)
    assert line.startswith(
        "ended early after step 5: eval_loss was not better than 4.0000 (step 3)"
    )


def test_a_measure_that_is_not_a_number_is_never_the_best():
    """Not as the first one either, which nothing could beat any more."""
    nan = float("nan")
    progress, best = looks(config(), "eval_loss", [9.0, nan, 2.0, nan, 1.0])
    assert best == [False, False, True, False, True]
    assert (progress.best_step, progress.best_metric, progress.best_eval_loss) == (4, 1.0, 1.0)


def test_an_evaluation_without_the_measure_says_nothing():
    """All references empty: neither a gain nor a loss of patience."""
    settings = config(metric_for_best_model="eval_rouge_l", early_stopping_patience=1)
    progress, _ = looks(settings, "eval_rouge_l", [None, 0.5, None, None, 0.6])
    assert progress.best_step == 4
    assert not progress.ended_early


def record(step, **values):
    usual = dict.fromkeys(
        """epoch loss learning_rate grad_norm loss_scale skipped_steps trained_tokens
        tokens_per_second step_seconds data_seconds peak_gib""".split(),
        1.0,
    )
    return StepRecord(step=step, **(usual | values))


def no_evaluation(**training):
    data = str(asset_path("demo/train.jsonl"))
    return config_from_mapping(
        {
            "model": {"model_name_or_path": str(TINY_MODEL)},
            "data": {"train": data},
            "training": {"output_dir": "run", **training},
        }
    )


def steps(settings, name, windows):
    """Looks after windows of steps with these values, nothing else being evaluated."""
    progress, best = Progress(), []
    for window in windows:
        for value in window:
            progress.step += 1
            note_step(progress, record(progress.step, **{name: value}), settings)
        best.append(note_evaluation(progress, {}, settings))
        if progress.ended_early:
            break
    return progress, best


def test_early_stopping_follows_a_measure_of_the_steps_without_any_validation():
    """The mean since the last look decides, so that one lucky step does not."""
    settings = no_evaluation(metric_for_best_model="loss", early_stopping_patience=2, eval_steps=2)
    progress, best = steps(settings, "loss", [(4.0, 2.0), (1.0, 2.0), (0.1, 5.0), (3.0, 3.0)])
    assert best == [True, True, False, False]
    assert progress.ended_early
    assert (progress.best_step, progress.best_metric) == (4, 1.5)
    assert early_end_line(progress, settings).startswith(
        "ended early after step 8: the mean loss of the steps between was not better than 1.5000"
    )


def test_more_speed_is_better_and_a_larger_norm_is_not():
    """Each measure of the steps knows its direction."""
    settings = no_evaluation(metric_for_best_model="tokens_per_second")
    assert steps(settings, "tokens_per_second", [(10.0,), (20.0,), (15.0,)])[0].best_step == 2
    settings = no_evaluation(metric_for_best_model="grad_norm")
    assert steps(settings, "grad_norm", [(10.0,), (20.0,), (5.0,)])[0].best_step == 3


def test_steps_without_a_finite_loss_are_in_no_mean():
    """A window of nothing else says nothing."""
    settings = no_evaluation(metric_for_best_model="loss", early_stopping_patience=1)
    nan = float("nan")
    progress, best = steps(settings, "loss", [(2.0, nan), (nan, nan), (1.0, nan)])
    assert best == [True, False, True]
    assert progress.best_metric == 1.0


def test_a_resumed_run_has_the_same_mean():
    """What the window holds is part of the progress that a checkpoint keeps."""
    settings = no_evaluation(metric_for_best_model="loss")
    progress = Progress()
    note_step(progress, record(1, loss=0.1), settings)
    note_step(progress, record(2, loss=0.7), settings)
    again = Progress.from_dict(json.loads(json.dumps(progress.to_dict())))
    assert again == progress


def reached():
    return Progress(step=9, best_metric=2.5, best_step=6, best_eval_loss=2.5,
                    evaluations_since_best=2, window_sum=3.0, window_steps=2)  # fmt: skip


@pytest.mark.parametrize("what", ["training.metric_for_best_model", "training.greater_is_better"])
def test_another_measure_is_not_compared_with_the_old_ones_best(what):
    """And waiting begins anew; the lowest validation loss stays what it is."""
    progress = reached()
    (line,) = best_begins_anew(progress, ["training.seed", what])
    assert line == (
        f"the best evaluation (so far 2.5000 at step 6) is looked for anew: {what} changed"
    )
    assert progress == Progress(step=9, best_eval_loss=2.5)
    settings = config(metric_for_best_model="eval_rouge_l")
    assert note_evaluation(progress, {"eval_rouge_l": 0.1}, settings)


def test_other_validation_rows_begin_the_lowest_loss_anew_too():
    progress = reached()
    assert best_begins_anew(progress, ["the validation data"])
    assert progress == Progress(step=9)


def test_what_is_best_stays_where_only_the_training_changed():
    progress = reached()
    assert best_begins_anew(progress, ["training.learning_rate", "data.train"]) == []
    assert best_begins_anew(Progress(step=9), ["the validation data"]) == []
    assert progress == reached()
