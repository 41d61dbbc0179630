"""Going on with a run: which checkpoint, whether it fits, and loading it.

Everything that can be refused is refused before the model's weights are read. On the same number
of processes DeepSpeed's shards are loaded as they lie and the run goes on bitwise; on another
number they are converted to DeepSpeed's universal form first (deepspeed.ai/tutorials/
universal-checkpointing), so that the optimizer's state is carried over.
"""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from glmforge.config.paths import holds_run
from glmforge.distributed.collectives import Ranks
from glmforge.errors import CheckpointError
from glmforge.train.checkpoint import newest_complete, set_aside, sweep, write_pointer
from glmforge.train.engine import catch_up_cpu_adam, own_optimizer_settings
from glmforge.train.resume_target import check_target
from glmforge.train.rundir import check_free
from glmforge.train.state import Progress, restore_rank_state, seed_everything


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The verified checkpoint that a run goes on from."""

    path: Path
    step: int
    world_size: int
    """Processes that wrote it."""
    skipped: tuple[str, ...] = ()
    """One sentence for each checkpoint that was passed over."""
    damaged: tuple[str, ...] = ()
    """Names of newer checkpoints that are not whole."""

    def is_elastic(self, ranks: Ranks) -> bool:
        """Whether it was written by another number of processes."""
        return self.world_size != ranks.world_size

    def engine_keys(self, ranks: Ranks) -> dict[str, Any]:
        """What the engine's config needs besides, to load it."""
        return {"checkpoint": {"load_universal": True}} if self.is_elastic(ranks) else {}


def is_resuming(directory: Path, resume: str | None) -> bool:
    """Say whether a run goes on, or begins.

    "auto" means: go on where the config's own directory holds a run, else begin it. A run that
    ended before its first checkpoint was written has nothing to go on with: it begins again. Where
    checkpoints exist, whole or not, a run never begins again.

    Raises:
        CheckpointError: the named directory is another than the config's, or holds no run; or,
            without `resume`, the directory holds a run.
    """
    if resume is None:
        check_free(directory)
        return False
    if resume == "auto" and not holds_run(directory):
        return False
    if resume != "auto":
        check_target(Path(resume), directory)
    return _had_checkpoint(directory)


def _had_checkpoint(directory: Path) -> bool:
    """Whether a run has ever been saved, as far as its directory tells.

    Checkpoints that were renamed or set aside count, and so do traces of training where they are
    gone: the folder of checkpoints is made before the first step, weights come after one.
    """
    checkpoints = directory / "checkpoints"
    if not checkpoints.is_dir():
        metrics = directory / "metrics.jsonl"
        return metrics.is_file() and '"kind": "train"' in metrics.read_text(encoding="utf-8")
    kept = any(each.is_dir() and not each.name.startswith(".") for each in checkpoints.iterdir())
    weights = any((directory / name).exists() for name in ("adapter", "model"))
    return kept or weights or (checkpoints / "latest").exists()


def find_start(directory: Path, ranks: Ranks) -> Start:
    """Return the newest whole checkpoint of a run; rank 0 looks and verifies for all.

    Raises:
        CheckpointError: there is none.
    """

    def look() -> Start:
        found = newest_complete(directory / "checkpoints")
        return Start(
            path=found.path,
            step=found.manifest["step"],
            world_size=found.manifest["world_size"],
            skipped=found.skipped,
            damaged=found.damaged,
        )

    return ranks.on_main(look)


def check_world_size(start: Start, ranks: Ranks, *, stage: int) -> None:
    """Make sure that the processes of now can take the checkpoint.

    Raises:
        CheckpointError: other many wrote it, at a stage whose state is not converted.
    """
    if stage == 0 and start.is_elastic(ranks):
        raise CheckpointError(
            f"{start.path}: {start.world_size} process(es) wrote it, and there are "
            f"{ranks.world_size} now; without ZeRO (stage 0) a run goes on with the same number "
            f"only: use --nproc {start.world_size}, or start another run from its weights with "
            "--init-from"
        )


def clear_way(start: Start, ranks: Ranks, say: Any) -> None:
    """Set damaged newer checkpoints aside and remove half-made ones: the run goes on from `start`.

    ``latest`` names it from here on: a kill, or damage, may have left another name.
    """
    if ranks.is_main:
        for line in (*start.skipped, *set_aside(start.path.parent, start.damaged)):
            say(line)
        write_pointer(start.path.with_name("latest"), start.path.name)
        sweep(start.path.parent, saves=True)
    ranks.barrier()


def load_start(
    engine: Any, start: Start, ranks: Ranks, *, exclude_frozen: bool, seed: int
) -> Progress:
    """Load weights, optimizer and random states into the engine; a collective.

    Raises:
        CheckpointError: DeepSpeed cannot read or convert the checkpoint.
    """
    folder, tag = start.path, f"global_step{start.step}"
    if start.is_elastic(ranks):
        folder = start.path.with_name(f".universal-{start.path.name}")
        if ranks.is_main:
            _convert(start.path / tag, folder / tag)
        ranks.barrier()
    with own_optimizer_settings(engine):
        loaded, _ = engine.load_checkpoint(
            str(folder),
            tag=tag,
            load_module_strict=not exclude_frozen,
            load_lr_scheduler_states=False,
        )
    catch_up_cpu_adam(engine)
    if loaded is None:
        raise CheckpointError(f"{start.path}: DeepSpeed found nothing to load in it")
    states = start.path / "state"
    mine = states / f"rank-{ranks.rank:05d}.pt"
    if mine.exists():
        restore_rank_state(torch.load(mine, weights_only=True), ranks.device)
    else:  # more processes than before: the new ones draw their own numbers
        seed_everything(seed + ranks.rank)
    ranks.barrier()
    if start.is_elastic(ranks) and ranks.is_main:
        shutil.rmtree(folder)
    values = json.loads((states / "progress.json").read_text(encoding="utf-8"))
    return Progress.from_dict(values)


def _convert(source: Path, target: Path) -> None:
    """Convert DeepSpeed's shards to its universal form, in a process of its own."""
    if target.parent.exists():
        shutil.rmtree(target.parent)
    target.mkdir(parents=True)
    command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal"]
    command += ["--input_folder", str(source), "--output_folder", str(target)]
    command += ["--inject_missing_state", "--num_extract_workers", "1", "--num_merge_workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).strip().split("\n")[-8:])
        raise CheckpointError(f"{source}: cannot be converted for another world size:\n{tail}")
