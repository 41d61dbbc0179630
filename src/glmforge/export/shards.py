"""A checkpoint in DeepSpeed's shards, as one table of whole tensors that are read when asked for.

Owns the layout of ZeRO 1, 2 and 3 for any number of ranks: where in which rank's flat vectors each
parameter lies. Nothing is joined before `Shards.tensor` is called, so memory holds one parameter.
The layout is DeepSpeed's own (its zero_to_fp32.py writes the same numbers; tests/dist holds it).
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glmforge.errors import CheckpointError
from glmforge.export.manifest import named_by
from glmforge.export.pickles import read_inert

_RANK = re.compile(r"zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a tensor lies: slices (flat vector, start, stop) that follow one another, and a shape.

    A tensor that is stored whole has one slice that is all of it.
    """

    slices: tuple[tuple[Tensor, int, int], ...]
    shape: tuple[int, ...]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype it is stored in."""
        return self.slices[0][0].dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """All tensors of one checkpoint by name."""

    folder: Path
    """The folder of the shards, such as ``.../global_step500``."""
    zero_stage: int
    """0, 1 (which stands for 1 and 2: the layout is one) or 3."""
    world_size: int
    """Ranks that wrote it."""
    trained: Mapping[str, Place]
    frozen: Mapping[str, Place]
    buffers: Mapping[str, Place]
    shared: Mapping[str, str]
    """Name → the name whose tensor it shares (tied weights)."""

    def places(self) -> dict[str, Place]:
        """Every tensor that the files hold, tied names included."""
        found = {**self.buffers, **self.frozen, **self.trained}
        found.update({name: found[other] for name, other in self.shared.items() if other in found})
        return found

    def tensor(self, place: Place) -> Tensor:
        """Return a copy of a tensor, whole."""
        parts = [flat.reshape(-1)[start:stop] for flat, start, stop in place.slices]
        joined = torch.cat(parts) if len(parts) > 1 else parts[0].clone()
        return joined.view(place.shape)


def find_tag(checkpoint: Path, tag: str | None = None) -> Path:
    """Return the folder of shards in a checkpoint directory.

    Args:
        checkpoint: the directory that holds ``latest`` and the folder, or the folder itself.
        tag: the folder's name; None takes the one that ``latest`` names, or the only one.

    Raises:
        CheckpointError: there is none, or it is not clear which.
    """
    if tag is None and any(checkpoint.glob("*_model_states.pt")):
        return checkpoint
    latest = checkpoint / "latest"
    folders = sorted(path.parent.name for path in checkpoint.glob("*/*_model_states.pt"))
    names = sorted(set(folders))
    if tag is None and latest.is_file():
        tag = latest.read_text(encoding="utf-8").strip()
    if tag is None and len(names) == 1:
        tag = names[0]
    if tag is not None and tag in names:
        return checkpoint / tag
    if not checkpoint.is_dir():
        what = named_by(checkpoint) or ": no such directory"
        raise CheckpointError(f"{checkpoint}{what}")
    if not names:
        raise CheckpointError(
            f"{checkpoint}: no DeepSpeed checkpoint: no folder in it holds *_model_states.pt"
            f"{_checkpoints_within(checkpoint)}"
        )
    wanted = f"no folder {tag!r} with shards in it" if tag else "no `latest`, and several folders"
    raise CheckpointError(
        f"{checkpoint}: {wanted}; there are {', '.join(names)}: give one as --tag"
    )


def _checkpoints_within(directory: Path) -> str:
    """The end of a sentence that names a run's checkpoints, where the directory has some."""
    found = sorted(directory.glob("checkpoints/*/*/*_model_states.pt"))
    found += sorted(directory.glob("*/*/*_model_states.pt"))
    names = list(dict.fromkeys(str(path.parent.parent) for path in found))
    return f"; give one of its checkpoints: {', '.join(names)}" if names else ""


