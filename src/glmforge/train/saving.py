"""Writing checkpoints, at once or while training goes on.

A save is the engine's shards, random states, progress and (LoRA) the adapter, written aside by all
ranks, flushed and hashed; then rank 0 gives it its manifest and its name (``checkpoint.commit``).
With a snapshot the shards are copied into host memory, and a thread of each rank writes them; the
checkpoint gets its name at the first step after the last file.
One write at a time; a failed one ends the run at that step, older checkpoints whole; one that is
under way when the run fails is finished first (``last_write``).
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from torch.serialization import get_crc32_options, set_crc32_options

from glmforge.config import RunConfig
from glmforge.data.prepared import sha256_of
from glmforge.distributed.collectives import Ranks
from glmforge.errors import CheckpointError
from glmforge.train.checkpoint import (
    commit,
    file_names,
    flush,
    is_whole,
    make_way,
    name_of,
    rotate,
    temporary_of,
    write_pointer,
)
from glmforge.train.disk import SLACK_BYTES, check_before_save, directory_bytes
from glmforge.train.last_write import (
    Sealed,
    commit_alone,
    drop_notes,
    leave_note,
    manifest_of,
)
from glmforge.train.outputs import write_adapter
from glmforge.train.snapshot import HeldFile, Snapshot, snapshot_of
from glmforge.train.state import Progress, rank_state

_OLDER_ARE_WHOLE = (
    "any older checkpoint is whole: free some space (quotas and limits of a file's size count too: "
    "df, quota, ulimit -f), or mend the disk, and go on with --resume auto"
)
RUN_DESCRIPTION = ("config.yaml", "data.json", "deepspeed.json", "versions.json")
"""Files of the run directory that every checkpoint has, as they are when the run begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pending:
    """A checkpoint whose files this rank's thread is writing."""

    final: Path
    step: int
    best_step: int | None
    is_best: bool
    written: Future[Sealed]


