"""Checkpoints that are whole or absent: their names, their end, finding and deleting them.

``saving`` writes them: aside, flushed and hashed; then `commit` renames. Nothing is loaded here.

Layout of ``checkpoints/step-000500/`` (format version 2)::

    manifest.json        written last: version, step, world size, files with size and sha256
    global_step500/      DeepSpeed's shards (LoRA: without the frozen base)
    zero_to_fp32.py      DeepSpeed's own consolidation script
    latest               the tag DeepSpeed reads
    state/progress.json  step, best evaluation; beside it what the run is (config, data's hash)
    state/rank-00000.pt  each rank's random-number states
    adapter/             LoRA only: the adapter in PEFT's format, usable as it is

``checkpoints/latest`` and ``checkpoints/best`` are text files that hold a name.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmforge.errors import CheckpointError
from glmforge.export.manifest import FORMAT_VERSION, MANIFEST, seal_of, verify

_UNFINISHED = ".tmp-"
_GONE = ".gone-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search for something to resume came to."""

    path: Path
    manifest: Mapping[str, Any]
    skipped: tuple[str, ...]
    """One sentence for each directory that was passed over."""
    damaged: tuple[str, ...] = ()
    """Names of newer checkpoints that are not whole."""


def name_of(step: int) -> str:
    """Return the directory name of a step's checkpoint."""
    return f"step-{step:06d}"


def step_of(name: str) -> int:
    """Return the step of a checkpoint's directory name."""
    return int(name.removeprefix("step-"))


def flush(path: Path) -> None:
    """Wait until a file, or a directory's names, lie on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def file_names(directory: Path) -> list[str]:
    """Return all files under a directory, by their path in it."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return sorted(path.relative_to(directory).as_posix() for path in files)


def commit(temporary: Path, final: Path, manifest: Mapping[str, Any]) -> None:
    """Give a written checkpoint its manifest, then its name; all its files are on the disk."""
    sealed = dict(manifest) | {"format_version": FORMAT_VERSION}
    sealed["seal"] = seal_of(sealed)
    path = temporary / MANIFEST
    path.write_text(json.dumps(sealed, indent=1), encoding="utf-8")
    flush(path)
    flush(temporary)
    temporary.rename(final)
    flush(final.parent)
    write_pointer(final.parent / "latest", final.name)


def temporary_of(final: Path) -> Path:
    """Return the sibling in which a checkpoint is made."""
    return final.with_name(f"{_UNFINISHED}{final.name}")


def make_way(final: Path) -> Path:
    """Remove what an earlier try at the same checkpoint left; return the new place to write."""
    temporary = temporary_of(final)
    for leftover in (temporary, final):
        if leftover.exists():
            shutil.rmtree(leftover)
    temporary.mkdir(parents=True)
    return temporary


def write_pointer(path: Path, text: str) -> None:
    """Replace a small text file in one move."""
    temporary = path.with_name(f".tmp-{path.name}")
    temporary.write_text(text + "\n", encoding="utf-8")
    flush(temporary)
    temporary.replace(path)


def point_at_best(directory: Path, best_step: int | None, *, verified: Path) -> str | None:
    """Let ``best`` name the best step's checkpoint again, where a run goes on.

    A run that was killed between a checkpoint's name and this one left the name of an older one.

    Args:
        directory: the run's ``checkpoints``.
        best_step: as the checkpoint that the run goes on from says; None: nothing was best yet.
        verified: that checkpoint, which need not be verified again.

    Returns:
        What is wrong with the best checkpoint, if anything: it is set aside, and none is the best.
    """
    pointer = directory / "best"
    if best_step is None:
        pointer.unlink(missing_ok=True)
        return None
    best = directory / name_of(best_step)
    if not best.is_dir():
        pointer.unlink(missing_ok=True)
        return f"{best} is not there"
    if best != verified:
        try:
            check(best)
        except CheckpointError as error:
            pointer.unlink(missing_ok=True)
            return "; ".join([*error.problems, *set_aside(directory, [best.name])])
    if not pointer.exists() or pointer.read_text(encoding="utf-8").strip() != best.name:
        write_pointer(pointer, best.name)
    return None


