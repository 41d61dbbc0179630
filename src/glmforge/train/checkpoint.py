"""Checkpoints that are whole or absent: write aside, check, rename, name it `latest`.

Layout of ``checkpoints/step-000500/`` (format version 1)::

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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from glmforge.data.prepared import sha256_of
from glmforge.distributed.collectives import Ranks
from glmforge.errors import CheckpointError
from glmforge.export.manifest import FORMAT_VERSION, MANIFEST, verify
from glmforge.train.state import Progress, rank_state


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search for something to resume came to."""

    path: Path
    skipped: tuple[str, ...]
    """One sentence for each newer directory that was passed over."""


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
    temporary = directory / f".tmp-{final.name}"
    if ranks.agree((final / MANIFEST).exists() if ranks.is_main else None):
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


def rotate(directory: Path, *, keep_last: int) -> list[str]:
    """Delete all complete checkpoints but the newest `keep_last` and the best; return their names.

    The only place that deletes checkpoints. A directory loses its manifest first, so that an
    interrupted deletion leaves nothing that looks whole.
    """
    names = sorted(
        (p.parent.name for p in directory.glob(f"step-*/{MANIFEST}")), key=step_of, reverse=True
    )
    best = directory / "best"
    kept = set(names[:keep_last])
    if best.exists():
        kept.add(best.read_text(encoding="utf-8").strip())
    gone = [name for name in names if name not in kept]
    for name in gone:
        (directory / name / MANIFEST).unlink()
        shutil.rmtree(directory / name)
    return gone


def newest_complete(directory: Path) -> Found:
    """Return the newest checkpoint under `directory` that passes `verify`.

    Raises:
        CheckpointError: none does; says what each one lacks.
    """
    names = [p.name for p in directory.glob("step-*") if p.name.removeprefix("step-").isdigit()]
    skipped: list[str] = []
    for name in sorted(names, key=step_of, reverse=True):
        try:
            verify(directory / name)
        except CheckpointError as error:
            skipped.append(f"passed over {name}: {'; '.join(error.problems)}")
            continue
        return Found(path=directory / name, skipped=tuple(skipped))
    raise CheckpointError(
        [
            f"{directory}: no complete checkpoint to resume from; to start anew, give another "
            "training.output_dir",
            *skipped,
        ]
    )
