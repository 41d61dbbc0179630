"""Checkpoint folders of transformers' Trainer: which are whole, which are not, and why.

Judged by names, sizes and the small text files alone; shards are never opened. This program cannot
go on with such a run (its optimizer, data order and random states are another program's), but it
names the newest checkpoint that is whole, whose weights a new run or an export may start from.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from glmforge.errors import CheckpointError

_NAME = re.compile(r"checkpoint-(\d+)")
_OPTIMIZER = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_\d+_optim_states\.pt")
_MODEL = re.compile(r"zero_pp_rank_(\d+)_mp_rank_\d+_model_states\.pt")
_WHOLE_MODEL = re.compile(r"mp_rank_\d+_model_states\.pt")
_RANDOM = re.compile(r"rng_state_(\d+)\.pth")
_KINDS = {"optimizer": _OPTIMIZER, "model": _MODEL, "random-state": _RANDOM}

State = Literal["complete", "incomplete", "broken", "unfinished", "no checkpoint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One directory of a run, and what it is."""

    name: str
    step: int | None
    state: State
    problems: tuple[str, ...] = ()

    def sentence(self) -> str:
        """Say what is the matter with it."""
        why = f": {'; '.join(self.problems)}" if self.problems else ""
        return f"{self.name}: {self.state}{why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """All directories of a run that could be taken for checkpoints, by step."""

    directory: Path
    processes: int
    """Processes that wrote the checkpoints, as far as the names tell (0: they do not)."""
    entries: tuple[Entry, ...]

    @property
    def newest(self) -> Entry | None:
        """The complete checkpoint with the highest step."""
        whole = [entry for entry in self.entries if entry.state == "complete"]
        return whole[-1] if whole else None

    def lines(self) -> list[str]:
        """Say which checkpoint is the one to take, and why not the others."""
        count = f", {self.processes} processes" if self.processes else ""
        newest = self.newest
        best = f"{newest.name} (step {newest.step})" if newest else "none"
        passed = [entry for entry in self.entries if entry.state != "complete"]
        return [
            f"{self.directory}: checkpoints of transformers' Trainer{count}",
            f"newest complete checkpoint: {best}",
            *(
                f"complete as well: {entry.name}"
                for entry in self.entries
                if entry.state == "complete" and entry is not newest
            ),
            *(f"skipped {entry.sentence()}" for entry in passed),
        ]


def is_foreign_run(directory: Path) -> bool:
    """Say whether a directory holds checkpoints named as transformers' Trainer names them."""
    return any(_NAME.fullmatch(path.name) for path in directory.glob("checkpoint-*"))


def is_foreign_checkpoint(directory: Path) -> bool:
    """Say whether a directory is named and filled as a checkpoint of transformers' Trainer."""
    return _NAME.fullmatch(directory.resolve().name) is not None and not any(
        directory.glob("manifest.json")
    )


def survey(directory: Path) -> Survey:
    """Look at every directory of a Trainer's run."""
    folders = sorted(path for path in directory.iterdir() if path.is_dir())
    numbered = [path for path in folders if _NAME.fullmatch(path.name)]
    counts = [_processes(path) for path in numbered]
    processes = max(counts, default=0)
    entries = [_judge(path, processes) for path in folders if "checkpoint" in path.name]
    entries.sort(key=lambda entry: (entry.step is None, entry.step or 0, entry.name))
    return Survey(directory=directory, processes=processes, entries=tuple(entries))


def check_whole(checkpoint: Path) -> Survey:
    """Refuse a Trainer's checkpoint that is not whole, by name.

    Its siblings tell how many processes there were: a lost rank leaves no trace in itself.

    Raises:
        CheckpointError: what it lacks, and the newest complete one.
    """
    found = survey(checkpoint.resolve().parent)
    mine = next(entry for entry in found.entries if entry.name == checkpoint.resolve().name)
    if mine.state == "complete":
        return found
    newest = found.newest
    other = f"the newest complete one is {newest.name}" if newest else "no other one is complete"
    raise CheckpointError(
        [f"{checkpoint}: {mine.state}: {problem}" for problem in mine.problems]
        + [f"{checkpoint.parent}: {other}"]
    )


