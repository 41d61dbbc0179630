"""One run in memory: everything the loop needs, and what happens between steps.

`Session` owns evaluation, saving, the best checkpoint and leaving on a signal; ``loop`` owns the
step, ``run`` owns the preparation.
"""

import shlex
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glmforge.config import RunConfig
from glmforge.data import Batch, BatchPlan, StepBatches
from glmforge.data.measures import usual_units
from glmforge.distributed.collectives import Ranks
from glmforge.errors import Stopped
from glmforge.plan.batch import BatchSizes
from glmforge.plan.report import Plan
from glmforge.train.answers import answer_values, answers_line
from glmforge.train.best import early_end_line, note_evaluation
from glmforge.train.checkpoint import name_of
from glmforge.train.evaluate import evaluate
from glmforge.train.metrics import Recorder
from glmforge.train.pace import ForwardClock, Pace, RankTimes
from glmforge.train.samples import SamplePrompt, generate_samples
from glmforge.train.saving import Saver
from glmforge.train.schedule import decay_count, learning_rate, warmup_count
from glmforge.train.signals import SignalFlag
from glmforge.train.state import Progress


def next_commands(run: Path, checkpoint: Path, *, is_adapter: bool) -> list[str]:
    """Say how to go on with a run that was stopped, and what its checkpoint can become.

    Relative paths, those in the run's config too, are read in the folder that is named first.
    """
    config, source = shlex.quote(str(run / "config.yaml")), shlex.quote(str(checkpoint))
    return [
        f"  in:          cd {shlex.quote(str(Path.cwd()))}",
        f"  go on:       glmforge train {config} --resume auto   (or your command again, with "
        "--resume auto)",
        f"  consolidate: glmforge consolidate {source} OUT",
        f"  export:      glmforge export {source} OUT{' --merge' if is_adapter else ''}",
    ]


