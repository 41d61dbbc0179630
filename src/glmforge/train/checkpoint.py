"""Checkpoints that are whole or absent: write aside, check, rename, name it `latest`.

Layout of ``checkpoints/step-000500/`` (format version 2)::

    manifest.json        written last: version, step, world size, files with size and sha256
    global_step500/      DeepSpeed's shards (LoRA: without the frozen base)
    zero_to_fp32.py      DeepSpeed's own consolidation script
    latest               the tag DeepSpeed reads
    state/progress.json  step, best evaluation
    state/rank-00000.pt  each rank's random-number states
    adapter/             LoRA only: the adapter in PEFT's format, usable as it is

``checkpoints/latest`` and ``checkpoints/best`` are text files that hold a name.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from glmforge.data.prepared import sha256_of
from glmforge.distributed.collectives import Ranks
from glmforge.errors import CheckpointError
from glmforge.export.manifest import FORMAT_VERSION, MANIFEST, seal_of, verify
from glmforge.train.state import Progress, rank_state

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


def save_checkpoint(
    engine: Any,
    directory: Path,
    progress: Progress,
    ranks: Ranks,
    *,
    exclude_frozen: bool,
    write_extras: Callable[[Path], None],
) -> Path:
    """Write the checkpoint of `progress.step` under `directory`; a collective.

    Args:
        engine: the DeepSpeed engine.
        directory: the run's ``checkpoints``.
        progress: saved as it is.
        ranks: all ranks.
        exclude_frozen: leave frozen parameters out (LoRA: the base is not copied).
        write_extras: called on every rank with the temporary directory (the portable adapter).

    Returns:
        The finished directory; one that is complete already is left alone.
    """
    final = directory / name_of(progress.step)
    temporary = directory / f"{_UNFINISHED}{final.name}"
    if ranks.agree(is_whole(final) if ranks.is_main else None):
        return final
    if ranks.is_main:
        for leftover in (temporary, final):
            if leftover.exists():
                shutil.rmtree(leftover)
        (temporary / "state").mkdir(parents=True)
    ranks.barrier()
    tag = f"global_step{progress.step}"
    engine.save_checkpoint(
        str(temporary), tag=tag, save_latest=False, exclude_frozen_parameters=exclude_frozen
    )
    torch.save(rank_state(ranks.device), temporary / "state" / f"rank-{ranks.rank:05d}.pt")
    write_extras(temporary)
    if ranks.is_main:
        (temporary / "latest").write_text(tag, encoding="utf-8")
        progress_text = json.dumps(progress.to_dict(), indent=1)
        (temporary / "state" / "progress.json").write_text(progress_text, encoding="utf-8")
    ranks.barrier()
    _commit(temporary, final, progress.step, ranks)
    if ranks.is_main:
        write_pointer(directory / "latest", final.name)
    ranks.barrier()
    return final


def _commit(temporary: Path, final: Path, step: int, ranks: Ranks) -> None:
    """Hash and flush all files (each rank its share), then manifest, then the final name."""
    names = ranks.agree(_file_names(temporary) if ranks.is_main else None)
    mine = {name: _seal(temporary / name) for name in names[ranks.rank :: ranks.world_size]}
    shares = ranks.gather_objects(mine)
    if not ranks.is_main:
        return
    files = {name: entry for share in shares for name, entry in share.items()}
    manifest = {
        "format_version": FORMAT_VERSION,
        "step": step,
        "world_size": ranks.world_size,
        "files": {name: files[name] for name in names},
    }
    manifest["seal"] = seal_of(manifest)
    path = temporary / MANIFEST
    path.write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    _flush(path)
    _flush(temporary)
    temporary.rename(final)
    _flush(final.parent)


def _file_names(directory: Path) -> list[str]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return sorted(path.relative_to(directory).as_posix() for path in files)


def _seal(path: Path) -> dict[str, Any]:
    """Flush one file to disk and return its size and sha256."""
    _flush(path)
    return {"bytes": path.stat().st_size, "sha256": sha256_of(path)}


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_pointer(path: Path, text: str) -> None:
    """Replace a small text file in one move."""
    temporary = path.with_name(f".tmp-{path.name}")
    temporary.write_text(text + "\n", encoding="utf-8")
    _flush(temporary)
    temporary.replace(path)


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
    raise CheckpointError(
        [
            f"{directory}: no complete checkpoint to resume from; to start anew, give another "
            "training.output_dir",
            *skipped,
        ]
    )


def _problems(path: Path) -> str:
    try:
        check(path)
    except CheckpointError as error:
        return "; ".join(error.problems)
    return "not named as a checkpoint"