def _processes(checkpoint: Path) -> int:
    """As trainer_state.json has it, or one more than the highest rank that a file's name has."""
    state = _trainer_state(checkpoint)
    if isinstance(said := state.get("world_size"), int):
        return said
    names = [path.name for path in checkpoint.rglob("*") if path.is_file()]
    ranks = [
        int(found[1])
        for pattern in _KINDS.values()
        for name in names
        if (found := pattern.fullmatch(name))
    ]
    return max(ranks, default=-1) + 1


def _judge(path: Path, processes: int) -> Entry:
    if path.name.startswith("tmp-"):
        return Entry(
            name=path.name,
            step=None,
            state="unfinished",
            problems=("its save never ended",),
        )
    match = _NAME.fullmatch(path.name)
    if match is None:
        return Entry(name=path.name, step=None, state="no checkpoint")
    broken = [*_wrong_tag(path), *_empty_files(path), *_wrong_step(path, int(match[1]))]
    missing = [] if broken else _missing_files(path, processes)
    state: State = "broken" if broken else "incomplete" if missing else "complete"
    return Entry(name=path.name, step=int(match[1]), state=state, problems=(*broken, *missing))


def _tag(path: Path) -> str | None:
    latest = path / "latest"
    return latest.read_text(encoding="utf-8", errors="replace").strip() if latest.exists() else None


def _wrong_tag(path: Path) -> list[str]:
    tag = _tag(path)
    if tag is None or (path / tag).is_dir():
        return []
    return [f"`latest` names {tag}, which does not exist"]


def _empty_files(path: Path) -> list[str]:
    files = sorted(file for file in path.rglob("*") if file.is_file() and not file.stat().st_size)
    if not files:
        return []
    names = ", ".join(file.relative_to(path).as_posix() for file in files[:2])
    more = f" and {len(files) - 2} more" if len(files) > 2 else ""
    return [f"{len(files)} file(s) of 0 bytes (a disk that was full?): {names}{more}"]


def _wrong_step(path: Path, step: int) -> list[str]:
    said = _trainer_state(path).get("global_step", step)
    return [] if said == step else [f"renamed: trainer_state.json says step {said}"]


def _trainer_state(path: Path) -> dict[str, Any]:
    """Return trainer_state.json, or what can be said in place of it."""
    state = path / "trainer_state.json"
    if not state.exists():
        return {}
    try:
        values = json.loads(state.read_text(encoding="utf-8"))
    except ValueError:
        return {"global_step": "nothing readable"}
    return values if isinstance(values, dict) else {}


def _missing_files(path: Path, processes: int) -> list[str]:
    """Name the files that a checkpoint of so many processes lacks."""
    tag = _tag(path)
    found = []
    if not (path / "trainer_state.json").exists():
        found.append("trainer_state.json")
    for kind, pattern in _KINDS.items():
        place = path if tag is None or kind == "random-state" else path / tag
        if tag is not None or kind == "random-state":
            found += _lost_ranks(place, pattern, processes)
    has_weights = any(path.glob("*.safetensors")) or any(path.glob("*.bin"))
    if tag is None and not has_weights:
        found.append("weights, or `latest` and the folder of shards that it names")
    return [f"missing: {', '.join(found)}"] if found else []


def _lost_ranks(place: Path, pattern: re.Pattern[str], processes: int) -> list[str]:
    """Name the files of the ranks that have none, after the pattern of those that have."""
    names = sorted(file.name for file in place.iterdir() if file.is_file())
    present = {int(match[1]): name for name in names if (match := pattern.fullmatch(name))}
    if pattern is _MODEL and not present and any(map(_WHOLE_MODEL.fullmatch, names)):
        return []  # ZeRO-1 and 2: one file holds the whole model
    if not present:
        return [] if processes <= 1 else [f"every file like {pattern.pattern}"]
    rank, example = next(iter(present.items()))
    return [
        example.replace(f"rank_{rank}_", f"rank_{lost}_").replace(f"_{rank}.pth", f"_{lost}.pth")
        for lost in range(processes)
        if lost not in present
    ]