@dataclass(slots=True, kw_only=True)
class Session:
    """A prepared run. Only `progress` changes while it goes on."""

    config: RunConfig
    directory: Path
    ranks: Ranks
    engine: Any
    tokenizer: Any
    plan: BatchPlan
    sizes: BatchSizes
    total_steps: int
    eval_batches: Sequence[Batch]
    prompts: Sequence[SamplePrompt]
    recorder: Recorder
    signals: SignalFlag
    progress: Progress
    zero_stage: int
    precision: str
    pad_to: int | None
    saver: Saver
    memory_plan: Plan | None = None
    """What was planned before the start."""
    begun_at: int = 0
    """The step after which this start of the run goes on."""
    started: float = field(default_factory=time.perf_counter)
    batches: StepBatches | None = None
    """Of the step that is being done, or was done last."""
    clock: ForwardClock | None = None
    pace: Pace = field(default_factory=Pace)

    @property
    def is_lora(self) -> bool:
        """Whether adapters are trained and the base is frozen."""
        return self.config.trains_adapter

    @property
    def finished(self) -> bool:
        """Whether the last step is done, or early stopping made one the last."""
        return self.progress.step == self.total_steps or self.progress.ended_early

    @property
    def checkpoints(self) -> Path:
        """The directory that holds all checkpoints of the run."""
        return self.directory / "checkpoints"

    def step_batches(self, epoch: int, step_in_epoch: int) -> StepBatches:
        """Return this rank's micro-batches of one step."""
        self.batches = self.plan.rank_batches(
            epoch,
            step_in_epoch,
            rank=self.ranks.rank,
            world_size=self.ranks.world_size,
            micro_batch=self.sizes.micro_batch,
            accumulation=self.sizes.accumulation,
            pad_to=self.pad_to,
        )
        return self.batches

    def position(self) -> tuple[int, int]:
        """Return (updates done, micro-batches done) for the heartbeat."""
        return self.progress.step, int(self.engine.micro_steps)

    def forward_seconds(self) -> float:
        """Return this rank's own seconds in the forward passes of the step just done."""
        if self.clock is None:
            self.clock = ForwardClock(self.engine.module, self.ranks.device)
        return self.clock.take()

    def note_pace(self, gathered: Sequence[Sequence[float]]) -> None:
        """Compare the ranks' own times of a step; name a rank that makes the others wait."""
        times = [
            RankTimes(data_seconds=row[2], forward_seconds=row[6], computed_tokens=row[7])
            for row in gathered
        ]
        for line in self.pace.observe(times):
            self.recorder.say(line)

    def learning_rate(self) -> float:
        """Return the learning rate of the next update."""
        training = self.config.training
        return learning_rate(
            self.progress.step,
            peak=training.learning_rate,
            total_steps=self.total_steps,
            warmup_steps=warmup_count(
                self.total_steps, training.warmup_steps, training.warmup_ratio
            ),
            kind=training.lr_scheduler_type,
            decay_steps=decay_count(self.total_steps, training.decay_steps, training.decay_ratio),
        )

    def after_step(self, *, stop_signal: int) -> None:
        """Evaluate, save and leave as the step just done asks for.

        Nothing is saved of a step that was lost, unless an evaluation finds it the best so far:
        its weights may be spoilt, and would take the place of whole ones.

        Args:
            stop_signal: number of the signal that some rank received, 0 for none.

        Raises:
            Stopped: on a signal, after the checkpoint is written.
        """
        step, lost = self.progress.step, self.progress.lost_in_a_row
        stopping = bool(stop_signal) and not self.finished
        is_best = self.look() if self.look_is_due() and not stopping else False
        due = stopping or step % self.config.training.save_steps == 0
        if self.finished or is_best or (due and not lost):
            self.save(is_best=is_best, wait=self.finished or stopping)
        else:
            self.saver.poll()
        if stopping:
            raise Stopped(self._stopped(signal.Signals(stop_signal).name))

    def _stopped(self, name: str) -> str:
        """What a run that a signal has stopped says: its checkpoint, and how to go on."""
        step, lost = self.progress.step, self.progress.lost_in_a_row
        said = f"{name}: stopped after step {step} of {self.total_steps}; "
        checkpoint: Path | None = self.checkpoints / name_of(step)
        if lost:
            self.saver.finish()
            checkpoint = self.last_checkpoint()
            said += f"nothing was saved of its last {lost} step(s), which were lost; "
        if checkpoint is None:
            return said + "there is no checkpoint yet: with --resume auto the run begins again"
        commands = next_commands(self.directory, checkpoint, is_adapter=self.config.trains_adapter)
        return "\n".join([f"{said}the checkpoint is {checkpoint}", *commands])

    def last_checkpoint(self) -> Path | None:
        """Return the newest checkpoint that has its name, None before the first."""
        pointer = self.checkpoints / "latest"
        if not pointer.exists():
            return None
        return self.checkpoints / pointer.read_text(encoding="utf-8").strip()

    def begin(self) -> None:
        """Look at the model before the first step, or where a signal had left no time for it."""
        if self.look_is_due() and self.progress.looked_step != self.progress.step and self.look():
            self.save(is_best=True)

    def look_is_due(self) -> bool:
        """Whether the model is evaluated at this step: first, last, epoch's end, eval_steps."""
        step, eval_steps = self.progress.step, self.config.training.eval_steps
        ended = step in (0, self.total_steps) or step % self.plan.steps_per_epoch == 0
        return ended or (eval_steps is not None and step % eval_steps == 0)

    def look(self) -> bool:
        """Evaluate, answer the prompts and score both; return whether this is the best so far."""
        progress = self.progress
        progress.looked_step = progress.step
        values: dict[str, Any] = {
            "step": progress.step,
            "epoch": progress.step / self.plan.steps_per_epoch,
        }
        if self.eval_batches:
            result = evaluate(self.engine, self.eval_batches, self.ranks)
            values |= {"eval_loss": result.loss, "eval_tokens": result.tokens}
        if self.prompts:
            values |= self._answer_prompts()
        if self.eval_batches or self.prompts:
            self.recorder.evaluation(values)
        if self.prompts:
            self.recorder.say(answers_line(values, len(self.prompts)))
        is_best = note_evaluation(progress, values, self.config)
        if progress.ended_early:
            self.recorder.say(early_end_line(progress, self.config))
        return is_best

    def _answer_prompts(self) -> dict[str, Any]:
        """Generate and record the sample answers; return what they measure, alike on all ranks."""
        rows = generate_samples(
            self.engine.module,
            self.tokenizer,
            self.prompts,
            self.ranks,
            max_new_tokens=self.config.generation.max_new_tokens,
            zero_stage=self.zero_stage,
        )
        self.recorder.samples(self.progress.step, rows)
        # Rank 0 counts for all: machines may differ in whether jieba is installed.
        measured = answer_values(rows, usual_units()) if self.ranks.is_main else None
        found: dict[str, Any] = self.ranks.agree(measured)
        return found

    def save(self, *, is_best: bool, wait: bool = False) -> None:
        """Write a checkpoint, name it best where it is, and delete those beyond the limit.

        Args:
            is_best: whether the step's evaluation is the best so far.
            wait: whether it must be whole on return; else a background write may be under way.
        """
        self.saver.save(self.progress, is_best=is_best, wait=wait)
