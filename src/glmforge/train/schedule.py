"""The learning rate as a pure function of the number of updates already done.

No scheduler state exists, so a resumed run cannot have another learning rate than the run that
never stopped.
"""

import math

from glmforge.config.lengths import step_count
from glmforge.config.training_settings import TrainingSettings


def warmup_count(total_steps: int, warmup_steps: int | None, warmup_ratio: float) -> int:
    """Return the warm-up length in steps: `warmup_steps`, or the ratio of the total, rounded up."""
    return step_count(total_steps, warmup_steps, warmup_ratio)


def decay_count(total_steps: int, decay_steps: int | None, decay_ratio: float) -> int:
    """Return the length of the fall of `warmup_stable_decay` in steps, rounded up."""
    return step_count(total_steps, decay_steps, decay_ratio)


def learning_rate(
    done_steps: int,
    *,
    peak: float,
    total_steps: int,
    warmup_steps: int,
    kind: str,
    decay_steps: int = 0,
) -> float:
    """Return the learning rate of the next update.

    Args:
        done_steps: updates done before it (0 for the first).
        peak: the rate after warm-up.
        total_steps: updates of the whole run.
        warmup_steps: linear rise from 0 over this many updates.
        kind: "linear" and "cosine" fall to 0 at `total_steps`; "constant" stays;
            "warmup_stable_decay" stays and falls over the last `decay_steps`.
        decay_steps: updates of that fall.

    The formulas are transformers' `get_linear_schedule_with_warmup`,
    `get_cosine_schedule_with_warmup` (half a period) and `get_wsd_schedule` (cosine fall).
    """
    if done_steps < warmup_steps:
        return peak * done_steps / max(1, warmup_steps)
    if kind == "warmup_stable_decay":
        left = total_steps - done_steps
        fallen = min(1.0, max(0.0, 1.0 - left / max(1, decay_steps)))
        return peak * 0.5 * (1.0 + math.cos(math.pi * fallen))
    progress = (done_steps - warmup_steps) / max(1, total_steps - warmup_steps)
    progress = min(1.0, progress)
    if kind == "linear":
        return peak * (1.0 - progress)
    if kind == "cosine":
        return peak * 0.5 * (1.0 + math.cos(math.pi * progress))
    assert kind == "constant", kind
    return peak


def rate_at(training: TrainingSettings, total_steps: int, done_steps: int) -> float:
    """Return the learning rate of a run's settings for the update after `done_steps` updates."""
    return learning_rate(
        done_steps,
        peak=training.learning_rate,
        total_steps=total_steps,
        warmup_steps=warmup_count(total_steps, training.warmup_steps, training.warmup_ratio),
        kind=training.lr_scheduler_type,
        decay_steps=decay_count(total_steps, training.decay_steps, training.decay_ratio),
    )