def rotate(directory: Path, *, keep_last: int, best_step: int | None = None) -> list[str]:
    """Delete all complete checkpoints but the newest `keep_last` and the best; return their names.

    The only place that deletes checkpoints. A directory is renamed first, so that an interrupted
    deletion leaves nothing that looks like a checkpoint; `sweep` ends such deletions.
    """
    names = sorted(
        (p.parent.name for p in directory.glob(f"step-*/{MANIFEST}")), key=step_of, reverse=True
    )
    kept = set(names[:keep_last])
    if best_step is not None:
        kept.add(name_of(best_step))
    gone = [name for name in names if name not in kept]
    for name in gone:
        (directory / name).rename(directory / f"{_GONE}{name}")
    sweep(directory, saves=False)
    return gone


def sweep(directory: Path, *, saves: bool) -> None:
    """Remove what an interrupted deletion left and, with `saves`, what an interrupted save did."""
    for left in directory.glob(".*-step-*"):
        if left.name.startswith(_GONE) or (saves and left.name.startswith(_UNFINISHED)):
            shutil.rmtree(left)


def set_aside(directory: Path, damaged: Sequence[str]) -> list[str]:
    """Rename damaged checkpoints, so that they are neither counted nor in the way; none is deleted.

    Returns:
        A sentence for each of them.
    """
    said = []
    for name in damaged:
        aside, number = directory / f"damaged-{name}", 1
        while aside.exists():
            number += 1
            aside = directory / f"damaged-{name}-{number}"
        (directory / name).rename(aside)
        said.append(f"{name} is set aside as {aside.name}: delete it when you have looked at it")
    return said


def is_whole(path: Path) -> bool:
    """Say whether a checkpoint is there and passes `check`."""
    try:
        check(path)
    except CheckpointError:
        return False
    return True


def check(path: Path) -> dict[str, Any]:
    """Verify a checkpoint of a run, its name too, and return its manifest.

    Raises:
        CheckpointError: it is not whole, or not the one that its name says.
    """
    manifest = verify(path)
    if path.name != name_of(manifest["step"]):
        raise CheckpointError(
            f"{path}: renamed: it is the checkpoint of step {manifest['step']}; call it "
            f"{name_of(manifest['step'])} to go on from it"
        )
    return manifest


def newest_complete(directory: Path) -> Found:
    """Return the newest checkpoint under `directory` that passes `check`.

    Raises:
        CheckpointError: none does; says what each one lacks.
    """
    numbered = [p.name for p in directory.glob("step-*") if p.name.removeprefix("step-").isdigit()]
    others = [
        p.parent.name
        for p in sorted(directory.glob(f"*/{MANIFEST}"))
        if p.parent.name not in numbered and not p.parent.name.startswith((".", "damaged-"))
    ]
    skipped = [
        f"passed over {p.name.removeprefix(_UNFINISHED)}: its save never ended"
        for p in sorted(directory.glob(f"{_UNFINISHED}step-*"))
    ]
    damaged: list[str] = []
    for name in others:
        skipped.append(f"passed over {name}: {_problems(directory / name)}")
    for name in sorted(numbered, key=step_of, reverse=True):
        try:
            manifest = check(directory / name)
        except CheckpointError as error:
            skipped.append(f"passed over {name}: {'; '.join(error.problems)}")
            damaged.append(name)
            continue
        return Found(
            path=directory / name,
            manifest=manifest,
            skipped=tuple(skipped),
            damaged=tuple(damaged),
        )
    skipped += [
        f"passed over {p.name}: {_problems(p)}"
        for p in sorted(directory.glob("*/"))
        if p.name not in (*numbered, *others) and not p.name.startswith(".")
    ]
    raise CheckpointError(
        [
            f"{directory}: no complete checkpoint to resume from, though the run was saved before: "
            "put its checkpoints back; to start anew, give another training.output_dir",
            *skipped,
        ]
    )


def _problems(path: Path) -> str:
    try:
        manifest = check(path)
    except CheckpointError as error:
        return "; ".join(error.problems)
    return f"whole, but not named as a checkpoint; rename it to {name_of(manifest['step'])}"
