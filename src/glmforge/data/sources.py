"""Paths to conversations and examples: which reader opens a file, and one report of all faults.

``read_conversations`` is the simple door (all problems in one error), ``load_examples`` the one
of training (faulty records may be skipped, counted and kept for ``skipped.jsonl``), ``iterate``
the stream under both. Readers are chosen by a file's first bytes; its name decides only where
bytes cannot (YAML, plain text).
"""

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from glmforge.data import tables
from glmforge.data.conversation import Conversation, Problem
from glmforge.data.encoder import TokenizerLike
from glmforge.data.examples import (
    Counts,
    Example,
    ExampleSet,
    OnError,
    encode_many,
    finished,
    limit_of,
    problems_error,
)
from glmforge.data.files import DATA_ENDINGS, Paths, data_files, names_of, passed_over
from glmforge.data.foreign import foreign_file, foreign_kind
from glmforge.data.formats import FIELDS, columns_of_pair, find_format, to_conversations
from glmforge.data.hub import read_hub
from glmforge.data.reading import (
    DAMAGE,
    PLAIN_TEXT,
    Record,
    damaged,
    open_stream,
    read_json_records,
    refuse_wrong_unicode,
)
from glmforge.data.rules import REPAIRS, faults_of, repair
from glmforge.data.segments import Labels
from glmforge.data.shapes import ShapeOptions
from glmforge.data.truncation import Truncation
from glmforge.errors import DataError

