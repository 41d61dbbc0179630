"""Which evaluation was the best so far, and when waiting for a better one ends.

Pure bookkeeping on `Progress`, called by ``session`` after each evaluation on all ranks alike: the
values are the same on every rank, so the decisions are too.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from glmforge.config import RunConfig
from glmforge.config.training_settings import STEP_METRICS
from glmforge.train.changes import VALIDATION
from glmforge.train.metrics import StepRecord
from glmforge.train.state import Progress

_LOWER_IS_BETTER = frozenset(
    """eval_loss eval_repetition eval_empty_answers eval_empty_references loss grad_norm
    skipped_steps step_seconds data_seconds peak_gib""".split()
)

_DECIDES = frozenset({"training.metric_for_best_model", "training.greater_is_better"})
"""Settings that say what is best."""
_MEASURES = frozenset({VALIDATION, "data.validation", "data.validation_size"})
"""What changes the rows that evaluations measure."""


def note_step(progress: Progress, record: StepRecord, config: RunConfig) -> None:
    """Add a step to the mean of the metric since the last evaluation, where it is of the steps.

    A value that is not finite (a step that made no update) is left out.
    """
    name = config.training.metric_for_best_model
    if name in STEP_METRICS and math.isfinite(value := float(getattr(record, name))):
        progress.window_sum += value
        progress.window_steps += 1


def _metric(progress: Progress, values: Mapping[str, Any], name: str) -> float | None:
    """Return the metric of an evaluation; a mean over steps is taken and begins anew."""
    if name not in STEP_METRICS:
        return values.get(name)
    steps, total = progress.window_steps, progress.window_sum
    progress.window_steps, progress.window_sum = 0, 0.0
    return total / steps if steps else None


def note_evaluation(progress: Progress, values: Mapping[str, Any], config: RunConfig) -> bool:
    """Take one evaluation into `progress`; return whether it is the best after a step.

    Where `training.early_stopping_patience` evaluations in a row were no better than the best,
    `progress.ended_early` becomes true. An evaluation that could not measure the metric (all
    references empty) says nothing.

    Args:
        progress: of the run; its step is the one that was evaluated.
        values: what was measured, by the names of metrics.jsonl.
        config: of the run.
    """
    training = config.training
    loss = values.get("eval_loss")
    if loss is not None and math.isfinite(loss) and progress.step > 0:
        lowest = progress.best_eval_loss
        progress.best_eval_loss = loss if lowest is None else min(lowest, loss)
    value = _metric(progress, values, training.metric_for_best_model)
    if value is None or progress.step == 0:
        return False
    greater = training.greater_is_better
    if greater is None:
        greater = training.metric_for_best_model not in _LOWER_IS_BETTER
    best = progress.best_metric
    # NaN, of spoilt weights, is never the best, also where nothing else was measured yet.
    if math.isfinite(value) and (best is None or (value > best if greater else value < best)):
        progress.best_metric, progress.best_step = value, progress.step
        progress.evaluations_since_best = 0
        return True
    progress.evaluations_since_best += 1
    patience = training.early_stopping_patience
    progress.ended_early = patience is not None and progress.evaluations_since_best >= patience
    return False


def best_begins_anew(progress: Progress, changed: Sequence[str]) -> list[str]:
    """Forget the best value where another metric, or other rows, will be compared with it.

    Args:
        progress: of the run that goes on.
        changed: what is no longer as it was, as ``changes`` names it.

    Returns:
        A line for people, where something was forgotten.
    """
    reasons = [what for what in changed if what in _DECIDES or what in _MEASURES]
    if not reasons or (progress.best_metric is None and progress.best_eval_loss is None):
        return []
    if any(what in _MEASURES for what in reasons):
        progress.best_eval_loss = None
    return [forget_best(progress, f"{', '.join(reasons)} changed")]


def forget_best(progress: Progress, why: str) -> str:
    """Look for the best evaluation anew; return a line for people that says why."""
    before = progress.best_metric
    said = "" if before is None else f" (so far {before:.4f} at step {progress.best_step})"
    progress.best_metric = progress.best_step = None
    progress.evaluations_since_best = 0
    progress.window_sum, progress.window_steps = 0.0, 0
    return f"the best evaluation{said} is looked for anew: {why}"


def early_end_line(progress: Progress, config: RunConfig) -> str:
    """Say why a run ends before its last step."""
    name = config.training.metric_for_best_model
    what = f"the mean {name} of the steps between" if name in STEP_METRICS else name
    return (
        f"ended early after step {progress.step}: {what} was not "
        f"better than {progress.best_metric:.4f} (step {progress.best_step}) in "
        f"{progress.evaluations_since_best} evaluation(s) in a row"
    )
