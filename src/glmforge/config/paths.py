"""Whether the files and directories that a config names can be used, found out in milliseconds.

A cheap look before any process starts: names and sizes only. What is inside the model and the
data is checked by the rooms that read them.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from glmforge.config.overrides import read_json_map
from glmforge.config.schema import DataSettings, WeightedSource

RUN_FILES = ("config.yaml", "metrics.jsonl", "checkpoints", "adapter", "model", "final.json")
"""A directory that holds one of these holds a run."""

DATA_ENDINGS = (
    ".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".txt", ".md", ".parquet", ".arrow", ".yml",
    ".yaml", ".gz", ".zst",
)  # fmt: skip
_HUB_NAME = re.compile(r"([\w-][\w.-]*/[\w.-]+)(?::[\w.-]+)?")
_POINTER = b"version https://git-lfs"


def path_problems(
    get: Callable[[str], object], *, resume: str | None = None
) -> list[tuple[str, str]]:
    """List (setting, sentence) for every path that cannot be used.

    Args:
        get: gives the value of a dotted setting; values of a wrong type are passed over.
        resume: what `--resume` says, or None for a new run.
    """
    return [
        *_model_problems(get("model.model_name_or_path"), get("model.from_scratch") is True),
        *_data_problems("data.train", get("data.train")),
        *_data_problems("data.validation", get("data.validation")),
        *_deepspeed_problems(get("deepspeed")),
        *_output_problems(get("training.output_dir"), resume),
    ]


def holds_run(directory: Path) -> bool:
    """Say whether a directory already holds a run."""
    return any((directory / name).exists() for name in RUN_FILES)


def is_config_of_run(file: Path) -> bool:
    """Say whether a config file is the one that a run has written into its own directory."""
    place = file.resolve().parent
    written = ("versions.json", "data.json", "deepspeed.json")
    trained = ("checkpoints", "metrics.jsonl")
    return file.name == "config.yaml" and all(
        any((place / name).exists() for name in names) for names in (written, trained)
    )


def elsewhere_problem(file: Path, output_dir: str) -> str | None:
    """Say so where a run's own config names another directory than the one that it lies in.

    The run was moved or copied, or a relative path is read in another folder than it was begun in:
    going on would begin another run, or go on with the original.

    Args:
        file: the config file.
        output_dir: the training.output_dir that is written in it.
    """
    if not is_config_of_run(file):
        return None
    place, named = file.resolve().parent, Path(output_dir).expanduser().resolve()
    if place == named:
        return None
    here, there = "", "which holds no run"
    ways = [f"add training.output_dir={place}"]
    if not Path(output_dir).is_absolute():
        here = f", read in {Path.cwd()}"
        ways.append("or, if it was not moved, give the command in the folder where it was begun")
    if holds_run(named):
        there = "which holds a run too"
        ways.append(f"(for that one, give {named / 'config.yaml'})")
    return (
        f"training.output_dir {output_dir!r} is {named}{here}, {there}, and this is the config of "
        f"the run in {place}: to go on with this run, {' '.join(ways)}"
    )


def copy_at_hand(file: Path) -> str:
    """Say how a run's own config is had again from its newest checkpoint; empty for any other."""
    copies = sorted(file.parent.glob(f"checkpoints/step-*/state/{file.name}"))
    return f". The run's checkpoints have it: cp {copies[-1]} {file}" if copies else ""


def is_hub_name(text: str) -> bool:
    """Say whether a name of no file can be that of a hub dataset.

    It is `owner/name` or `owner/name:split`, without a file's ending, where no directory `owner`
    is at hand.
    """
    found = _HUB_NAME.fullmatch(text)
    if found is None or Path(text).parent.is_dir():
        return False
    return not found.group(1).lower().endswith(DATA_ENDINGS)


def sources_of(
    value: str | WeightedSource | Sequence[str | WeightedSource] | None,
) -> list[tuple[str, float]]:
    """List the sources of `data.train` or `data.validation` as (path, weight)."""
    if value is None:
        return []
    items = [value] if isinstance(value, str | WeightedSource) else value
    return [(item, 1.0) if isinstance(item, str) else (item.path, item.weight) for item in items]


