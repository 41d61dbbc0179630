"""Tables and trees to records: CSV, Parquet and Arrow, dataset directories, YAML, plain text.

The same contract as ``reading``: records with their place, problems in place of what cannot be
read. Columnar files pad every struct with nulls; those are dropped here, so that tools come out
as they went in; a column that is null stays, as it does in JSON. A row of a columnar file is named
``file:row`` (1-based).
"""

import csv
import functools
import re
from collections.abc import Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from glmforge.data.conversation import Problem
from glmforge.data.reading import Record, decode, numbered, open_stream

Items = Iterator[Record | Problem]
_START_BYTES = 1 << 16
_LINE_END = re.compile("\r\n|\r|\n")


def read_csv(path: Path, gbk: bool) -> Items:
    """Yield the rows of a CSV or TSV file; its first line that is not blank names the columns.

    Quotes are taken strictly, since a lenient reader lets one stray quote swallow the rows after
    it into a single answer.
    """
    csv.field_size_limit(1 << 30)
    with open_stream(path) as stream:
        lines = _DecodedLines(stream, path, gbk)
        first = next((line for line in lines if line.strip()), "")
        columns, delimiter = csv_columns(first), _delimiter(first)
        if twice := sorted({name for name in columns if name and columns.count(name) > 1}):
            yield _doubled_columns(f"{path.name}:{lines.number}", twice)
            return
        rows = csv.reader(lines, delimiter=delimiter, strict=True)
        is_written = functools.cache(lambda: _is_written(path, gbk, len(columns), delimiter))
        start = lines.number + 1
        while True:
            row: list[str] | None = None
            fault = ""
            try:
                row = next(rows)
            except StopIteration:
                break
            except csv.Error as error:
                fault = str(error)
            source, span = f"{path.name}:{start}", range(start, lines.number + 1)
            start = lines.number + 1
            if row is None:
                yield _bad_quotes(source, span, fault)
            elif len(row) == len(columns) and swallowed_rows(row, delimiter) and not is_written():
                yield _bad_quotes(source, span, "a cell that holds what look like rows")
            elif lines.bad.isdisjoint(span):
                yield from _csv_record(row, columns, source)
            yield from lines.take_problems()
        yield from lines.take_problems()


def _is_written(path: Path, gbk: bool, columns: int, delimiter: str) -> bool:
    """Whether the quotes of a table are a program's, so that a cell like rows is meant so.

    Then all rows are whole, and cells of one line that hold the delimiter are quoted for it, in as
    many rows at least as there are cells in doubt.
    """
    sure = doubtful = 0
    with open_stream(path) as stream:
        lines = _DecodedLines(stream, path, gbk)
        next((line for line in lines if line.strip()), "")
        try:
            for row in csv.reader(lines, delimiter=delimiter, strict=True):
                if len(row) != columns and any(cell.strip() for cell in row):
                    return False
                if swallowed_rows(row, delimiter):
                    doubtful += 1
                else:
                    sure += any(delimiter in cell and "\n" not in cell for cell in row)
        except csv.Error:
            return False
    return sure >= doubtful


def _doubled_columns(source: str, names: list[str]) -> Problem:
    """The problem of a header that names columns twice: a record would keep the last of each."""
    text = f"the header names more than one column {', '.join(map(repr, names))}"
    advice = "give each column a name of its own, or remove the further ones"
    return _problem(source, "doubled-column", f"{text}; nothing after it was read", advice)


def _bad_quotes(source: str, span: range, what: str) -> Problem:
    """The problem of a row whose quotes do not match; ``what`` is the csv module's word for it."""
    text = f"the row is no CSV ({what})"
    if what == "unexpected end of data":
        text = "a quote that is opened in this row is never closed; nothing after it was read"
    elif len(span) > 1:
        text += f"; lines {span[0]} to {span[-1]} were taken for one row"
    advice = (
        "close the quote at the end of its cell, and write a quote inside a quoted cell twice; "
        "where the lines of a cell are meant so, give the data as JSON Lines"
    )
    return _problem(source, "not-csv", text, advice)


def swallowed_rows(row: list[str], delimiter: str) -> bool:
    """Whether a cell of several lines holds rows of the table, taken in by two stray quotes.

    Then its first line is the rest of a row from that cell on, each inner one a row, and the last
    one a row up to that cell, by their delimiters; none is followed by white space, as in prose.
    In two columns, two lines prove nothing.
    """
    columns = len(row)

    def has(line: str, cells: int) -> bool:
        parts = line.split(delimiter)
        return len(parts) == cells and not any(part[:1].isspace() for part in parts)

    for place, cell in enumerate(row):
        lines = _LINE_END.split(cell.rstrip("\r\n"))
        if columns < 2 or len(lines) < (3 if columns == 2 else 2):
            continue
        ends = has(lines[0], columns - place) and has(lines[-1], place + 1)
        if ends and all(has(line, columns) for line in lines[1:-1]):
            return True
    return False


class _DecodedLines:
    """The decoded lines of a file, counting them and keeping the problems of the bad ones."""

    def __init__(self, stream: BinaryIO, path: Path, gbk: bool) -> None:
        self._lines, self._path, self._gbk = _lines_of(stream), path, gbk
        self.number = 0
        self._offset = 0
        self.bad: set[int] = set()
        self._problems: list[Problem] = []

    def __iter__(self) -> "_DecodedLines":
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self.number += 1
        start, self._offset = self._offset, self._offset + len(line)
        source = f"{self._path.name}:{self.number}"
        text = decode(line, source, start, self._path, self._gbk)
        if isinstance(text, Problem):
            self.bad.add(self.number)
            self._problems.append(text)
            return "\n"
        return text.removeprefix("\ufeff") if self.number == 1 else text

    def take_problems(self) -> list[Problem]:
        problems, self._problems = self._problems, []
        return problems


