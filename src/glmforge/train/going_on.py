"""A run that goes on: the checkpoint, what has changed since, and both taken into the engine.

`find_resumption` refuses everything that can be refused, before the model's weights are read;
`resume_into` loads, and writes down what changed. Sits between ``run`` and ``resume``/``changes``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmforge.config import RunConfig
from glmforge.distributed.collectives import Ranks
from glmforge.errors import CheckpointError
from glmforge.train import rundir
from glmforge.train.best import best_begins_anew, forget_best
from glmforge.train.changes import (
    DATA,
    VALIDATION,
    Change,
    Present,
    all_changes,
    check_changes,
    note_changes,
    noted_changes,
)
from glmforge.train.checkpoint import point_at_best
from glmforge.train.past import past_of, restore_description
from glmforge.train.prepare import RunPlan
from glmforge.train.resume import Start, check_world_size, clear_way, find_start, load_start
from glmforge.train.state import Progress

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """Where a run goes on, and what is no longer as it was."""

    start: Start
    changes: tuple[Change, ...]
    restored: tuple[str, ...] = ()
    """A sentence for each file of the run directory that was put back from the checkpoint."""


def manifest_of(config: RunConfig, planned: RunPlan, ranks: Ranks) -> dict[str, Any]:
    """Return what the run trains on, with the model's files and the length of the run."""
    model = Path(config.model.model_name_or_path)
    return rundir.data_manifest(
        planned.data.files,
        planned.data.examples(),
        model=ranks.on_main(lambda: rundir.model_files(model)),
        total_steps=planned.total_steps,
    )


def find_resumption(
    config: RunConfig,
    directory: Path,
    planned: RunPlan,
    manifest: Mapping[str, Any],
    ranks: Ranks,
    *,
    allow_changes: bool,
) -> Resumption:
    """Find the newest whole checkpoint of a run and compare the run with what it was.

    Raises:
        CheckpointError: there is none; something changed that was not allowed or cannot be; or
            another number of processes wrote it than can go on with it.
    """
    start = find_start(directory, ranks)
    stage = planned.engine_config["zero_optimization"]["stage"]
    check_world_size(start, ranks, stage=stage)
    now = Present(
        config=config,
        manifest=manifest,
        sizes=planned.sizes,
        engine_config=planned.engine_config,
        total_steps=planned.total_steps,
        step=start.step,
    )

    def look() -> Resumption:
        restored = restore_description(directory, start.path)
        changes = all_changes(past_of(directory, start.path), now)
        if changes and start.step >= planned.total_steps:
            done = f"{start.step} steps are done and the run has {planned.total_steps} now"
            raise CheckpointError(
                [
                    *(change.sentence() for change in changes),
                    f"{start.path}: {done}: nothing is left to train; set it back, write more "
                    "training.max_steps (or epochs) with --allow-changes, or start another run "
                    f"from its weights with --init-from {directory}",
                ]
            )
        known = noted_changes(directory, start.step)
        again = all((change.what, change.after) in known for change in changes)
        check_changes(directory, changes, allowed=allow_changes or again, checkpoint=start.path)
        return Resumption(start=start, changes=tuple(changes), restored=restored)

    return ranks.on_main(look)


def resume_into(
    engine: Any,
    found: Resumption,
    config: RunConfig,
    directory: Path,
    planned: RunPlan,
    manifest: Mapping[str, Any],
    ranks: Ranks,
    say: Say,
) -> Progress:
    """Load the checkpoint into the engine and write down what changed; a collective."""
    clear_way(found.start, ranks, say)
    progress = load_start(
        engine,
        found.start,
        ranks,
        exclude_frozen=config.trains_adapter,
        seed=config.training.seed,
    )
    for line in found.restored:
        say(line)
    say(f"resumed {found.start.path} after step {progress.step}")
    if ranks.is_main:
        rundir.forget_end(directory)
    _take_changes(found, config, directory, planned, manifest, progress, ranks, say)
    start, best = found.start.path, progress.best_step
    lost = ranks.on_main(lambda: point_at_best(start.parent, best, verified=start))
    if lost is not None:
        say(forget_best(progress, f"its checkpoint is lost ({lost})"))
    return progress


def _take_changes(
    found: Resumption,
    config: RunConfig,
    directory: Path,
    planned: RunPlan,
    manifest: Mapping[str, Any],
    progress: Progress,
    ranks: Ranks,
    say: Say,
) -> None:
    """Let the rest of the run be as it is wanted now, and write down what changed."""
    settings: dict[str, Any] = {
        "config_yaml": config.to_yaml(),
        "deepspeed_config": planned.engine_config,
    }
    if not found.changes:
        if ranks.is_main:
            rundir.write_settings(directory, **settings)  # where it lies, how often it saves, ...
        return
    progress.ended_early = False
    for change in found.changes:
        say(f"changed: {change.sentence()}")
    changed = [change.what for change in found.changes]
    if config.data.validation_size is not None and DATA in changed and VALIDATION not in changed:
        changed.append(VALIDATION)  # it is a part of the training files
    for line in best_begins_anew(progress, changed):
        say(line)
    if ranks.is_main:
        note_changes(directory, found.changes, progress.step)
        rundir.write_run_files(directory, manifest=manifest, **settings)