__all__ = [
    "DATA_ENDINGS",
    "Paths",
    "ReadOptions",
    "convert",
    "data_files",
    "iterate",
    "load_examples",
    "named",
    "names_of",
    "options_name",
    "passed_over",
    "read_conversations",
    "read_records",
    "write_skipped",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How files are read: ``columns`` maps our field names to the file's, ``repairs`` names
    the repairs of ``rules.REPAIRS`` that are allowed, ``beside`` other paths of the same run, from
    whose file names those that are read must differ in reports. ``go_on`` makes a file that cannot
    be read at all a problem among others instead of an error.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    repairs: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    go_on: bool = False

    def check(self) -> None:
        """Refuse unknown repairs, and columns mapped to no field of ours or to two.

        Raises:
            DataError: all that is wrong.
        """
        known = "; ".join(f"{name}: {what}" for name, what in REPAIRS.items())
        wrong = [
            f"data.repair: unknown {name!r}; known are {known}"
            for name in self.repairs
            if name not in REPAIRS
        ]
        for name in self.columns:
            if name not in FIELDS:
                near = difflib.get_close_matches(name, FIELDS, n=1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                wrong.append(
                    f"data.columns: no format has a field {name!r}; {hint}write OURS: THEIRS, ours "
                    f"being one of {', '.join(FIELDS)}"
                )
        for theirs, number in Counter(self.columns.values()).items():
            if number > 1:
                wrong.append(f"data.columns: {theirs!r} is mapped to {number} fields; choose one")
        if wrong:
            raise DataError(wrong)


def read_conversations(
    path: Paths,
    *,
    columns: Mapping[str, str] | None = None,
    repairs: Sequence[str] = (),
    on_error: OnError = "stop",
) -> list[Conversation]:
    """Read every conversation of a file (or of several), checked.

    Args:
        path: a data file, a directory of them, a hub name, or a list of these.
        columns: our field name -> the file's field name.
        repairs: repairs to apply ("merge", "trim", "flatten", "gbk").
        on_error: "skip" leaves faulty records out (``load_examples`` says which).

    Raises:
        DataError: a file cannot be read or records break rules; all problems in one error.
    """
    options = ReadOptions(columns=columns or {}, repairs=tuple(repairs))
    conversations: list[Conversation] = []
    problems: list[Problem] = []
    for item in iterate(path, options):
        faults = [item] if isinstance(item, Problem) else faults_of(item)
        problems.extend(faults)
        if isinstance(item, Conversation) and not faults:
            conversations.append(item)
    if problems and on_error == "stop":
        raise problems_error(problems)
    if not conversations:
        raise DataError(f"{path}: no record in it; give a file with dialogues")
    return conversations


def load_examples(
    path: Paths,
    tokenizer: TokenizerLike,
    *,
    max_length: int,
    labels: Labels = "all_turns",
    truncation: Truncation = "drop_last_turns",
    on_error: OnError = "stop",
    columns: Mapping[str, str] | None = None,
    repairs: Sequence[str] = (),
    max_positions: int | None = None,
) -> ExampleSet:
    """Read, check and encode files in one pass; arguments as of the two doors it joins.

    Returns:
        Examples, counts, and a problem for every record that was left out.

    Raises:
        DataError: as ``read_conversations`` and ``build_examples``; all problems in one error.
    """
    limit = limit_of(
        tokenizer,
        max_length=max_length,
        labels=labels,
        truncation=truncation,
        max_positions=max_positions,
    )
    problems: list[Problem] = []
    counts = Counts()

    def good() -> Iterator[Conversation]:
        for item in iterate(path, ReadOptions(columns=columns or {}, repairs=tuple(repairs))):
            if isinstance(item, Problem):
                problems.append(item)
                counts.leave_out(item)
            else:
                yield item

    examples: list[Example] = []
    for found, faults in encode_many(good(), limit, truncation, counts):
        examples.extend(found)
        problems.extend(faults)
    return finished(examples, counts, problems, on_error)


def iterate(path: Paths, options: ReadOptions) -> Iterator[Conversation | Problem]:
    """Yield conversations (repaired as asked) and problems of several sources, in order.

    Raises:
        DataError: a path does not exist, or options that ``ReadOptions.check`` refuses.
    """
    options.check()
    files = data_files(path)
    names = names_of([*files, *data_files(options.beside)])
    for file in files:
        yield from convert(named(read_records(file, options), file, names[file]), options)


def named(items: Iterator[Record | Problem], file: Path, name: str) -> Iterator[Record | Problem]:
    """The same records and problems with another name of their file in their sources."""
    if name == file.name:
        return items
    return (
        replace(item, source=name + item.source.removeprefix(file.name))
        if item.source.startswith(f"{file.name}:")
        else item
        for item in items
    )


def convert(
    records: Iterator[Record | Problem], options: ReadOptions
) -> Iterator[Conversation | Problem]:
    """Records to conversations, repaired as asked; problems go through."""
    shape = ShapeOptions(columns=options.columns, flatten="flatten" in options.repairs)
    for item in records:
        if isinstance(item, Problem):
            yield item
        else:
            for found in to_conversations(item, shape):
                yield found if isinstance(found, Problem) else repair(found, options.repairs)[0]


def read_records(file: Path, options: ReadOptions) -> Iterator[Record | Problem]:
    """The records of one file; a damaged file ends in a problem, and one without records is one.

    Raises:
        DataError: it cannot be read at all, unless ``options.go_on``.
    """
    is_empty = True
    try:
        for item in _reader_of(file, options):
            is_empty = False
            yield item
        if is_empty:
            yield _no_record(file)
    except DAMAGE as error:
        yield damaged(file, error)
    except DataError as error:
        if not options.go_on:
            raise
        for problem in error.problems:
            what, _, advice = problem.removeprefix(str(file)).partition(": ")[2].partition("; ")
            yield Problem(
                source=str(file), rule="unreadable-file", text=what or problem, advice=advice
            )


def _no_record(file: Path) -> Problem:
    """The problem of a file from which nothing comes: it would be passed over in silence."""
    size = file.stat().st_size if file.exists() else 0
    return Problem(
        source=str(file),
        rule="no-record",
        text=f"there is no record in the file ({size:,} bytes)",
        advice="leave the file out, or see whether it is the right one and complete",
    )


def _reader_of(file: Path, options: ReadOptions) -> Iterator[Record | Problem]:
    """The reader that fits a file's first bytes."""
    gbk = "gbk" in options.repairs
    if not file.exists():
        return read_hub(str(file))
    with open_stream(file) as stream:
        head = stream.read(1 << 16)
    refuse_wrong_unicode(head, file)
    if file.suffix in (".yml", ".yaml"):
        return tables.read_yaml(file, gbk)
    if head.startswith(b"PAR1"):
        return tables.read_parquet(file)
    if head.startswith(b"ARROW1") or file.suffix == ".arrow":
        return tables.read_arrow(file)
    foreign = foreign_kind(head)
    if foreign is not None:
        return iter([foreign_file(file, foreign)])
    text = _beginning(head, gbk).lstrip()
    if text.startswith(("{", "[")):
        return read_json_records(file, gbk=gbk)
    first, *more = re.split("[\r\n]", text, maxsplit=1)
    columns = tables.csv_columns(first.strip())
    names = {options_name(options, column): "" for column in columns}
    is_header = find_format(names) is not None or columns_of_pair(names)
    if is_header and more:
        return tables.read_csv(file, gbk)
    if file.suffix in (".csv", ".tsv"):
        return tables.read_csv(file, gbk)
    if file.name.endswith(PLAIN_TEXT):
        return tables.read_plain_text(file, gbk)
    return read_json_records(file, gbk=gbk)


def _beginning(head: bytes, gbk: bool) -> str:
    """The first bytes of a file as text, to tell its format by."""
    first = head.partition(b"\n")[0]
    try:
        first.decode("utf-8")
    except UnicodeDecodeError:
        return head.decode("gb18030" if gbk else "utf-8-sig", errors="replace")
    return head.decode("utf-8-sig", errors="replace")


def options_name(options: ReadOptions, column: str) -> str:
    """Our name of a file's column."""
    for ours, theirs in options.columns.items():
        if theirs == column:
            return ours
    return column


def write_skipped(problems: Iterable[Problem], path: Path) -> None:
    """Write records that were left out to a JSON Lines file: source, rule, text, advice."""
    with path.open("w", encoding="utf-8") as file:
        for problem in problems:
            values = {
                "source": problem.source,
                "rule": problem.rule,
                "text": problem.text,
                "advice": problem.advice,
            }
            file.write(json.dumps(values, ensure_ascii=True) + "\n")
