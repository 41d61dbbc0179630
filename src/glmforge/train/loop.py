"""The training loop: one step readable from top to bottom.

The loss of a step is the sum of nll over all trained tokens of all micro-batches and ranks,
divided by their number. The number is known before the first forward (the batch plan is the same
on every rank), so each micro-batch's share is exact whatever the split.
"""

import time
from typing import Any

from glmforge.data import StepBatches
from glmforge.distributed.collectives import Ranks
from glmforge.errors import TrainingError
from glmforge.train.best import note_step
from glmforge.train.engine import (
    local_gradient_norm,
    loss_scale,
    reported_norm,
    set_learning_rate,
)
from glmforge.train.lost_steps import stop_on_lost_steps
from glmforge.train.memory_plan import note_peak
from glmforge.train.metrics import StepRecord, peak_gib
from glmforge.train.session import Session


def train_step(engine: Any, batches: StepBatches, rate: float, ranks: Ranks) -> tuple[float, float]:
    """Do one optimizer update; return this rank's share of the loss and the gradient norm.

    DeepSpeed averages gradients over ranks, so each rank's loss is Σ nll / (trained tokens of the
    step / world_size): the average is Σ over ranks of Σ nll / trained tokens. The engine's own
    division by the accumulation count is switched off: the token count already covers it. (The
    loss must be a tensor computed from the engine's output, not the output itself, or DeepSpeed
    0.19.8 divides at stage 0 all the same; tests/dist holds this.)
    """
    engine.train()
    set_learning_rate(engine, rate)
    tokens_per_rank = max(1, batches.trained_tokens) / ranks.world_size  # all fillers: loss 0
    share = 0.0
    for batch in batches.micro_batches:
        inputs = batch.to(ranks.device).model_inputs()
        loss = engine(**inputs, num_items_in_batch=tokens_per_rank).loss
        engine.backward(loss * 1.0, scale_wrt_gas=False)
        if engine.is_gradient_accumulation_boundary():
            norm_before = local_gradient_norm(engine)
        update(engine)
        share += loss.detach().double() / ranks.world_size
        del loss  # with checkpointing its graph would hold the first layer's input and gradient
    norm = norm_before if norm_before is not None else reported_norm(engine)
    return float(share), norm


def update(engine: Any) -> None:
    """Let the engine end the micro-batch, and the step where it is the last one.

    Raises:
        TrainingError: fp16's loss scale is at its minimum and the gradients still overflow.
    """
    try:
        engine.step()
    except Exception as error:
        if "loss scale already at minimum" not in str(error):
            raise
        raise TrainingError(
            f"fp16: the gradients overflow even at the smallest loss scale ({loss_scale(engine)}): "
            "use training.precision=bf16 where the GPU has it, or a lower training.learning_rate; "
            "models trained in bf16 often overflow in fp16. The last checkpoint is untouched"
        ) from error


def train_loop(session: Session) -> None:
    """Train from the session's step to its last, evaluating and saving on the way.

    Raises:
        TrainingError: too many steps in a row without a finite loss or gradient, or fp16 at its
            limit.
        Stopped: a signal asked for it; the checkpoint is written.
    """
    plan, ranks, progress = session.plan, session.ranks, session.progress
    mark = time.perf_counter()
    while not session.finished:
        epoch, step_in_epoch = divmod(progress.step, plan.steps_per_epoch)
        batches = session.step_batches(epoch, step_in_epoch)
        data_seconds = time.perf_counter() - mark
        rate = session.learning_rate()
        share, norm = train_step(session.engine, batches, rate, ranks)
        now = time.perf_counter()
        gathered = ranks.gather_floats(
            [
                share,
                now - mark,
                data_seconds,
                peak_gib(ranks.device),
                float(sum(batch.tokens for batch in batches.micro_batches)),
                float(session.signals.received or 0),
                session.forward_seconds(),
                float(sum(batch.input_ids.numel() for batch in batches.micro_batches)),
            ]
        )
        progress.step += 1
        skipped = int(session.engine.skipped_steps) > progress.skipped_steps
        progress.skipped_steps = int(session.engine.skipped_steps)
        record = StepRecord(
            step=progress.step,
            epoch=progress.step / plan.steps_per_epoch,
            loss=sum(row[0] for row in gathered),
            learning_rate=rate,
            grad_norm=norm,
            loss_scale=loss_scale(session.engine),
            skipped_steps=progress.skipped_steps,
            trained_tokens=batches.trained_tokens,
            tokens_per_second=batches.tokens / max(row[1] for row in gathered),
            step_seconds=max(row[1] for row in gathered),
            data_seconds=max(row[2] for row in gathered),
            peak_gib=max(row[3] for row in gathered),
        )
        session.recorder.step(record, gathered)
        session.note_pace(gathered)
        note_peak(session, record)
        note_step(progress, record, session.config)
        stop_on_lost_steps(session, record, skipped=skipped)
        session.after_step(stop_signal=int(max(row[5] for row in gathered)))
        mark = time.perf_counter()
