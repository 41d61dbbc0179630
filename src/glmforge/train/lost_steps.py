"""Steps without a finite loss or gradient: counted, and the end of a run that has too many.

The engine leaves the weights as they were in such a step, on all ranks together (it checks the
reduced gradients), except at stage 0 in fp32, where the first one has spoilt them. fp16's loss
scale makes gradients overflow now and then by design: those steps count as skipped only.
"""

import math

from glmforge.errors import TrainingError
from glmforge.train.checkpoint import step_of
from glmforge.train.metrics import StepRecord
from glmforge.train.session import Session

MOST_LOST_STEPS = 10
"""Steps in a row without a finite loss or gradient after which a run ends."""
_NAMED_ROWS = 8


def what_was_lost(record: StepRecord, *, skipped: bool, precision: str, stage: int) -> str | None:
    """Say what of a step was not finite, or None.

    Args:
        record: the step.
        skipped: whether the engine made no update of it.
        precision: of the run.
        stage: ZeRO's.
    """
    if not math.isfinite(record.loss):
        return f"the loss was {record.loss}"
    if precision == "fp16":
        return None
    # Elsewhere a norm that is no number only says that the engine keeps none.
    spoilt = stage == 0 and precision == "fp32" and math.isnan(record.grad_norm)
    if skipped or spoilt or math.isinf(record.grad_norm):
        return f"the gradients were not finite (loss {record.loss:.4f})"
    return None


def stop_on_lost_steps(session: Session, record: StepRecord, *, skipped: bool) -> None:
    """Count steps that are lost; end the run after too many in a row.

    Args:
        session: of the run.
        record: the step just done.
        skipped: whether the engine made no update of it.

    Raises:
        TrainingError: too many in a row, or one that has spoilt the weights.
    """
    progress = session.progress
    lost = what_was_lost(
        record, skipped=skipped, precision=session.precision, stage=session.zero_stage
    )
    if lost is None:
        progress.lost_in_a_row = 0
        return
    progress.lost_in_a_row += 1
    unguarded = session.zero_stage == 0 and session.precision == "fp32"
    done = "the weights are spoilt (stage 0 in fp32)" if unguarded else "no update was made"
    session.recorder.say(f"step {record.step}: {lost}; {done}")
    if progress.lost_in_a_row < MOST_LOST_STEPS and not unguarded:
        return
    other = ", training.precision=bf16 where the GPU has it" if session.precision == "fp16" else ""
    guard = ", deepspeed.zero_optimization.stage=1 (it skips such steps)" if unguarded else ""
    raise TrainingError(
        f"step {record.step}: {lost}, for {progress.lost_in_a_row} step(s) in a row (learning rate "
        f"{record.learning_rate:.3g}). Try a lower training.learning_rate, a longer warm-up{other}"
        f"{guard}; if it began at one step, look at its rows ({_rows(session, record)}; glmforge "
        f"data check). Last checkpoint: {_last_checkpoint(session, record)}"
    )


def _last_checkpoint(session: Session, record: StepRecord) -> str:
    """Name it; one of the step just before the first lost one may hold the spoilt weights."""
    checkpoint = session.last_checkpoint()
    if checkpoint is None:
        return "none yet"
    if step_of(checkpoint.name) != record.step - session.progress.lost_in_a_row:
        return checkpoint.name
    older = [path.name for path in checkpoint.parent.glob("step-*") if path != checkpoint]
    before = max(older, key=step_of, default=None)
    way = f"move it away to go on from {before}" if before else "there is no older one"
    return (
        f"{checkpoint.name}; the very next step was lost, so its weights may be spoilt: if a "
        f"resumed run loses its first step too, {way}"
    )


def _rows(session: Session, record: StepRecord) -> str:
    """Name the dialogues of a step by file and line."""
    sources = session.plan.sources(*divmod(record.step - 1, session.plan.steps_per_epoch))
    more = f" and {len(sources) - _NAMED_ROWS} more" if len(sources) > _NAMED_ROWS else ""
    return ", ".join(sources[:_NAMED_ROWS]) + more
