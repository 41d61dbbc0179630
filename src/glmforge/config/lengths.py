"""Settings that count steps, held against the number of steps of the run.

What lies beyond the last step never acts. ``rules`` asks here where ``training.max_steps`` gives
the number, ``train.methods`` again once the data does; `save_steps` and `logging_steps` may lie
beyond it: that is how their defaults are switched off.
"""

import math
from collections.abc import Callable, Iterator

Getter = Callable[[str], object]
"""Gives the value of a dotted setting: the written one, else its default."""


def step_count(total_steps: int, steps: int | None, ratio: float) -> int:
    """Return `steps` where they are given, else the ratio of the total, rounded up."""
    return steps if steps is not None else math.ceil(ratio * total_steps)


def idle_steps(
    get: Getter, total_steps: int, steps_per_epoch: int | None = None
) -> Iterator[tuple[str, str]]:
    """Give each setting that never acts in so many steps, with the reason.

    Args:
        get: of the run's settings.
        total_steps: updates of the whole run.
        steps_per_epoch: updates of an epoch; None: not known, evaluations may be at every step.
    """
    eval_steps = _number(get("training.eval_steps"))
    if eval_steps is not None and eval_steps > total_steps:
        yield (
            "training.eval_steps",
            f"the run ends at step {total_steps}, and is evaluated there and at its epochs' ends "
            f"without it: write less than {eval_steps}, or leave it out",
        )
    patience = _number(get("training.early_stopping_patience"))
    if patience is None:
        return
    looks = total_steps - 1
    if steps_per_epoch is not None:
        looks = _looks_on_the_way(total_steps, steps_per_epoch, eval_steps)
    if looks < patience + 1:
        often = (total_steps - 1) // (patience + 1)
        ways = [f"evaluate more often (training.eval_steps={often})"] if often else []
        ways += [f"write {looks - 1} or less"] if looks > 1 else []
        last = "or leave it out" if ways else "leave it out"
        most = "" if steps_per_epoch is not None else "at most "
        yield (
            "training.early_stopping_patience",
            f"the run has {most}{looks} evaluation(s) before its last step {total_steps}, and with "
            f"{patience} it takes {patience + 1} to end a run early (the first is what the others "
            f"are compared with): {', '.join([*ways, last])}",
        )


def _looks_on_the_way(total_steps: int, steps_per_epoch: int, eval_steps: int | None) -> int:
    """Count the evaluations after a step and before the last one."""
    last = total_steps - 1
    if eval_steps is None:
        return last // steps_per_epoch
    both = math.lcm(steps_per_epoch, eval_steps)
    return last // steps_per_epoch + last // eval_steps - last // both


def misfit_schedule(get: Getter, total_steps: int) -> Iterator[tuple[str, str]]:
    """Give (setting, sentence) where warm-up and fall do not fit into so many steps."""
    warmup_steps = _number(get("training.warmup_steps"))
    kind = get("training.lr_scheduler_type")
    if kind == "warmup_stable_decay":
        warmup = step_count(total_steps, warmup_steps, _ratio(get("training.warmup_ratio")))
        decay_steps = _number(get("training.decay_steps"))
        decay = step_count(total_steps, decay_steps, _ratio(get("training.decay_ratio")))
        if warmup + decay > total_steps:
            named = "warmup_steps" if decay_steps is None and warmup_steps else "decay_steps"
            yield (
                f"training.{named}",
                f"training.lr_scheduler_type is {kind} with {warmup} warm-up step(s) and {decay} "
                f"decay step(s), but the run has {total_steps} step(s): lower "
                "training.warmup_steps (or warmup_ratio) or training.decay_steps (or decay_ratio)",
            )
    elif warmup_steps is not None and warmup_steps >= max(1, total_steps):
        yield (
            "training.warmup_steps",
            f"training.warmup_steps is {warmup_steps}, but the run has {total_steps} step(s), so "
            "the learning rate would never get to training.learning_rate: write "
            f"{total_steps - 1} or less, or training.warmup_ratio in its place",
        )


def _number(value: object) -> int | None:
    """A count of steps; None where it is not written, or is not one (its type is told apart)."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _ratio(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
