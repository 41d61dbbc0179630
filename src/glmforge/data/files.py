"""Which files a path stands for: itself, the data files of a directory, or a hub's dataset.

A directory gives the files whose names end like data. Of a saved Arrow dataset it gives exactly
those that ``state.json`` lists, never what the ``datasets`` library cached beside them; hidden
files and folders are passed over. ``sources`` reads what comes out of here.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

from glmforge.data.hub import is_hub_name
from glmforge.errors import DataError

Paths = str | Path | Sequence[str | Path]
_DATA_SUFFIXES = (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".arrow", ".yml",
                  ".yaml", ".gz", ".zst")  # fmt: skip
DATA_ENDINGS = (*_DATA_SUFFIXES, ".txt", ".md")
"""Names that end so are files', never a hub's; the others of a directory are passed over."""
_DESCRIPTIONS = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}
"""Files of a directory that describe data; asked for by name they are read like any other."""
_LEFTOVER = re.compile(r"(cache-|tmp).*\.arrow")
"""What ``datasets`` leaves beside its files: results of map and filter, unfinished ones."""
_SPLIT_FILE = re.compile(r"(train|test|validation|valid|val|dev|eval)-\d{5}-of-\d{5}\..+")

_SHARD = re.compile(r"(?P<before>.*?)(?P<number>\d+)(?P<of>[-_]of[-_])(?P<total>\d+)(?P<after>.*)")

_SPLIT_NAME = re.compile(r"(?<![^\W_])(dev|valid|validation|val|test|eval)(?![^\W_])")
_SHOWN_FILES = 6


def data_files(path: Paths) -> list[Path]:
    """Every data file of the given files and directories, in order; hub names as they are.

    Raises:
        DataError: paths that do not exist, hold no data file, lack a file of a saved dataset, or
            hold several splits of one; all of them.
    """
    paths = [path] if isinstance(path, str | Path) else list(path)
    wrong = []
    files: list[Path] = []
    for item in paths:
        place = Path(item)
        if place.is_dir():
            found, problem = _files_in(place)
            files.extend(found)
            if problem:
                wrong.append(f"{place}: {problem}")
        elif place.exists() and not place.is_file():
            wrong.append(f"{place}: a pipe or a device; write its data to a file and give that")
        elif place.exists() or is_hub_name(str(item), DATA_ENDINGS):
            files.append(place)
        else:
            wrong.append(f"{place}: no such file; check the path")
    if wrong:
        raise DataError(wrong)
    return files


def names_of(files: Sequence[Path]) -> dict[Path, str]:
    """What reports call each file: its name, with as many folders as tell it from the others."""
    places = {file: file.absolute().parts if file.exists() else (str(file),) for file in files}
    alike: dict[str, set[tuple[str, ...]]] = {}
    for parts in places.values():
        alike.setdefault(parts[-1], set()).add(parts)
    names = {}
    for file, parts in places.items():
        others = alike[parts[-1]] - {parts}
        depth = 1
        while any(other[-depth:] == parts[-depth:] for other in others):
            depth += 1
        names[file] = "/".join(parts[-depth:]).replace("//", "/")
    return names


def passed_over(directory: Path) -> list[Path]:
    """The files of a directory that are not read, hidden ones and descriptions of data left out."""
    read = set(_files_in(directory)[0])
    return [
        path
        for path in _visible(directory)
        if path not in read and path.name not in _DESCRIPTIONS and path.is_file()
    ]


def refuse_shared(train: Paths, validation: Paths) -> None:
    """Refuse to hold out files that are trained on, by their names or their bytes.

    Raises:
        DataError: all of them; or as ``data_files``.
    """
    trained = data_files(train)
    problems = []
    for file in data_files(validation):
        twin = next((other for other in trained if _is_same(file, other)), None)
        if twin is not None:
            copy = "" if file == twin else f" (it holds the same bytes as {twin})"
            problems.append(
                f"{file}: a validation file that is trained on too{copy}, so that its loss would "
                "say nothing of dialogues that the model has not seen; give other dialogues, or "
                "take the file out of data.train"
            )
    if problems:
        raise DataError(problems)


def _is_same(file: Path, other: Path) -> bool:
    if not (file.exists() and other.exists()):
        return file == other  # names of a hub
    if file.stat().st_size != other.stat().st_size:
        return False
    return file.samefile(other) or _digest(file) == _digest(other)


def _digest(file: Path) -> str:
    """The SHA-256 of a file's bytes."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def directory_lines(directory: Path) -> list[str]:
    """Lines for people: what of a directory is read, and what that may not be wanted for.

    Empty for what is no directory.
    """
    if not directory.is_dir():
        return []
    read, others = _files_in(directory)[0], passed_over(directory)
    lines = [f"{directory}: {len(read)} file(s) read: {_listed(read)}"]
    if others:
        lines[0] += f"; not read by their names: {_listed(others)}"
    named = {path: _SPLIT_NAME.search(path.stem) for path in read}
    apart = [path for path, found in named.items() if found]
    if apart and len(apart) < len(read):
        lines.append(
            f"{directory}: {_listed(apart)} is read like the others; where that is another split, "
            "name the files that are meant"
        )
    return lines


