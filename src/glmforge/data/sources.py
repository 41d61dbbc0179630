"""Paths to conversations: which reader opens a file, and one report of everything wrong.

``read_conversations`` is the simple door (all problems in one error); ``read_source`` gives the
conversations and the problems apart, for ``on_error: skip``, for checking and for preparing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from glmforge.data.conversation import Conversation, Problem
from glmforge.data.examples import problems_error
from glmforge.data.formats import to_conversations
from glmforge.data.reading import Record, read_json_records
from glmforge.data.rules import REPAIRS, check, repair
from glmforge.data.shapes import ShapeOptions
from glmforge.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How files are read: ``columns`` maps our field names to the file's, ``repairs`` names
    the repairs of ``rules.REPAIRS`` that are allowed.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    repairs: tuple[str, ...] = ()


def read_conversations(
    path: str | Path | Sequence[str | Path],
    *,
    columns: Mapping[str, str] | None = None,
    repairs: Sequence[str] = (),
) -> list[Conversation]:
    """Read every conversation of a file (or of several), checked.

    Args:
        path: a data file, a directory of them, or a list of either.
        columns: our field name -> the file's field name.
        repairs: repairs to apply ("merge", "trim", "flatten", "gbk").

    Raises:
        DataError: a file cannot be read or records break rules; all problems in one error.
    """
    options = ReadOptions(columns=columns or {}, repairs=tuple(repairs))
    conversations: list[Conversation] = []
    problems: list[Problem] = []
    for item in iterate([path] if isinstance(path, str | Path) else path, options):
        if isinstance(item, Problem):
            problems.append(item)
            continue
        problems.extend(found for found in check(item) if found.level == "error")
        conversations.append(item)
    if problems:
        raise problems_error(problems)
    if not conversations:
        raise DataError(f"{path}: no record in it; give a file with dialogues")
    return conversations


def iterate(paths: Sequence[str | Path], options: ReadOptions) -> Iterator[Conversation | Problem]:
    """Yield conversations (repaired as asked) and problems of several sources, in order.

    Raises:
        DataError: a path does not exist or a repair is unknown.
    """
    unknown = [name for name in options.repairs if name not in REPAIRS]
    if unknown:
        raise DataError(f"data.repair: unknown {unknown[0]!r}; known are {', '.join(REPAIRS)}")
    shape = ShapeOptions(columns=options.columns, flatten="flatten" in options.repairs)
    for file in data_files(paths):
        for item in read_records(file, options):
            if isinstance(item, Problem):
                yield item
                continue
            for found in to_conversations(item, shape):
                if isinstance(found, Problem):
                    yield found
                else:
                    yield repair(found, options.repairs)[0]


def read_records(file: Path, options: ReadOptions) -> Iterator[Record | Problem]:
    """The records of one file, by the reader that fits it."""
    return read_json_records(file, gbk="gbk" in options.repairs)


def data_files(paths: Sequence[str | Path]) -> list[Path]:
    """Every data file of the given files and directories, in order.

    Raises:
        DataError: paths that do not exist, all of them.
    """
    missing = [str(path) for path in paths if not Path(path).exists()]
    if missing:
        raise DataError([f"{path}: no such file; check data.train" for path in missing])
    files: list[Path] = []
    for path in map(Path, paths):
        files.extend(sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path])
    return files
