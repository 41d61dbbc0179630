"""The background write of a run that fails: its checkpoint gets its name without the other ranks.

When a run fails, some ranks may be gone, or stuck in an exchange that never ends, so nothing here
is a collective. Each rank's thread leaves a note of its files in a folder of the unfinished
checkpoint. A failing rank that finds the notes of all takes the folder away, which only one of them
can, and writes the manifest.
"""

import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glmforge.errors import CheckpointError
from glmforge.train.checkpoint import commit, temporary_of
from glmforge.train.disk import directory_bytes

Sealed = dict[str, dict[str, Any]]
"""File → its bytes and sha256."""

NOTES = "notes"
STILL_SECONDS = 30.0
"""How long the other ranks' files may stay as they are before their write is given up."""
_POLL_SECONDS = 0.1


def manifest_of(step: int, shares: Sequence[Sealed]) -> dict[str, Any]:
    """Return what a checkpoint's manifest says of its files, of which each rank wrote a share."""
    files = {name: entry for share in shares for name, entry in share.items()}
    return {"step": step, "world_size": len(shares), "files": dict(sorted(files.items()))}


def leave_note(unfinished: Path, rank: int, share: Sealed) -> None:
    """Write down that a rank's files are in place."""
    note = _note(unfinished / NOTES, rank)
    note.parent.mkdir(exist_ok=True)
    partial = note.with_suffix(".tmp")
    partial.write_text(json.dumps(share), encoding="utf-8")
    partial.replace(note)


def drop_notes(unfinished: Path) -> None:
    """Remove the notes, which are no part of the checkpoint: the ranks finish it together."""
    shutil.rmtree(unfinished / NOTES, ignore_errors=True)


def commit_alone(final: Path, step: int, world_size: int) -> bool:
    """Give a checkpoint its manifest and its name as soon as every rank's files are in place.

    Returns:
        Whether this rank did; False where another one has.

    Raises:
        CheckpointError: a rank's files are missing, and nothing has been written for a while.
    """
    unfinished = temporary_of(final)
    written, since = -1, time.monotonic()
    while not final.exists():
        missing = [n for n in range(world_size) if not _note(unfinished / NOTES, n).exists()]
        if not missing and (taken := _take(final)) is not None:
            notes = [_note(taken, rank) for rank in range(world_size)]
            shares = [json.loads(note.read_text(encoding="utf-8")) for note in notes]
            commit(unfinished, final, manifest_of(step, shares))
            shutil.rmtree(taken)
            return True
        if (now := _bytes_of(unfinished)) != written:
            written, since = now, time.monotonic()
        if time.monotonic() - since > STILL_SECONDS:
            ranks = ", ".join(map(str, missing)) or "another one, which was to end it"
            raise CheckpointError(
                f"nothing more has come for {STILL_SECONDS:.0f} s of rank {ranks}"
            )
        time.sleep(_POLL_SECONDS)
    return False


def _note(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank:05d}.json"


def _take(final: Path) -> Path | None:
    """Move the notes out of the checkpoint; None where another rank has."""
    taken = final.with_name(f".tmp-{NOTES}-{final.name}")
    try:
        (temporary_of(final) / NOTES).rename(taken)
    except FileNotFoundError:
        return None
    return taken


def _bytes_of(unfinished: Path) -> int:
    """Return what has been written so far; 0 where another rank has just renamed the directory."""
    try:
        return directory_bytes(unfinished)
    except FileNotFoundError:
        return 0
