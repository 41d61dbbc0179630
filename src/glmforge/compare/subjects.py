"""The models that are compared, and how each comes to answer: loaded once, adapters switched.

A tuned model is whatever `glmforge export` takes: a run directory, a checkpoint, an adapter or a
model. Adapters are put on the one loaded base and taken off again; whole models are loaded after it
is gone, so that one model's memory is enough.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from glmforge.adapters import open_adapter, read_adapter, zero_notes
from glmforge.bin_files import refuse_not_finite
from glmforge.config import RunConfig, load_config_file
from glmforge.errors import ExportError, ModelError, UsageError
from glmforge.export.counting import count_adapter
from glmforge.export.sources import Source, base_notes, find_source, open_weights
from glmforge.models import load_config, load_model, new_model

_WEIGHTS = ("*.safetensors", "*.bin", "config.json", "adapter_config.json", "manifest.json")
_HASHED_BYTES = 64 << 20  # larger files count by size and time of change


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One model of a comparison. ``source`` is None for the base.

    ``run`` is the config of the training run that it is from, where that is known. ``start_seed``
    marks a base without weights: the random weights that such a run began from. ``notes`` are
    what people should be told of it.
    """

    name: str
    path: Path
    identity: str
    source: Source | None = None
    run: RunConfig | None = None
    start_seed: int | None = None
    notes: tuple[str, ...] = ()


def find_subjects(base: Path, tuned: Sequence[Path], dtype: str) -> list[Subject]:
    """Find the base and every tuned model, without loading anything.

    Args:
        base: a model directory.
        tuned: runs, checkpoints, adapters or models.
        dtype: what the weights will be loaded in; part of a model's identity.

    Raises:
        AdapterError: an adapter was made for another base.
        ExportError: there is no model at a path.
        UsageError: a path is given twice.
    """
    if len({path.resolve() for path in tuned}) < len(tuned):
        raise UsageError(f"--tuned {' '.join(map(str, tuned))}: one of them is given twice")
    _check_base(base)
    sources = [_locate(path, base) for path in tuned]
    names = _short_names(tuned)
    notes: dict[str, list[str]] = {}
    for name, source in zip(names, sources, strict=True):
        if source.adapter is not None:
            files = read_adapter(source.adapter)
            count_adapter(files.tensors, files.config, base, str(files.path))
            notes[name] = zero_notes(files, name) + base_notes(source)
    runs = [run_of(path) for path in tuned]
    seed = _start_seed(base, runs)
    facts = [f"start {seed}"] if seed is not None else []
    first = Subject(
        name="base",
        path=base,
        identity=_identity([base], [dtype, *facts]),
        start_seed=seed,
    )
    return [first] + [
        Subject(
            name=name,
            path=path,
            identity=_identity([s for s in (source.adapter, source.model, source.shards) if s],
                               [dtype, *facts]),
            source=source,
            run=run,
            notes=tuple(notes.get(name, ())),
        )
        for name, path, source, run in zip(names, tuned, sources, runs)
    ]  # fmt: skip


def opened(
    subjects: Sequence[Subject], device: torch.device, dtype: torch.dtype
) -> Iterator[tuple[Subject, Callable[[], Any]]]:
    """Yield every subject with a function that gives its model, ready to answer.

    Nothing is loaded for a subject whose function is not called. Adapters come right after the
    base; a model is only good until the next subject.
    """
    base = subjects[0]
    held: list[Any] = []

    def base_model() -> Any:
        if not held:
            held.append(_base_weights(base, dtype, device))
        return held[0]

    yield base, base_model
    adapters = [item for item in subjects[1:] if item.source and item.source.adapter]
    for item in adapters:
        wrapped: list[Any] = []

        def with_adapter(item: Subject = item, wrapped: list[Any] = wrapped) -> Any:
            assert item.source is not None
            assert item.source.adapter is not None
            if not wrapped:
                wrapped.append(open_adapter(base_model(), item.source.adapter))
            return wrapped[0]

        yield item, with_adapter
        if wrapped:
            held[0] = wrapped.pop().unload()
    held.clear()
    for item in subjects[1:]:
        if item in adapters:
            continue
        whole: list[Any] = []

        def loaded(item: Subject = item, whole: list[Any] = whole) -> Any:
            if not whole:
                whole.append(_whole_weights(item, dtype, device))
            return whole[0]

        yield item, loaded
        whole.clear()


def run_of(path: Path) -> RunConfig | None:
    """Return the config of the run that a run directory, checkpoint or its adapter is from."""
    for directory in (path, *list(path.resolve().parents)[:3]):
        if (directory / "config.yaml").is_file() and (directory / "metrics.jsonl").is_file():
            return load_config_file(directory / "config.yaml")
    return None


def _check_base(base: Path) -> None:
    if (base / "config.json").is_file():
        return
    run = run_of(base)
    began = "" if run is None else f"; that run began from {run.model.model_name_or_path}"
    raise ExportError(f"--base {base}: no model directory (it has no config.json){began}")


def _locate(path: Path, base: Path) -> Source:
    adapter = any((d / "adapter_config.json").is_file() for d in (path, path / "adapter"))
    whole = any((d / "config.json").is_file() for d in (path / "model", path))
    return find_source(path, None if whole and not adapter else base)


def _start_seed(base: Path, runs: Sequence[RunConfig | None]) -> int | None:
    """Return the seed of the random weights a run from scratch began from, for a base without."""
    if any(base.glob("*.safetensors")) or any(base.glob("*.bin")):
        return None
    for run in runs:
        if run is not None and run.model.from_scratch:
            return run.training.seed
    return None


def _base_weights(base: Subject, dtype: torch.dtype, device: torch.device) -> Any:
    if base.start_seed is None:
        return _finite(load_model(base.path, dtype=dtype, device=device), base.path)
    torch.manual_seed(base.start_seed)
    return new_model(load_config(base.path), dtype=torch.float32).to(device, dtype).eval()


def _whole_weights(item: Subject, dtype: torch.dtype, device: torch.device) -> Any:
    assert item.source is not None
    if item.source.shards is not None:
        return open_weights(item.source).to(device, dtype)
    return _finite(load_model(item.source.model, dtype=dtype, device=device), item.path)


def _finite(model: Any, path: Path) -> Any:
    refuse_not_finite(model.named_parameters(), path, ModelError)
    return model


def _short_names(paths: Sequence[Path]) -> list[str]:
    """Names for people: the last part of each path, more parts where that is not enough."""
    parts = [path.resolve().parts for path in paths]
    for length in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len({*names, "base"}) == len(names) + 1:
            return names
    return [str(path) for path in paths]


def _identity(directories: Sequence[Path], facts: Sequence[str]) -> str:
    """A hash that changes with the weights: small files by content, large ones by size and time."""
    digest = hashlib.sha256(json.dumps(list(facts)).encode())
    for directory in directories:
        files = sorted({file for pattern in _WEIGHTS for file in directory.glob(pattern)})
        for file in files:
            status = file.stat()
            digest.update(f"{file.name} {status.st_size}".encode())
            if status.st_size <= _HASHED_BYTES:
                digest.update(file.read_bytes())
            else:
                digest.update(f" {status.st_mtime_ns}".encode())
    return digest.hexdigest()
