"""From a config to a finished run: prepare, train, write the last weights.

The order is the promise: settings, data and the model's shape are checked before weights are read,
and nothing is written before all of them have passed.
"""

import os
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmforge.config import RunConfig, config_from_mapping, load_config_file
from glmforge.config.paths import holds_run
from glmforge.distributed.collectives import Ranks, process_group
from glmforge.distributed.env import read_world
from glmforge.distributed.zero import deepspeed_running
from glmforge.errors import CheckpointError, Stopped, TrainingError, UsageError
from glmforge.export.base_print import write_base_print
from glmforge.train import rundir
from glmforge.train.changes import changed_settings
from glmforge.train.checkpoint import name_of
from glmforge.train.deterministic import deterministic_kernels
from glmforge.train.disk import check_before_run, checkpoint_bytes
from glmforge.train.engine import OptimizerSettings, build_engine
from glmforge.train.going_on import find_resumption, manifest_of, resume_into
from glmforge.train.heartbeat import beating
from glmforge.train.init_from import Weights, note_weights, starting_model, wanted_weights
from glmforge.train.loop import train_loop
from glmforge.train.memory_plan import plan_start
from glmforge.train.metrics import open_recorder
from glmforge.train.out_of_memory import out_of_memory_explained
from glmforge.train.outputs import (
    changed_weights,
    lost_weights,
    replace_directory,
    seal_weights,
    write_adapter,
    write_model,
)
from glmforge.train.past import inputs_changed, past_of
from glmforge.train.prepare import RunPlan, plan_run
from glmforge.train.resume import is_resuming
from glmforge.train.run_lock import one_run
from glmforge.train.same_start import check_same_start
from glmforge.train.saving import disk_errors_told, saver_of
from glmforge.train.session import Session
from glmforge.train.signals import SignalFlag, watch_signals
from glmforge.train.state import Progress, seed_everything