def open_shards(folder: Path) -> Shards:
    """Read what the shards in `folder` hold; their tensors stay in the files.

    Raises:
        CheckpointError: files of some ranks are missing or torn (all are named), or the
            checkpoint is cut by tensor or pipeline parallelism.
    """
    _refuse_model_parallel(folder)
    optimizers = sorted(
        path for path in folder.glob("*_optim_states.pt") if _RANK.search(path.name)
    )
    if not optimizers:
        return _whole(folder, read_inert(_needed(folder, "mp_rank_00_model_states.pt")))
    first = read_inert(optimizers[0])["optimizer_state_dict"]
    if "fp32_flat_groups" not in first and "single_partition_of_fp32_groups" not in first:
        raise CheckpointError(f"{optimizers[0]}: holds no fp32 weights of ZeRO 1, 2 or 3")
    count = first["partition_count"]
    world_size = max(count) if isinstance(count, list) else int(count)
    stage = 3 if "fp32_flat_groups" in first else 1
    _refuse_missing_ranks(folder, optimizers[0].name, world_size, stage)
    states = [read_inert(_of_rank(optimizers[0], rank)) for rank in range(world_size)]
    optimizer_states = [state["optimizer_state_dict"] for state in states]
    key = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"
    if any(len(state.get(key, ())) != len(first[key]) for state in optimizer_states):
        raise CheckpointError(
            f"{folder}: the ranks' files hold different numbers of parameter groups: they are of "
            "different checkpoints"
        )
    return (_stage_3 if stage == 3 else _stage_1)(folder, optimizer_states)


def _refuse_model_parallel(folder: Path) -> None:
    if any(folder.glob("*mp_rank_01_*")) or any(folder.glob("layer_*")):
        raise CheckpointError(
            f"{folder}: cut by tensor or pipeline parallelism as well; only data parallelism "
            "(ZeRO) can be consolidated here"
        )


