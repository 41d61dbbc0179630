"""How long a run is: steps, rows and tokens of each, and which settings miss its end.

Pure arithmetic on counts of the data and the batch equation; ``train/`` computes the same numbers
exactly when it starts.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glmforge.config import RunConfig
from glmforge.config.training_settings import STEP_METRICS
from glmforge.plan.batch import UNPACKED_ACCUMULATION, BatchSizes
from glmforge.plan.choice import batch_settings, names_batch
from glmforge.plan.data_facts import DataFacts

FEW_STEPS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLength:
    """Optimizer steps of a run, and what one of them sees."""

    rows_per_step: int
    dialogues_per_step: float
    trained_tokens_per_step: float
    steps_per_epoch: int
    total_steps: int
    epochs: float

    def sentence(self) -> str:
        """All of it in one line."""
        rows = "row" if self.rows_per_step == 1 else "rows"
        return (
            f"{self.rows_per_step} {rows}, about {self.dialogues_per_step:,.0f} dialogue(s) and "
            f"{self.trained_tokens_per_step:,.0f} trained tokens a step; "
            f"{self.steps_per_epoch:,} step{'' if self.steps_per_epoch == 1 else 's'} an epoch, "
            f"{self.total_steps:,} in all ({self.epochs:.3g} epochs)"
        )


def run_length(config: RunConfig, facts: DataFacts, sizes: BatchSizes) -> RunLength:
    """Work out the steps of a run."""
    training = config.training
    rows = min(sizes.global_batch, facts.rows)
    per_epoch = max(1, -(-facts.rows // sizes.global_batch))
    if training.max_steps is not None:
        total = training.max_steps
    else:
        total = math.ceil(per_epoch * training.num_train_epochs)
    share = rows / max(1, facts.rows)
    return RunLength(
        rows_per_step=rows,
        dialogues_per_step=facts.dialogues * share,
        trained_tokens_per_step=facts.trained_tokens * share,
        steps_per_epoch=per_epoch,
        total_steps=total,
        epochs=total / per_epoch,
    )


def evaluations(config: RunConfig, length: RunLength) -> set[int]:
    """Return the steps whose evaluation may be the best so far, and is a checkpoint then.

    Every epoch's end, the last step, and every eval_steps; none where the metric is not measured.
    """
    training, total = config.training, length.total_steps
    if not _has_best(config):
        return set()
    looks = {total, *range(length.steps_per_epoch, total + 1, length.steps_per_epoch)}
    return looks.union(range(training.eval_steps or total, total + 1, training.eval_steps or total))


def _has_best(config: RunConfig) -> bool:
    """Whether evaluations measure what the best checkpoint is chosen by."""
    data, metric = config.data, config.training.metric_for_best_model
    validated = data.validation is not None or data.validation_size is not None
    answered = config.generation.prompts is not None and metric != "eval_loss"
    return metric in STEP_METRICS or validated or answered


def most_checkpoints(config: RunConfig, length: RunLength | None) -> int:
    """Return how many checkpoints lie on the disk at once, the one being written included.

    Those that are kept, the best one, and one more; in a short run no more than are written at all:
    every save_steps, at the last step, and at evaluations that may be the best so far.
    """
    training = config.training
    kept = training.save_total_limit + _has_best(config) + 1
    if length is None:
        return kept
    total = length.total_steps
    regular = range(training.save_steps, total + 1, training.save_steps)
    return min(kept, len({total, *regular} | evaluations(config, length)))


def length_warnings(
    config: RunConfig,
    facts: DataFacts,
    sizes: BatchSizes,
    length: RunLength,
    user_map: Mapping[str, Any],
) -> list[str]:
    """Name what a short run means, and the settings that lie beyond its last step."""
    training, said = config.training, []
    if sizes.world_size > facts.rows:
        idle = sizes.world_size - facts.rows
        packed = ", or data.packing=false" if facts.packed and facts.dialogues > facts.rows else ""
        said.append(
            f"{sizes.world_size} ranks outnumber the {facts.rows} row(s) of the data: {idle} of "
            f"them get filler rows at every step and train nothing; use {max(1, facts.rows)} "
            f"card(s) or fewer{packed}"
        )
    if length.total_steps < FEW_STEPS:
        said.append(_few_steps(config, facts, sizes, length, user_map))
    warmup = training.warmup_steps
    if warmup is not None and warmup >= length.total_steps:
        said.append(
            f"training.warmup_steps is {warmup}, but the run ends at step {length.total_steps}: "
            f"the learning rate never gets to {training.learning_rate:g}"
        )
    for name, value in (("save_steps", training.save_steps), ("eval_steps", training.eval_steps)):
        if name not in training.model_fields_set:
            continue  # a default is nobody's mistake
        if value is not None and value > length.total_steps:
            what = (
                _what_is_saved(config, length)
                if name == "save_steps"
                else "the run is evaluated at its epochs' ends and its last step only"
            )
            said.append(
                f"training.{name} is {value}, but the run ends at step {length.total_steps}: {what}"
            )
    return said


def _what_is_saved(config: RunConfig, length: RunLength) -> str:
    """Say which checkpoints a run writes whose save_steps never come."""
    earlier = len(evaluations(config, length) - {length.total_steps})
    if not earlier:
        return "only the last checkpoint is written"
    often = "1 evaluation" if earlier == 1 else f"{earlier:,} evaluations"
    eval_steps = config.training.eval_steps
    when = "epochs' ends" + (f", eval_steps {eval_steps}" if eval_steps else "")
    return (
        f"a checkpoint is written at the last step, and before it only where one of {often} "
        f"({when}) is the best so far; at most {most_checkpoints(config, length)} lie on the disk "
        "at a time"
    )


def _few_steps(
    config: RunConfig,
    facts: DataFacts,
    sizes: BatchSizes,
    length: RunLength,
    user_map: Mapping[str, Any],
) -> str:
    """Say what gives more steps; a smaller batch is written in the DeepSpeed map too."""
    if config.training.max_steps is not None:
        return _few_by_max_steps(config, length)
    text = (
        f"{length.total_steps} optimizer steps in all are few: at equal epochs, more cards and "
        "packing make fewer and larger updates"
    )
    unpacked_batch = sizes.micro_batch * UNPACKED_ACCUMULATION * sizes.world_size
    epochs = config.training.num_train_epochs
    unpacked = math.ceil(-(-facts.dialogues // unpacked_batch) * epochs)
    if facts.packed and unpacked > length.total_steps:
        smaller = sizes.global_batch * length.total_steps // unpacked
        if smaller >= sizes.world_size:
            rows = smaller // sizes.world_size
            setting = " ".join(batch_settings(user_map, rows, 1, sizes.world_size))
        else:
            setting = f"training.max_steps={unpacked}"
        return f"{text}. Without packing there would be {unpacked}: {setting} gives about as many"
    if sizes.accumulation > 1:
        setting = "training.gradient_accumulation_steps=1"
        if names_batch(user_map):  # which may have decided the micro-batch
            setting = " ".join(batch_settings(user_map, sizes.micro_batch, 1, sizes.world_size))
        return f"{text}. {setting} gives {sizes.accumulation} times as many"
    wanted = max(epochs + 1, math.ceil(epochs * FEW_STEPS / length.total_steps))
    return f"{text}. training.num_train_epochs={wanted:g} gives {FEW_STEPS} or more"


def _few_by_max_steps(config: RunConfig, length: RunLength) -> str:
    """Say that max_steps is the reason, and what the epochs would give."""
    training = config.training
    epochs = training.num_train_epochs
    whole = math.ceil(length.steps_per_epoch * epochs)
    text = (
        f"{length.total_steps} optimizer steps in all are few: training.max_steps is "
        f"{length.total_steps}"
    )
    if whole > length.total_steps:
        return f"{text}; without it training.num_train_epochs={epochs:g} gives {whole:,}"
    return f"{text}; training.max_steps={FEW_STEPS} or more goes over the data more often"