RESUME_OR_INIT = (
    "--resume and --init-from are different starts: --resume goes on with a run (its optimizer, "
    "its place in the data), --init-from begins a new one with another's weights: give one of them"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run ended."""

    output_dir: Path
    weights_dir: Path
    """``adapter`` or ``model``: the last weights."""
    step: int
    total_steps: int
    best_step: int | None
    best_eval_loss: float | None
    """Lowest validation loss, nats per trained token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What the user chose beside the config."""

    resuming: bool
    """Whether the run goes on: settled from `resume` and what its directory holds."""
    ignore_plan: bool
    allow_changes: bool
    init_from: str | None


def as_config(
    config: RunConfig | str | os.PathLike[str] | Mapping[str, Any], resume: str | None
) -> RunConfig:
    """Return a RunConfig from one, from a YAML file, or from a dict of sections, paths checked.

    Raises:
        ConfigError: with every fault found.
    """
    if isinstance(config, RunConfig):
        return config
    if isinstance(config, Mapping):
        return config_from_mapping(config, check_paths=True, resume=resume)
    return load_config_file(Path(config), check_paths=True, resume=resume)


def train(
    config: RunConfig | str | os.PathLike[str] | Mapping[str, Any],
    resume: str | None = None,
    *,
    ignore_plan: bool = False,
    allow_changes: bool = False,
    init_from: str | None = None,
) -> RunResult:
    """Train as `config` says, in this process; see ``glmforge.train``."""
    settings = as_config(config, resume)
    world = read_world()
    directory = Path(settings.training.output_dir)
    if resume is not None and init_from is not None:
        raise UsageError(RESUME_OR_INIT)
    options = {"--resume": resume, "--init-from": init_from, "--ignore-plan": ignore_plan}
    check_same_start(settings, world, options | {"--allow-changes": allow_changes})
    resuming = is_resuming(directory, resume)
    ended = _already_complete(settings, directory) if resume is not None else None
    if ended is not None:
        if world.rank == 0:
            print(
                f"{directory}: already complete: step {ended.step} of {ended.total_steps}; "
                f"nothing was changed. Its weights: {ended.weights_dir}",
                file=sys.stderr,
            )
        return ended
    if resume is not None and not holds_run(directory) and world.rank == 0:
        print(f"--resume {resume}: no run in {directory.resolve()} yet: it begins", file=sys.stderr)
    with (
        deterministic_kernels(settings.training.deterministic),
        process_group(world) as ranks,
        deepspeed_running(),
        watch_signals(announce=world.launcher == "none") as signals,
    ):
        choices = Choices(
            resuming=resuming,
            ignore_plan=ignore_plan,
            allow_changes=allow_changes,
            init_from=init_from,
        )
        with one_run(directory, ranks, sayer(ranks)):
            return _run(settings, directory, ranks, signals, choices)


def _run(
    config: RunConfig,
    directory: Path,
    ranks: Ranks,
    signals: SignalFlag,
    choices: Choices,
) -> RunResult:
    """Train to the end, or leave word of why it ended before."""
    with out_of_memory_explained(config, ranks):
        session = _prepare(config, directory, ranks, signals, choices)
    with closing(session.saver), closing(session.recorder):
        try:
            with (
                out_of_memory_explained(config, ranks, session),
                beating(directory, ranks, session.position),
            ):
                session.begin()
                train_loop(session)
                return _finish(session)
        except (Stopped, TrainingError) as error:
            _note_end(session, error)
            raise


def _note_end(session: Session, error: Stopped | TrainingError) -> None:
    """Write into final.json why a run ended before its last step."""
    if session.ranks.is_main:
        rundir.write_final(
            session.directory,
            {
                "status": "stopped" if isinstance(error, Stopped) else "failed",
                "why": str(error),
                "step": session.progress.step,
                "total_steps": session.total_steps,
                "best_step": session.progress.best_step,
            },
        )


def _already_complete(config: RunConfig, directory: Path) -> RunResult | None:
    final = rundir.read_final(directory)
    if final is None or final["status"] != "complete" or inputs_changed(directory, config):
        return None
    last = directory / "checkpoints" / name_of(final["step"])
    if changed_settings(past_of(directory, last), config):
        return None  # refused, or lengthened: settled with everything else that may have changed
    weights = directory / ("adapter" if config.trains_adapter else "model")
    is_main = read_world().rank == 0
    if (lost := lost_weights(weights)) is not None:
        if is_main:
            print(f"{lost}: to be written again from the last checkpoint", file=sys.stderr)
        return None
    if is_main and (changed := changed_weights(weights, final.get("weights", {}))):
        raise CheckpointError(
            [
                *changed,
                f"{directory}: the run is complete, and its weights are not as it wrote them: move "
                f"{weights} away, and --resume auto writes them again from the last checkpoint",
            ]
        )
    return RunResult(
        output_dir=directory,
        weights_dir=weights,
        step=final["step"],
        total_steps=final["total_steps"],
        best_step=final["best_step"],
        best_eval_loss=final["best_eval_loss"],
    )


def _prepare(
    config: RunConfig,
    directory: Path,
    ranks: Ranks,
    signals: SignalFlag,
    choices: Choices,
) -> Session:
    """Build everything a run needs; see the module's promise on the order."""
    say = sayer(ranks)
    training = config.training
    seed_everything(training.seed)
    if not choices.resuming and holds_run(directory):
        say(f"{directory}: the run ended before its first checkpoint; it begins again")
    planned = plan_run(config, ranks, say)
    manifest = manifest_of(config, planned, ranks)
    engine_config, found = planned.engine_config, None
    if choices.resuming:
        found = find_resumption(
            config, directory, planned, manifest, ranks, allow_changes=choices.allow_changes
        )
        engine_config = engine_config | found.start.engine_keys(ranks)
    memory_plan = plan_start(config, planned, ranks, say, ignore_plan=choices.ignore_plan)
    weights = None if found else wanted_weights(choices.init_from, config, planned.model, ranks)
    model = starting_model(config, planned, ranks, say, weights)
    checkpoint_size = _check_disk(config, directory, model, ranks, say)
    engine = build_engine(model, engine_config, optimizer_settings(config))
    if found is not None:
        progress = resume_into(engine, found, config, directory, planned, manifest, ranks, say)
    else:
        progress = _begin(config, directory, planned, manifest, weights, ranks, say)
    if config.trains_adapter and ranks.is_main:
        write_base_print(config.model.model_name_or_path, directory)
    begun = progress.step if found is not None else None
    recorder = open_recorder(config, directory, ranks, planned.total_steps, start=begun, say=say)
    return Session(
        config=config,
        directory=directory,
        ranks=ranks,
        engine=engine,
        tokenizer=planned.tokenizer,
        plan=planned.order,
        sizes=planned.sizes,
        total_steps=planned.total_steps,
        eval_batches=planned.data.eval_batches(ranks, training.per_device_eval_batch_size),
        prompts=planned.data.prompts,
        recorder=recorder,
        signals=signals,
        progress=progress,
        zero_stage=planned.engine_config["zero_optimization"]["stage"],
        precision=planned.precision,
        pad_to=row_width(config, planned, ranks),
        saver=saver_of(config, directory, engine, ranks, checkpoint_size),
        memory_plan=memory_plan,
        begun_at=progress.step,
    )


def _check_disk(config: RunConfig, directory: Path, model: Any, ranks: Ranks, say: Any) -> int:
    """Refuse a run that could not save; return what one checkpoint will take, in bytes."""
    one = checkpoint_bytes(model, exclude_frozen=config.trains_adapter)
    keep = config.training.save_total_limit
    warning = ranks.on_main(lambda: check_before_run(directory, one, keep=keep))
    if warning:
        say(warning)
    return one


def _begin(
    config: RunConfig,
    directory: Path,
    planned: RunPlan,
    manifest: Mapping[str, Any],
    weights: Weights | None,
    ranks: Ranks,
    say: Any,
) -> Progress:
    """Write what the run is, on rank 0, now that everything has been checked; its first state."""
    if ranks.is_main:
        rundir.write_run_files(
            directory,
            config_yaml=config.to_yaml(),
            deepspeed_config=planned.engine_config,
            manifest=manifest,
        )
        note_weights(directory, weights)
        planned.data.write_skipped(directory, say)
    seed_everything(config.training.seed + ranks.rank)  # dropout differs from rank to rank
    return Progress()


def row_width(config: RunConfig, planned: RunPlan, ranks: Ranks) -> int | None:
    """Return the tokens that rows are padded to: on a GPU packed rows compile for one shape."""
    return config.data.max_length if ranks.device.type == "cuda" and planned.data.packed else None


def optimizer_settings(config: RunConfig) -> OptimizerSettings:
    """Return AdamW's settings of a run."""
    training = config.training
    return OptimizerSettings(
        learning_rate=training.learning_rate,
        betas=(training.adam_beta1, training.adam_beta2),
        epsilon=training.adam_epsilon,
        weight_decay=training.weight_decay,
        lora_b_ratio=config.lora.loraplus_lr_ratio or 1.0,
        eight_bit=training.optim == "adamw_bnb_8bit",
    )


def _finish(session: Session) -> RunResult:
    """Write the last weights and final.json."""
    name = "adapter" if session.is_lora else "model"
    final, temporary = session.directory / name, session.directory / f".tmp-{name}"
    model, ranks = session.engine.module, session.ranks
    with disk_errors_told(f"{final}: the last weights"):
        if session.is_lora:
            for line in write_adapter(model, temporary, ranks, session.directory):
                session.recorder.say(line)
        else:
            write_model(model, session.tokenizer, temporary, ranks)
    progress = session.progress
    result = RunResult(
        output_dir=session.directory,
        weights_dir=final,
        step=progress.step,
        total_steps=session.total_steps,
        best_step=progress.best_step,
        best_eval_loss=progress.best_eval_loss,
    )
    if session.ranks.is_main:
        replace_directory(temporary, final)
        rundir.write_final(
            session.directory,
            {
                "status": "complete",
                "step": progress.step,
                "total_steps": session.total_steps,
                "best_step": progress.best_step,
                "best_eval_loss": progress.best_eval_loss,
                "best_metric": progress.best_metric,
                "ended_early": progress.ended_early,
                "skipped_steps": progress.skipped_steps,
                "weights": seal_weights(final),
                "seconds": round(time.perf_counter() - session.started, 1),
            },
        )
        session.recorder.say(f"done: {final}")
    session.ranks.barrier()
    return result


def sayer(ranks: Ranks) -> Any:
    """Return a function that prints a line for people to stderr on rank 0."""

    def say(line: str) -> None:
        if ranks.is_main:
            print(line, file=sys.stderr, flush=True)

    return say
