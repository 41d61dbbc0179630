"""Settings that count steps are held against training.max_steps, where it is written."""

from collections.abc import Callable
from pathlib import Path

import pytest

from glmforge.config import load_config_file

GOOD = """\
model:
  model_name_or_path: models/glm
data: {train: t.jsonl, validation: v.jsonl}
training:
  output_dir: run
"""
IDLE = "  max_steps: 8\n  eval_steps: 9\n  early_stopping_patience: 7\n  warmup_steps: 9\n"

Problems = Callable[..., list[str]]
Write = Callable[[str], Path]


def test_what_lies_beyond_the_last_step_is_refused_with_its_line(problems: Problems) -> None:
    """All at once; looks at as many steps as the run has are no fault."""
    looks, patience, warmup = problems(GOOD + IDLE)
    assert looks.startswith("c.yaml:7: training.eval_steps has no effect: the run ends at step 8")
    assert patience.startswith(
        "c.yaml:8: training.early_stopping_patience has no effect: the run has at most 7 eval"
    )
    assert "it takes 8" in patience
    assert warmup.startswith(
        "c.yaml:9: training.warmup_steps is 9, but the run has 8 step(s), so the learning rate"
    )


def test_as_many_steps_as_the_run_has_are_no_fault(write: Write) -> None:
    text = IDLE.replace("warmup_steps: 9", "warmup_steps: 7").replace("9", "8")
    text = text.replace("patience: 7", "patience: 6")
    assert load_config_file(write(GOOD + text)).training.early_stopping_patience == 6


def test_a_warm_up_as_long_as_the_run_never_gets_to_the_peak(problems: Problems) -> None:
    """The last of 8 updates has 7/8 of the rate: 7 is the longest that gets there."""
    (said,) = problems(GOOD + "  max_steps: 8\n  warmup_steps: 8\n")
    assert "write 7 or less" in said


def test_intervals_that_switch_a_default_off_may_lie_beyond_the_end(write: Write) -> None:
    """The default save_steps does in any short run; a written one saves at the end only."""
    text = GOOD + "  max_steps: 8\n  save_steps: 1000\n  logging_steps: 50\n"
    assert load_config_file(write(text)).training.save_steps == 1000
    assert load_config_file(write(GOOD + "  max_steps: 1\n")).training.save_steps == 500


def test_a_trial_of_few_steps_drops_what_the_file_evaluates_later(write: Write) -> None:
    """As all that the command line leaves without effect; the run's own config reads back."""
    text = GOOD + "  max_steps: 2000\n  eval_steps: 500\n  early_stopping_patience: 3\n"
    config = load_config_file(write(text), ["training.max_steps=2"])
    assert config.training.eval_steps is None
    assert config.training.early_stopping_patience is None
    assert load_config_file(write(config.to_yaml())) == config


@pytest.mark.parametrize(("decay", "line"), [("  decay_steps: 3\n", 9), ("", 8)])
def test_a_fall_that_does_not_fit_beside_the_warm_up_is_refused_with_its_line(
    problems: Problems, decay: str, line: int
) -> None:
    """The three numbers."""
    text = "  max_steps: 8\n  lr_scheduler_type: warmup_stable_decay\n"
    (problem,) = problems(GOOD + text + f"  warmup_steps: {6 if decay else 8}\n" + decay)
    assert problem.startswith(f"c.yaml:{line}: training.lr_scheduler_type is warmup_stable_decay")
    assert "but the run has 8 step(s)" in problem


def test_a_number_of_steps_that_is_none_is_told_alone(problems: Problems) -> None:
    """Nothing is counted with it."""
    (problem,) = problems(GOOD + "  max_steps: many\n  eval_steps: 9\n  warmup_steps: 9\n")
    assert problem.startswith("c.yaml:6: training.max_steps is 'many'")
    (problem,) = problems(GOOD + "  max_steps: 8\n  warmup_steps: -9\n")
    assert problem.startswith("c.yaml:7: training.warmup_steps is -9")
