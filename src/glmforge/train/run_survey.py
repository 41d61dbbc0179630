"""What a run directory holds, for `glmforge inspect`: its checkpoints, whole or not, and its end.

Reads and hashes; changes nothing. Runs of this program and of transformers' Trainer alike.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmforge.config.paths import holds_run
from glmforge.errors import CheckpointError
from glmforge.export.manifest import MANIFEST
from glmforge.train.checkpoint import check
from glmforge.train.foreign import check_whole, is_foreign_checkpoint, is_foreign_run, survey
from glmforge.train.rundir import read_final


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What is there, in sentences; what is wrong is marked by its directory's state."""

    directory: str
    kind: str
    lines: tuple[str, ...]
    newest_complete: str | None
    """Name of the newest whole checkpoint."""


def run_facts(directory: Path) -> RunFacts | None:
    """Describe a run or a checkpoint; None where the directory is neither.

    Raises:
        CheckpointError: a single checkpoint that is not whole, with what it lacks.
    """
    if is_foreign_checkpoint(directory):
        found = check_whole(directory)
        return RunFacts(
            directory=str(directory),
            kind="a checkpoint of transformers' Trainer",
            lines=("complete", f"processes: {found.processes or 'unknown'}"),
            newest_complete=directory.resolve().name,
        )
    if is_foreign_run(directory):
        found = survey(directory)
        return RunFacts(
            directory=str(directory),
            kind="a run of transformers' Trainer",
            lines=tuple(found.lines()),
            newest_complete=found.newest.name if found.newest else None,
        )
    if (directory / MANIFEST).is_file():
        manifest = check(directory)
        size = sum(entry["bytes"] for entry in manifest["files"].values())
        return RunFacts(
            directory=str(directory),
            kind="a checkpoint of glmforge",
            lines=(
                f"whole: step {manifest['step']}, {manifest['world_size']} process(es), "
                f"{len(manifest['files'])} files, {size / 2**20:,.1f} MiB",
            ),
            newest_complete=directory.resolve().name,
        )
    return _own_run(directory) if holds_run(directory) and _is_run(directory) else None


def _is_run(directory: Path) -> bool:
    return (directory / "config.yaml").is_file() or (directory / "checkpoints").is_dir()


def _ending(final: Mapping[str, Any]) -> str:
    """Put final.json into words; the launcher, which writes it of a dead rank, knows no step."""
    if "step" not in final:
        return f"{final['status']}: {final['problem']}"
    return f"{final['status']}: step {final['step']} of {final['total_steps']}"


def _own_run(directory: Path) -> RunFacts:
    final = read_final(directory)
    lines = ["no final.json: it is running, or was killed" if final is None else _ending(final)]
    newest = None
    for path in sorted((directory / "checkpoints").glob("*"), reverse=True):
        if not path.is_dir():
            continue
        try:
            check(path)
        except CheckpointError as error:
            lines.append(f"{path.name}: not whole: {'; '.join(error.problems)}")
            continue
        newest = newest or path.name
        lines.append(f"{path.name}: whole")
    return RunFacts(
        directory=str(directory),
        kind="a run of glmforge",
        lines=tuple(lines),
        newest_complete=newest,
    )