def _lines_of(stream: BinaryIO) -> Iterator[bytes]:
    """The lines of a file; where a carriage return alone ends the first, it ends others too.

    So old Macs and their spreadsheets write; the latter may have line feeds inside of cells.
    """
    first = re.search(b"\r\n?|\n", cast(BufferedReader, stream).peek(_START_BYTES))
    if first is None or first.group() != b"\r":
        yield from stream
        return
    rest = b""
    while block := stream.read(_START_BYTES):
        *whole, rest = re.split(b"[\r\n]", rest + block)
        yield from (line + b"\n" for line in whole)
    if rest:
        yield rest


def _csv_record(row: list[str], columns: list[str], source: str) -> Items:
    if not any(cell.strip() for cell in row):
        return
    if len(row) != len(columns):
        text = f"the row has {len(row)} cells for {len(columns)} columns"
        advice = "quote cells that hold the delimiter, and write empty cells out"
        yield _problem(source, "not-csv", text, advice)
        return
    yield Record(source=source, value=dict(zip(columns, row, strict=True)))


def _delimiter(header: str) -> str:
    """What divides the cells: the first of tab, comma and semicolon that the header holds."""
    return next((mark for mark in "\t,;" if mark in header), ",")


def csv_columns(first_line: str) -> list[str]:
    """The columns that a first line would name if the file were a table; none if it is no CSV."""
    try:
        return next(csv.reader([first_line], delimiter=_delimiter(first_line)), [])
    except csv.Error:
        return []


def read_parquet(path: Path) -> Items:
    """Yield the rows of a Parquet file, a batch in memory at a time."""
    with pq.ParquetFile(path) as file:
        yield from _batches(file.iter_batches(batch_size=1024), path)


def read_arrow(path: Path) -> Items:
    """Yield the rows of an Arrow file (stream or random access)."""
    with pa.memory_map(str(path)) as source:
        if source.read(6) == b"ARROW1":
            file = pa.ipc.open_file(source)
            numbers = range(file.num_record_batches)
            yield from _batches((file.get_batch(number) for number in numbers), path)
        else:
            source.seek(0)
            yield from _batches(iter(pa.ipc.open_stream(source)), path)


def _batches(batches: Iterator[pa.RecordBatch], path: Path) -> Items:
    number = 0
    for batch in batches:
        batch.validate(full=True)  # or a damaged file reads foreign memory, or none at all
        for row in batch.to_pylist():
            number += 1
            yield Record(source=f"{path.name}:{number}", value=without_padding(row))


def without_padding(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without the nulls inside its columns; a column that is null stays."""
    return {name: without_nulls(cell) for name, cell in row.items()}


def without_nulls(value: Any) -> Any:
    """A value without the object fields that are null, at any depth."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def read_yaml(path: Path, gbk: bool = False) -> Items:
    """Yield question/answer lists of a ChatterBot corpus; every further answer is a record."""
    with open_stream(path) as stream:
        lines = _DecodedLines(stream, path, gbk)
        text = "".join(lines)
    if problems := lines.take_problems():
        yield from problems
        return
    try:
        root = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        yield _problem(
            str(path), "not-yaml", f"the file is no YAML ({' '.join(str(error).split())})"
        )
        return
    fields = root.value if isinstance(root, yaml.MappingNode) else []
    lists = [node for key, node in fields if getattr(key, "value", "") == "conversations"]
    if len(lists) > 1:
        source = f"{path.name}:{lists[1].start_mark.line + 1}"
        yield _problem(source, "doubled-key", "the YAML has a second list of conversations")
        return
    if not lists or not isinstance(lists[0], yaml.SequenceNode):
        yield _problem(str(path), "unknown-format", "the YAML has no list of conversations")
        return
    for node in lists[0].value:
        source = f"{path.name}:{node.start_mark.line + 1}"
        parts = node.value if isinstance(node, yaml.SequenceNode) else []
        texts = [part.value for part in parts if isinstance(part, yaml.ScalarNode)]
        if len(texts) < 2 or len(texts) < len(parts):
            yield _problem(source, "bad-pair", "the entry is no question with an answer")
            continue
        for place, answer in enumerate(texts[1:], 1):
            value = {"query": texts[0], "response": answer}
            yield Record(source=numbered(source, place), value=value)


def read_plain_text(path: Path, gbk: bool) -> Items:
    """Yield documents for continued pretraining: paragraphs divided by blank lines."""
    with open_stream(path) as stream:
        lines = _DecodedLines(stream, path, gbk)
        paragraph: list[str] = []
        start = 1
        for line in lines:
            if not line.strip():
                yield from _paragraph(paragraph, f"{path.name}:{start}")
                paragraph = []
            else:
                start = start if paragraph else lines.number
                paragraph.append(line.rstrip("\r\n"))
            yield from lines.take_problems()
        yield from _paragraph(paragraph, f"{path.name}:{start}")


def _paragraph(lines: list[str], source: str) -> Items:
    if lines:
        yield Record(source=source, value={"text": "\n".join(lines)})


def _problem(
    source: str, rule: str, text: str, advice: str = "correct it or leave it out"
) -> Problem:
    return Problem(source=source, rule=rule, text=text, advice=advice)