def _needed(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        raise CheckpointError(f"{path}: missing; copy the whole folder of the checkpoint")
    return path


def _of_rank(path: Path, rank: int) -> Path:
    return path.with_name(re.sub(r"pp_rank_\d+_", f"pp_rank_{rank}_", path.name))


def _refuse_missing_ranks(folder: Path, example: str, world_size: int, stage: int) -> None:
    names = [example]
    if stage == 3:
        names.append("zero_pp_rank_0_mp_rank_00_model_states.pt")
    paths = [_of_rank(folder / name, rank) for name in names for rank in range(world_size)]
    if stage != 3:
        paths.append(folder / "mp_rank_00_model_states.pt")
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise CheckpointError(
            f"{folder}: written by {world_size} rank(s), and {len(missing)} of its {len(paths)} "
            f"files are missing: {', '.join(missing)}; copy them from the machines that wrote them"
        )
    ranks = {int(found[1]) for path in folder.iterdir() if (found := _RANK.search(path.name))}
    extra = sorted(rank for rank in ranks if rank >= world_size)
    if extra:
        raise CheckpointError(
            f"{folder}: written by {world_size} rank(s), but there are files of rank "
            f"{', '.join(map(str, extra))} too: two checkpoints were written into one folder"
        )


def _all_of(tensor: Tensor) -> Place:
    return Place(slices=((tensor, 0, tensor.numel()),), shape=tuple(tensor.shape))


def _whole(folder: Path, state: Any) -> Shards:
    """Stage 0: every tensor is in the module's own state."""
    module = {name: _all_of(tensor) for name, tensor in state["module"].items()}
    return Shards(
        folder=folder,
        zero_stage=0,
        world_size=int(state.get("dp_world_size", 1)),
        trained=module,
        frozen={},
        buffers={},
        shared={},
    )


def _cut(parts: Sequence[Tensor], start: int, length: int) -> tuple[tuple[Tensor, int, int], ...]:
    """Return the slices of `length` elements from `start` on in `parts` laid end to end."""
    found, offset, stop = [], 0, start + length
    for part in parts:
        low, high = max(start, offset), min(stop, offset + part.numel())
        if low < high:
            found.append((part, low - offset, high - offset))
        offset += part.numel()
    if sum(high - low for _, low, high in found) != length:
        raise CheckpointError(
            f"the flat vectors end at element {offset:,}, but a parameter lies at "
            f"{start:,} to {stop:,}: the shards are of different checkpoints, or torn"
        )
    return tuple(found)


def _stage_1(folder: Path, optimizers: Sequence[Any]) -> Shards:
    """ZeRO 1 and 2: each group's parameters lie end to end in the ranks' parts laid end to end."""
    state = read_inert(folder / "mp_rank_00_model_states.pt")
    groups = [each["single_partition_of_fp32_groups"] for each in optimizers]
    paddings = optimizers[0].get("param_alignment_paddings")
    trained: dict[str, Place] = {}
    for number, shapes in enumerate(state["param_shapes"]):
        parts, offset = [of_rank[number] for of_rank in groups], 0
        for index, (name, shape) in enumerate(shapes.items()):
            length = math.prod(shape)
            trained[name] = Place(slices=_cut(parts, offset, length), shape=tuple(shape))
            offset += length + (paddings[number][index] if paddings is not None else 0)
        _refuse_rest(folder, sum(part.numel() for part in parts) - offset, 2 * len(optimizers))
    shared, buffers = dict(state["shared_params"] or {}), set(state["buffer_names"])
    # Frozen weights lie in the module's own state, in the dtype they were used in.
    rest = {name: _all_of(t) for name, t in state["module"].items() if name not in trained}
    return Shards(
        folder=folder,
        zero_stage=1,
        world_size=len(optimizers),
        trained=trained,
        frozen={n: p for n, p in rest.items() if n not in buffers and shared.get(n) not in trained},
        buffers={name: place for name, place in rest.items() if name in buffers},
        shared=shared,
    )


def _refuse_rest(folder: Path, rest: int, alignment: int) -> None:
    """The ranks' parts are padded to a multiple of `alignment` elements, and hold nothing else."""
    if not 0 <= rest < alignment:
        raise CheckpointError(
            f"{folder}: {rest:,} elements of the flat vectors belong to no parameter: the shards "
            "are of different checkpoints, or of a DeepSpeed whose layout is not known here"
        )


def _stage_3(folder: Path, optimizers: Sequence[Any]) -> Shards:
    """ZeRO 3: each parameter is cut into equal parts, one a rank, the last one padded."""
    ranks = len(optimizers)
    paths = [
        _of_rank(folder / "zero_pp_rank_0_mp_rank_00_model_states.pt", r) for r in range(ranks)
    ]
    states = [read_inert(path) for path in paths]
    flat = [each["fp32_flat_groups"] for each in optimizers]
    shapes = {name: shape for group in states[0]["param_shapes"] for name, shape in group.items()}
    trained: dict[str, Place] = {}
    offset = 0
    for name, shape in shapes.items():
        part = math.ceil(math.prod(shape) / ranks)
        pieces = [cut for of_rank in flat for cut in _cut(of_rank, offset, part)]
        trained[name] = _unpadded(pieces, tuple(shape))
        offset += part
    _refuse_rest(folder, sum(tensor.numel() for tensor in flat[0]) - offset, 1)
    frozen: dict[str, Place] = {}
    for name, shape in (states[0]["frozen_param_shapes"] or {}).items():
        fragments = [state["frozen_param_fragments"][name].reshape(-1) for state in states]
        pieces = [(fragment, 0, fragment.numel()) for fragment in fragments]
        frozen[name] = _unpadded(pieces, tuple(shape))
    module, buffers = states[0]["module"], states[0]["buffer_names"]
    return Shards(
        folder=folder,
        zero_stage=3,
        world_size=ranks,
        trained=trained,
        frozen=frozen,
        buffers={name: _all_of(module[name]) for name in buffers if name in module},
        shared=dict(states[0]["shared_params"] or {}),
    )


def _unpadded(pieces: Sequence[tuple[Tensor, int, int]], shape: tuple[int, ...]) -> Place:
    """Return a place without the padding at the end of the last ranks' parts."""
    left, kept = math.prod(shape), []
    for flat, start, stop in pieces:
        stop = min(stop, start + left)
        if start < stop:
            kept.append((flat, start, stop))
            left -= stop - start
    if left:
        raise CheckpointError(f"{left} elements of a parameter of shape {list(shape)} are missing")
    return Place(slices=tuple(kept), shape=shape)
