"""`--preflight`: real steps at the longest batch, and the measured peak beside the planned one.

Owns `preflight`. Every rank gets the longest row of the data in each place of its batch, so that no
step of the run needs more. The weights are changed by it and thrown away: nothing is written, and
the run is started by the same command without the option.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from glmforge.config import RunConfig
from glmforge.data import StepBatches
from glmforge.distributed.collectives import Ranks, process_group
from glmforge.distributed.env import read_world
from glmforge.distributed.zero import deepspeed_running
from glmforge.train.deterministic import deterministic_kernels
from glmforge.train.engine import build_engine
from glmforge.train.loop import train_step
from glmforge.train.memory_plan import peak_words, plan_start
from glmforge.train.metrics import peak_gib
from glmforge.train.out_of_memory import out_of_memory_explained
from glmforge.train.prepare import RunPlan, plan_run, prepare_model
from glmforge.train.run import as_config, optimizer_settings, row_width, sayer
from glmforge.train.same_start import check_same_start
from glmforge.train.state import seed_everything


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """What came of it: GiB planned, GiB measured on each rank, and the batch of one rank."""

    planned_gib: float
    measured_gib: tuple[float, ...]
    rows: int
    row_tokens: int


def preflight(
    config: RunConfig | str | Mapping[str, Any],
    resume: str | None = None,
    *,
    ignore_plan: bool = False,
) -> Preflight:
    """Plan a run, build it, and do two updates at its longest batch on every rank.

    The first update makes the optimizer's states, the second one meets them: later ones need no
    more.

    Raises:
        ConfigError, DataError, ModelError, AdapterError: as in training.
        TrainingError: the plan says that it does not fit, or the card ran out of memory.
    """
    settings, world = as_config(config, resume), read_world()
    options = {"--preflight": True, "--resume": resume, "--ignore-plan": ignore_plan}
    check_same_start(settings, world, options)
    with (
        deterministic_kernels(settings.training.deterministic),
        process_group(world) as ranks,
        deepspeed_running(),
    ):
        say = sayer(ranks)
        seed_everything(settings.training.seed)
        planned = plan_run(settings, ranks, say)
        plan = plan_start(settings, planned, ranks, say, ignore_plan=ignore_plan)
        with out_of_memory_explained(settings, ranks):
            model = prepare_model(
                settings, planned.model, planned.precision, ranks, say, planned.engine_config
            )
            engine = build_engine(model, planned.engine_config, optimizer_settings(settings))
            batches = longest_batches(settings, planned, ranks)
            for _ in range(2):
                train_step(engine, batches, settings.training.learning_rate, ranks)
        peaks = [row[0] for row in ranks.gather_floats([peak_gib(ranks.device)])]
    rows, tokens = batches.micro_batches[0].input_ids.shape
    say(f"preflight: two updates at the longest batch, {rows} rows of {tokens} tokens a rank")
    for rank, peak in enumerate(peaks):
        say(f"preflight: rank {rank}: {peak_words(plan, peak, ranks.device)}")
    say("preflight: nothing was written; start the run with the same command without --preflight")
    return Preflight(
        planned_gib=round(plan.written.account.peak_gib, 3),
        measured_gib=tuple(round(peak, 3) for peak in peaks),
        rows=rows,
        row_tokens=tokens,
    )


def longest_batches(config: RunConfig, planned: RunPlan, ranks: Ranks) -> StepBatches:
    """Return this rank's part of a step whose every row is the longest one of the data."""
    data, sizes = planned.data, planned.sizes
    lengths = data.train.lengths  # type: ignore[attr-defined]
    longest = max(data.train_rows, key=lambda row: int(sum(lengths[index] for index in row)))
    same = replace(data, train_rows=[longest] * sizes.global_batch, group_by_length=False)
    return same.plan(sizes, config.training.seed).rank_batches(
        0,
        0,
        rank=ranks.rank,
        world_size=ranks.world_size,
        micro_batch=sizes.micro_batch,
        accumulation=sizes.accumulation,
        pad_to=row_width(config, planned, ranks),
    )
