"""What `--resume PATH` names, where it is not simply the run's own directory.

A checkpoint of a run, another run, a run or a checkpoint of transformers' Trainer: each is looked
at and named precisely, with the newest whole checkpoint and the way to go on. Nothing is loaded.
"""

from pathlib import Path

from glmforge.config.paths import holds_run
from glmforge.errors import CheckpointError
from glmforge.export.manifest import MANIFEST, named_by
from glmforge.train.checkpoint import check, newest_complete
from glmforge.train.foreign import check_whole, is_foreign_checkpoint, is_foreign_run, survey


def check_target(named: Path, directory: Path) -> None:
    """Refuse everything but the run that the config is of.

    Args:
        named: what the user wrote.
        directory: the config's training.output_dir.

    Raises:
        CheckpointError: what `named` is, and how to go on.
    """
    if not named.is_dir():
        raise CheckpointError(f"--resume {named}{named_by(named) or ': no such directory'}")
    if is_foreign_checkpoint(named):
        check_whole(named)
        raise CheckpointError(_foreign(named, named))
    if is_foreign_run(named):
        found = survey(named)
        newest = named / found.newest.name if found.newest else None
        raise CheckpointError([*found.lines(), _foreign(named, newest)])
    if _is_checkpoint(named):
        raise CheckpointError(_own_checkpoint(named))
    if not holds_run(named):
        raise CheckpointError(f"--resume {named}: no run in {named.resolve()}")
    if named.resolve() != directory.resolve():
        raise CheckpointError(
            f"--resume {named}: the config's training.output_dir is {directory}; a run goes on in "
            f"its own directory: write training.output_dir={named}"
        )


def _is_checkpoint(path: Path) -> bool:
    return (path / MANIFEST).exists() or (
        path.resolve().parent.name == "checkpoints" and path.name.startswith("step-")
    )


def _foreign(named: Path, newest: Path | None) -> str:
    way = f"; a new run may start from its weights: --init-from {newest}" if newest else ""
    return (
        f"--resume {named}: transformers' Trainer wrote this, and its optimizer, data order and "
        f"random states are not those of a run of this program{way}"
    )


def _own_checkpoint(path: Path) -> list[str]:
    """Say whether a checkpoint of ours is whole, and what its run would go on from."""
    run = path.resolve().parent.parent
    try:
        check(path)
    except CheckpointError as error:
        state = list(error.problems)
        only = ""
    else:
        state = [f"{path}: whole"]
        only = f"; a new run may start from this one's weights: --init-from {path}"
    try:
        newest = newest_complete(path.resolve().parent).path.name
    except CheckpointError as error:
        return [*state, *(p for p in error.problems if path.name not in p)]
    return [*state, f"--resume takes the run: --resume {run} goes on from {newest}{only}"]
