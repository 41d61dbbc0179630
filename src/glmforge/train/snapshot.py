"""What a checkpoint holds, copied into host memory, so that training need not wait for the disk.

`Snapshot` stands before an engine's checkpoint engine (DeepSpeed's interface ``CheckpointEngine``),
to which ``save_checkpoint`` hands every state with its path. While it holds, it keeps a copy of
each instead of having it written; a thread writes the copies later (``saving``). torch's own stager
copies: its host buffers, pinned for a GPU, stay from save to save: only the first pays for their
pages.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldFile:
    """A file that is not written yet."""

    path: Path
    state: Any
    """What it will hold; its tensors are in host memory, and the next save writes over them."""


class Snapshot:
    """A checkpoint engine that is another one in all but `save`, which may hold copies back."""

    def __init__(self, inner: Any, device: torch.device) -> None:
        """Stand in front of an engine's checkpoint engine.

        Args:
            inner: what writes and loads.
            device: of the rank: buffers are pinned where it is a GPU.
        """
        self._inner = inner
        on_gpu = device.type == "cuda"
        options = StagingOptions(
            use_pinned_memory=on_gpu,
            use_shared_memory=False,
            use_async_staging=False,
            use_non_blocking_copy=on_gpu,
        )
        self._stager = DefaultStager(options)
        self._held: list[HeldFile] | None = None

    @contextmanager
    def held(self) -> Iterator[list[HeldFile]]:
        """Hold back what is saved within; yields the list that it is put into."""
        self._held = []
        try:
            yield self._held
        finally:
            self._held = None

    def write(self, files: list[HeldFile]) -> None:
        """Write what was held back.

        Raises:
            OSError, RuntimeError: a file cannot be written.
        """
        for file in files:
            self._inner.save(file.state, str(file.path))

    def close(self) -> None:
        """Give the buffers back."""
        self._stager.close()

    def save(self, state_dict: Any, path: str) -> None:
        """Write a state, or hold a copy of it back."""
        if self._held is None:
            self._inner.save(state_dict, path)
            return
        self._held.append(HeldFile(path=Path(path), state=self._stager.stage(state_dict)))

    def __getattr__(self, name: str) -> Any:
        """Return everything else of the checkpoint engine behind: loading, who writes, the end."""
        return getattr(self._inner, name)


def snapshot_of(engine: Any, device: torch.device) -> Snapshot:
    """Put a `Snapshot` before the checkpoint engine of a DeepSpeed engine, and return it."""
    found = Snapshot(engine.checkpoint_engine, device)
    engine.checkpoint_engine = found
    return found