def source_bytes(data: DataSettings) -> int:
    """Add up the files of all sources, in bytes; what is on a hub counts nothing."""
    total = 0
    for name, _ in [*sources_of(data.train), *sources_of(data.validation)]:
        place = Path(name)
        files = place.rglob("*") if place.is_dir() else [place]
        total += sum(file.stat().st_size for file in files if file.is_file())
    return total


def _path(value: object) -> Path | None:
    return Path(value).expanduser() if isinstance(value, str) and value else None


def _model_problems(value: object, from_scratch: bool) -> Iterator[tuple[str, str]]:
    name = "model.model_name_or_path"
    directory = _path(value)
    if directory is None:
        return
    shown = f"{name} {str(directory)!r}"
    if not directory.is_dir():
        what = "is a file, not a directory" if directory.exists() else "does not exist"
        yield (
            name,
            f"{shown} {what}; it must be a local model directory: nothing is downloaded, so "
            "fetch the model first and give its path",
        )
        return
    if not (directory / "config.json").is_file():
        yield name, f"{shown} has no config.json; it is not a model directory"
    if not from_scratch:
        yield from ((name, f"{shown} {what}") for what in weight_problems(directory))


def weight_problems(directory: Path) -> Iterator[str]:
    """Say what a model directory's weight files lack; each sentence follows its name."""
    weights = sorted([*directory.glob("*.safetensors"), *directory.glob("*.bin")])
    if not weights:
        yield (
            "has no weights (*.safetensors or *.bin); download them, or write "
            "model.from_scratch: true with method: full to start from random weights"
        )
    for file in weights:
        if file.stat().st_size < 1024 and file.read_bytes().startswith(_POINTER):
            yield f"holds only a git-lfs pointer in {file.name}; run `git lfs pull` there"
    for index in sorted(directory.glob("*.index.json")):
        content, problem = read_json_map(index)
        if problem:
            yield f"has a damaged {index.name}: it {problem}"
            continue
        table = content.get("weight_map")
        names = sorted(set(map(str, table.values()))) if isinstance(table, dict) else []
        missing = [shard for shard in names if not (directory / shard).is_file()]
        if missing:
            yield (
                f"is incomplete: {len(missing)} of {len(names)} weight files named in "
                f"{index.name} are missing ({', '.join(missing[:3])}); download them again"
            )


def _data_problems(name: str, value: object) -> Iterator[tuple[str, str]]:
    for item in value if isinstance(value, list) else [value]:
        file = _path(item.get("path") if isinstance(item, dict) else item)
        if file is not None and not file.exists() and not is_hub_name(str(file)):
            yield name, f"{name} {str(file)!r} does not exist{_relative(file)}"


def _relative(file: Path) -> str:
    return "; check the path" if file.is_absolute() else f"; the path is relative to {Path.cwd()}"


def _deepspeed_problems(value: object) -> Iterator[tuple[str, str]]:
    file = _path(value)
    if file is not None:
        _, problem = read_json_map(file)
        if problem:
            yield "deepspeed", f"deepspeed {str(file)!r} {problem}"


def _output_problems(value: object, resume: str | None) -> Iterator[tuple[str, str]]:
    name = "training.output_dir"
    directory = _path(value)
    if directory is None:
        return
    shown = f"{name} {str(directory)!r}"
    if directory.exists() and not directory.is_dir():
        yield name, f"{shown} is a file; name a directory"
    elif resume is None and holds_run(directory):
        yield (
            name,
            f"{shown} already holds a run; continue it with --resume auto, or write another "
            "output_dir (nothing is deleted)",
        )
    elif not holds_run(directory):  # a finished run is only read; one that goes on says it itself
        parent = directory
        while not parent.exists():
            parent = parent.parent
        if not os.access(parent, os.W_OK | os.X_OK):
            yield name, f"{shown} cannot be made: no permission to write in {str(parent)!r}"
