"""The best evaluation follows the chosen measure, and patience ends a run."""

import pytest

from glmforge.assets import asset_path
from glmforge.config import config_from_mapping
from glmforge.train.best import early_end_line, note_evaluation
from glmforge.train.state import Progress


def config(**training):
    data = str(asset_path("demo/validation.jsonl"))
    return config_from_mapping(
        {
            "model": {"model_name_or_path": str(asset_path("demo/model"))},
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


def test_an_evaluation_without_the_measure_says_nothing():
    """All references empty: neither a gain nor a loss of patience."""
    settings = config(metric_for_best_model="eval_rouge_l", early_stopping_patience=1)
    progress, _ = looks(settings, "eval_rouge_l", [None, 0.5, None, None, 0.6])
    assert progress.best_step == 4
    assert not progress.ended_early