def _listed(files: Sequence[Path]) -> str:
    more = f" and {len(files) - _SHOWN_FILES} more" if len(files) > _SHOWN_FILES else ""
    return ", ".join(file.name for file in files[:_SHOWN_FILES]) + more


def _files_in(place: Path) -> tuple[list[Path], str]:
    """The data files of a directory, and why it cannot be read as one set."""
    everything = _visible(place)
    saved = {path.parent: _saved_files(path) for path in everything if path.name == "state.json"}
    listed = {folder: names for folder, names in saved.items() if names}
    missing = [f / name for f, names in listed.items() for name in names if not (f / name).exists()]
    if missing:
        names = ", ".join(path.name for path in missing)
        return [], f"the saved dataset lacks {names}, which its state.json lists; save it again"
    found = [
        path
        for path in everything
        if path.suffix in _DATA_SUFFIXES
        and path.is_file()
        and path.name not in _DESCRIPTIONS
        and (
            path.name in listed[path.parent]
            if path.parent in listed
            else not _LEFTOVER.fullmatch(path.name)
        )
    ]
    if not found:
        others = [path.name for path in everything if path.is_file()][:5]
        there = f" (there are {', '.join(others)}: name a file to have it read)" if others else ""
        return [], f"no file of the directory is named like data{there}"
    arrow = [path for path in found if path.suffix == ".arrow"]
    splits = {path.parent.name for path in arrow} if (place / "dataset_dict.json").exists() else ()
    if len(splits) > 1:
        named = ", ".join(str(place / split) for split in sorted(splits))
        return [], f"a saved dataset with several splits; give one of {named}"
    if lacking := _lacking_shards([path.name for path in found]):
        return [], (
            f"of {lacking[1]} files that belong together it lacks {lacking[0]}; fetch all of them, "
            "or name the files that are to be read"
        )
    matches = [_SPLIT_FILE.fullmatch(path.name) for path in found]
    named_splits = sorted({match.group(1) for match in matches if match})
    if len(named_splits) > 1:
        return [], (
            f"it holds the splits {', '.join(named_splits)}; give the files of one, such as "
            f"{found[-1]}"
        )
    return found, ""


def _lacking_shards(names: Sequence[str]) -> tuple[str, int] | None:
    """The first file missing of ``train-00000-of-00002.parquet`` and its like, and their number."""
    sets: dict[tuple[str, str, str], dict[int, int]] = {}
    for name in names:
        if match := _SHARD.fullmatch(name):
            key = (match["before"], match["of"] + match["total"], match["after"])
            sets.setdefault(key, {})[int(match["number"])] = len(match["number"])
    for (before, end, after), there in sets.items():
        total = int(end[len("-of-") :])
        first = 0 if 0 in there else 1  # both ways to count are in use
        if len(there) < total:
            missing = next(n for n in range(first, first + total) if n not in there)
            return f"{before}{missing:0{min(there.values())}d}{end}{after}", total
    return None


def _visible(place: Path) -> list[Path]:
    """Everything under a directory whose path from there has no hidden part, in order."""
    return sorted(
        path
        for path in place.rglob("*")
        if not any(part.startswith(".") for part in path.relative_to(place).parts)
    )


def _saved_files(state: Path) -> list[str]:
    """The files that a saved dataset consists of; none where ``state.json`` is no list of them."""
    try:
        files = json.loads(state.read_bytes())["_data_files"]
        return [str(file["filename"]) for file in files]
    except (OSError, ValueError, KeyError, TypeError):
        return []