@dataclass(slots=True, kw_only=True)
class Saver:
    """Writes the checkpoints of one run; every method is a collective."""

    engine: Any
    directory: Path
    """The run's ``checkpoints``."""
    ranks: Ranks
    exclude_frozen: bool
    """Leave frozen parameters out (LoRA: the base is not copied)."""
    keep_last: int
    write_extras: Callable[[Path], None]
    """Called on every rank with the directory that is being written (the portable adapter)."""
    next_bytes: int
    """What the next checkpoint will take on disk: an estimate, then the last one's size."""
    description: Mapping[str, bytes] = field(default_factory=dict)
    """What the run is, by file name (rank 0)."""
    snapshot: Snapshot | None = None
    """Holds shards in memory for the thread, or None to write them at once."""
    _writer: ThreadPoolExecutor | None = None
    _pending: _Pending | None = field(default=None)

    def save(self, progress: Progress, *, is_best: bool, wait: bool) -> Path:
        """Write the checkpoint of `progress.step`; one that is whole already is left alone.

        Args:
            progress: saved as it is.
            is_best: name it ``best`` too.
            wait: whether it has to be whole on return.

        Raises:
            CheckpointError: too little space, or the write failed (this one's, or the one before).
        """
        self.finish()
        final = self.directory / name_of(progress.step)
        self.ranks.on_main(lambda: check_before_save(self.directory, self.next_bytes))
        if self.ranks.agree(is_whole(final) if self.ranks.is_main else None):
            self._named(final, best_step=progress.best_step, is_best=is_best)
            return final
        if self.ranks.is_main:
            make_way(final)
        self.ranks.barrier()
        target = temporary_of(final)
        if self.snapshot is None or wait:
            self._write(target, progress)
            self._commit(final, progress.step, seal(target, self._own_share(target)))
            self._named(final, best_step=progress.best_step, is_best=is_best)
            return final
        with self.snapshot.held() as held:
            self._write(target, progress)
        share = self._own_share(target) + [f"{file.path.relative_to(target)}" for file in held]
        if self._writer is None:
            self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending = _Pending(
            final=final,
            step=progress.step,
            best_step=progress.best_step,
            is_best=is_best,
            written=self._writer.submit(self._write_held, target, held, share),
        )
        return final

    def _write_held(self, place: Path, held: list[HeldFile], share: list[str]) -> Sealed:
        """Write what was held back, and leave word of this rank's share; done by the thread."""
        assert self.snapshot is not None
        with without_crc32():
            self.snapshot.write(held)
        found = seal(place, share)
        leave_note(place, self.ranks.rank, found)
        return found

    def poll(self) -> None:
        """At a step's end: give a checkpoint its name once every rank's files are in place.

        Raises:
            CheckpointError: the write failed on some rank.
        """
        if self._pending is not None:
            done = self.ranks.gather_floats([float(self._pending.written.done())])
            if all(row[0] for row in done):
                self.finish()

    def finish(self) -> None:
        """Wait for the write that is under way, if any, and give the checkpoint its name.

        Raises:
            CheckpointError: the write failed on some rank.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        error = pending.written.exception()
        failed = self.ranks.gather_objects(None if error is None else f"{error}")
        problems = [f"rank {rank}: {text}" for rank, text in enumerate(failed) if text is not None]
        if problems:
            raise CheckpointError(
                [
                    f"{temporary_of(pending.final)}: the checkpoint of step {pending.step} could "
                    f"not be written in the background ({'; '.join(problems)}); {_OLDER_ARE_WHOLE}"
                ]
            ) from error
        self._commit(pending.final, pending.step, pending.written.result())
        self._named(pending.final, best_step=pending.best_step, is_best=pending.is_best)

    def _write(self, place: Path, progress: Progress) -> None:
        """Write all files of a checkpoint but its manifest."""
        tag = f"global_step{progress.step}"
        (place / "state").mkdir(parents=True, exist_ok=True)
        with disk_errors_told(f"{place}: the checkpoint of step {progress.step}"):
            frozen = self.engine.module if self.exclude_frozen else None
            with frozen_twins_left_out(frozen), without_crc32():
                self.engine.save_checkpoint(
                    str(place),
                    tag=tag,
                    save_latest=False,
                    exclude_frozen_parameters=self.exclude_frozen,
                )
            mine = place / "state" / f"rank-{self.ranks.rank:05d}.pt"
            torch.save(rank_state(self.ranks.device), mine)
            self.write_extras(place)
            if self.ranks.is_main:
                (place / "latest").write_text(tag, encoding="utf-8")
                text = json.dumps(progress.to_dict(), indent=1)
                (place / "state" / "progress.json").write_text(text, encoding="utf-8")
                self._describe_run(place / "state")
        self.ranks.barrier()

    def _describe_run(self, place: Path) -> None:
        """Write what the run is, so that a checkpoint says it wherever it is taken."""
        for name, content in self.description.items():
            (place / name).write_bytes(content)

    def _own_share(self, place: Path) -> list[str]:
        """Return this rank's share of the files that all ranks have written so far."""
        names = self.ranks.agree(file_names(place) if self.ranks.is_main else None)
        mine: list[str] = names[self.ranks.rank :: self.ranks.world_size]
        return mine

    def _commit(self, final: Path, step: int, mine: Sealed) -> None:
        shares = self.ranks.gather_objects(mine)
        if self.ranks.is_main:
            drop_notes(temporary_of(final))
            commit(temporary_of(final), final, manifest_of(step, shares))
        self.ranks.barrier()

    def _named(self, final: Path, *, best_step: int | None, is_best: bool) -> None:
        if self.ranks.is_main:
            self._point(final, best_step=best_step, is_best=is_best)
            self.next_bytes = directory_bytes(final) + SLACK_BYTES
        self.next_bytes = self.ranks.agree(self.next_bytes)

    def _point(self, final: Path, *, best_step: int | None, is_best: bool) -> None:
        """Name a whole checkpoint best where it is, and delete those beyond the limit."""
        if is_best:
            write_pointer(self.directory / "best", final.name)
        rotate(self.directory, keep_last=self.keep_last, best_step=best_step)

    def close(self) -> None:
        """End the thread, and what it is writing first; no collective: the run may have failed."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self._finish_alone(pending)
        if self._writer is not None:
            self._writer.shutdown(wait=False, cancel_futures=True)
        if self.snapshot is not None:
            self.snapshot.close()

    def _finish_alone(self, pending: _Pending) -> None:
        """Finish the write that is under way in a run that fails, and say what came of it."""
        what = f"checkpoint: that of step {pending.step}"
        if not pending.written.done():
            _say(f"{what} is being written and is finished first (Ctrl-C twice: end at once)")
        try:
            if (error := pending.written.exception()) is not None:
                _say(f"{what} could not be written ({error}); the older ones are whole")
            elif commit_alone(pending.final, pending.step, self.ranks.world_size):
                self._point(pending.final, best_step=pending.best_step, is_best=pending.is_best)
                _say(f"{what} was being written when the run failed; it is whole now")
        except (CheckpointError, OSError) as error:
            _say(f"{what} could not be finished ({error}); the older ones are whole")


def _say(line: str) -> None:
    """Print a line for people: any rank may have to."""
    print(line, file=sys.stderr, flush=True)


def saver_of(config: RunConfig, directory: Path, engine: Any, ranks: Ranks, one: int) -> Saver:
    """Return what writes the checkpoints of a run.

    Args:
        config: of the run.
        directory: of the run.
        engine: the DeepSpeed engine.
        ranks: all ranks.
        one: bytes of a checkpoint, estimated.
    """

    def extras(place: Path) -> None:
        if config.trains_adapter:
            write_adapter(engine.module, place / "adapter", ranks, directory)

    files = [directory / name for name in RUN_DESCRIPTION] if ranks.is_main else []
    in_background = config.training.async_save
    return Saver(
        engine=engine,
        directory=directory / "checkpoints",
        ranks=ranks,
        exclude_frozen=config.trains_adapter,
        keep_last=config.training.save_total_limit,
        write_extras=extras,
        description={file.name: file.read_bytes() for file in files},
        next_bytes=one,
        snapshot=snapshot_of(engine, ranks.device) if in_background else None,
    )


@contextmanager
def frozen_twins_left_out(module: nn.Module | None) -> Iterator[None]:
    """Leave the second names of frozen parameters out of `module.state_dict()`.

    DeepSpeed 0.19.8 leaves each frozen parameter out by one name only: a head tied to the word
    embeddings (1 GiB in ChatGLM-6B) would lie in every LoRA checkpoint. tests/dist holds it.
    """
    if module is None:
        yield
        return
    once = dict(module.named_parameters())
    twins = [
        name
        for name, parameter in module.named_parameters(remove_duplicate=False)
        if name not in once and not parameter.requires_grad
    ]

    def drop(_: nn.Module, state: dict[str, Any], prefix: str, __: dict[str, Any]) -> None:
        for name in twins:
            state.pop(f"{prefix}{name}", None)

    handle = module.register_state_dict_post_hook(drop)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def without_crc32() -> Iterator[None]:
    """Let `torch.save` leave out its records' CRC-32: the manifest holds each file's SHA-256.

    It is half of the time that a file takes (docs/log.md).
    """
    before = get_crc32_options()
    set_crc32_options(False)
    try:
        yield
    finally:
        set_crc32_options(before)


def seal(place: Path, names: Sequence[str]) -> Sealed:
    """Flush and hash files of an unfinished checkpoint."""
    found: Sealed = {}
    for name in names:
        flush(place / name)
        size = (place / name).stat().st_size
        found[name] = {"bytes": size, "sha256": sha256_of(place / name)}
    return found


@contextmanager
def disk_errors_told(what: str) -> Iterator[None]:
    """Turn errors of a full or failing disk into a sentence.

    Args:
        what: is being written, with its place.

    Raises:
        CheckpointError: it could not be written.
    """
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        if not _is_of_the_disk(error):
            raise
        raise CheckpointError(
            f"{what} could not be written ({error}); {_OLDER_ARE_WHOLE}"
        ) from error


def _is_of_the_disk(error: Exception) -> bool:
    """Whether a file could not be written: torch and safetensors have errors of their own for it.

    torch's archive writer names only the place where it is, and the one where it should be.
    """
    signs = ("No space left", "File too large", "failed writing", "unexpected pos", "(os error")
    return isinstance(error, OSError) or any(sign in str(error) for sign in signs)
