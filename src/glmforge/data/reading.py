"""Files to records: bytes in, ``(file:line, JSON value)`` out, and every fault with its place.

JSON Lines or a JSON array is told by the first bytes, not by the file name; gzip and zstandard
by their magic. Both stream, so a file of any size needs the memory of one record (``documents``).
A line that cannot be read becomes a ``Problem`` and reading goes on: one pass reports them all.
What a record *means* is the business of ``formats``; tables (CSV, Parquet) are in ``tables``.
"""

import codecs
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa

from glmforge.data.conversation import Problem
from glmforge.data.documents import read_document
from glmforge.data.encodings import looks_like_big5, unmarked_unicode
from glmforge.data.json_text import BadJson, read_json
from glmforge.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One JSON value of a file and where it stands (``train.jsonl:17``)."""

    source: str
    value: Any


_MAGIC_GZIP = b"\x1f\x8b"
_MAGIC_ZSTD = b"\x28\xb5\x2f\xfd"
# Runs of four and more characters of Chinese text in UTF-8; by chance not to be met in GBK.
_UTF8_WORDS = re.compile(
    rb"(?<![\x80-\xff])(?:[\xe3-\xe9][\x80-\xbf]{2}|\xef[\xbc\xbd][\x80-\xbf]){4,}(?![\x80-\xff])"
)
PLAIN_TEXT = (".txt", ".md", ".txt.gz", ".md.gz", ".txt.zst", ".md.zst")
"""Names of files that are taken for plain text where their first bytes tell of nothing else."""
_JUDGED_LINES = 100
"""Lines after a broken first one that say what kind of file it is."""
_WRONG_UNICODE = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


def open_stream(path: Path) -> BinaryIO:
    """Open a file for reading, decompressed when its first bytes say gzip or zstandard.

    Raises:
        DataError: the file is missing, is a directory or may not be read.
    """
    try:
        with path.open("rb") as raw:
            head = raw.read(4)
        if head.startswith(_MAGIC_GZIP):
            return cast(BinaryIO, gzip.open(path, "rb"))
        if head.startswith(_MAGIC_ZSTD):
            return io.BufferedReader(pa.CompressedInputStream(str(path), "zstd"))
        return path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path") from error


def read_json_records(path: Path, *, gbk: bool = False) -> Iterator[Record | Problem]:
    """Yield every record of a JSON Lines or JSON array file, or a problem in its place.

    Args:
        path: the file; its name is what the sources show.
        gbk: read a line that is not UTF-8 as GB18030 instead of reporting it.

    Raises:
        DataError: the file cannot be opened or is in another Unicode encoding.
    """
    with open_stream(path) as stream:
        first = _next_line(stream, _checked_start(stream, path))
        if not first:
            return
        whole = _is_whole_document(first, stream)
    if whole:
        yield from _document_records(path, gbk)
        return
    with open_stream(path) as stream:
        yield from _line_records(stream, path, gbk)


DAMAGE = (OSError, EOFError, zlib.error, pa.ArrowException, UnicodeDecodeError)
"""What the decompressors and the columnar readers raise for a damaged file."""


def damaged(path: Path, error: Exception) -> Problem:
    """The problem of a file that ends early or holds nonsense."""
    return Problem(
        source=str(path),
        rule="damaged-file",
        text=f"the file is damaged ({' '.join(str(error).split())[:160]})",
        advice="make or fetch it again",
    )


def _checked_start(stream: BinaryIO, path: Path) -> bytes:
    """The first line, its UTF-8 byte order mark removed."""
    line = stream.readline()
    refuse_wrong_unicode(line, path)
    return line.removeprefix(codecs.BOM_UTF8)


def refuse_wrong_unicode(head: bytes, path: Path) -> None:
    """Refuse a file whose first bytes are of another Unicode encoding than UTF-8.

    Raises:
        DataError: it is UTF-16 or UTF-32, with a byte order mark or without.
    """
    marked = (name for mark, name in _WRONG_UNICODE.items() if head.startswith(mark))
    name = next(marked, "") or unmarked_unicode(head)
    if name:
        raise DataError(
            f"{path}:1: the file is {name}, not UTF-8; convert it with `{conversion(path, name)}`"
        )


def conversion(path: Path, encoding: str) -> str:
    """The command that writes a file anew in UTF-8, compressed as it is."""
    with path.open("rb") as raw:
        head = raw.read(4)
    target = f"{path.stem}.utf8{path.suffix}"
    for magic, tool in ((_MAGIC_GZIP, "gzip"), (_MAGIC_ZSTD, "zstd")):
        if head.startswith(magic):
            return f"{tool} -dc {path.name} | iconv -f {encoding} -t UTF-8 | {tool} > {target}"
    return f"iconv -f {encoding} -t UTF-8 {path.name} > {target}"


def _next_line(stream: BinaryIO, line: bytes) -> bytes:
    """``line`` or the first one after it that is not blank, stripped; empty at the file's end."""
    while line and not line.strip():
        line = stream.readline()
    return line.strip()


def _is_whole_document(first: bytes, rest: BinaryIO) -> bool:
    """Whether the file is one JSON document (or several, pretty-printed), not JSON Lines.

    A first line that is complete JSON and no list means JSON Lines; a list on the first line is
    a line of a JSON Lines file only when it holds no objects. A first line that is broken JSON
    is judged by those after it (``rest``).
    """
    if not first.startswith((b"[", b"{")):
        return False
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        return first == b"[" or not _has_own_lines(first, rest)
    return isinstance(value, list) and (not value or isinstance(value[0], dict))


def _has_own_lines(first: bytes, rest: BinaryIO) -> bool:
    """Whether one of the next lines is an object of its own, part of no document around it.

    In a document, what stands before an object is an opening bracket, a colon or a comma.
    """
    before = first
    for number in range(_JUDGED_LINES):
        line = _next_line(rest, rest.readline())
        inside = before.endswith((b",", b"[", b":", b"{"))
        second = number == 0 and first.startswith(b"{")  # an object begins with a key, not with {
        whole = line.startswith(b"{") and line.endswith(b"}")
        if whole and (second or (not inside and _is_json(line))):
            return True
        before = line
    return False


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class LineRange:
    """A stretch of a JSON Lines file: bytes ``start`` to ``end``, first line's number."""

    start: int = 0
    end: int | None = None
    first_line: int = 1


def is_plain_json_lines(path: Path) -> bool:
    """Whether a file is uncompressed JSON Lines, so that stretches of it can be read apart."""
    with open_stream(path) as stream:
        first = _next_line(stream, _checked_start(stream, path))
        whole = _is_whole_document(first, stream)
    with path.open("rb") as raw:
        packed = raw.read(4).startswith((_MAGIC_GZIP, _MAGIC_ZSTD))
    return first.startswith(b"{") and not whole and not packed


def read_json_lines(
    path: Path, stretch: LineRange, *, gbk: bool = False
) -> Iterator[Record | Problem]:
    """Yield the records of a stretch of an uncompressed JSON Lines file."""
    with path.open("rb") as stream:
        yield from _line_records(stream, path, gbk, stretch)


def _line_records(
    stream: BinaryIO, path: Path, gbk: bool, stretch: LineRange | None = None
) -> Iterator[Record | Problem]:
    stretch = stretch or LineRange()
    offset = stretch.start
    if offset:
        stream.seek(offset)
    for number, line in enumerate(stream, stretch.first_line):
        if stretch.end is not None and offset >= stretch.end:
            return
        start, offset = offset, offset + len(line)
        if number == 1 and line.startswith(codecs.BOM_UTF8):
            line = line[len(codecs.BOM_UTF8) :]
            start += len(codecs.BOM_UTF8)
        if not line or line.isspace():
            continue
        source = f"{path.name}:{number}"
        text = decode(line, source, start, path, gbk)
        yield text if isinstance(text, Problem) else parse(text.strip(), source)


def decode(line: bytes, source: str, offset: int, path: Path, gbk: bool) -> str | Problem:
    """Decode strictly as UTF-8; a failure names the byte and, where it fits, GBK.

    Args:
        line: the raw bytes.
        source: ``file:line`` for the problem.
        offset: byte position of ``line`` in the file, 0-based.
        path: the file, for the conversion command.
        gbk: decode as GB18030 where UTF-8 fails.
    """
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        place = offset + error.start
        byte = line[error.start]
    try:
        text = line.decode("gb18030")
        guess = (
            "it reads as GBK: set repair: [gbk] to read such lines so, or, if the whole file is "
            f"GBK, convert it: `{conversion(path, 'GB18030')}`"
        )
    except UnicodeDecodeError:
        text = ""
        guess = "it is no GBK either: find out the encoding and convert the file to UTF-8"
    if looks_like_big5(line, text):
        guess = f"it reads as Big5: convert the file: `{conversion(path, 'BIG5')}`"
    elif _UTF8_WORDS.search(line):
        guess = "it holds UTF-8 and other text together: write it anew at its source"
    elif gbk and text:
        return text
    return Problem(
        source=source,
        rule="not-utf-8",
        text=f"the line is not UTF-8 (byte offset {place}, byte 0x{byte:02x})",
        advice=guess,
    )


def parse(text: str, source: str) -> Record | Problem:
    """Parse one line of JSON."""
    try:
        return Record(source=source, value=read_json(text))
    except json.JSONDecodeError as error:
        what = f"the line is not JSON ({error.msg} at column {error.colno})"
        return _not_json(source, what, "correct the line or remove it")
    except BadJson as error:
        return _bad_record(source, error)


def _bad_record(source: str, error: BadJson) -> Problem:
    text = f"the record {error.text}"
    return Problem(source=source, rule=error.rule, text=text, advice=error.advice)


def _not_json(source: str, text: str, advice: str) -> Problem:
    if source.rpartition(":")[0].endswith(PLAIN_TEXT):
        advice += (
            '; if the file is plain text, it may not begin with "{" or "[": put a heading before '
            'its first line, or write it as JSON Lines, {"text": "..."} a document'
        )
    return Problem(source=source, rule="not-json", text=text, advice=advice)


def _document_records(path: Path, gbk: bool) -> Iterator[Record | Problem]:
    """Records of a JSON array, or of objects one after another."""
    fault = _first_bad_line(path) if gbk else None
    utf8 = codecs.getincrementaldecoder("utf-8-sig")()
    decoder = utf8 if fault is None else _LineDecoder(path)
    last = place = 0  # the line of the record before, and how many begin on it
    with open_stream(path) as stream:
        try:
            for found in read_document(stream, decoder, path.name, _broken):
                if isinstance(found, Problem):
                    yield found
                else:
                    line, value = found
                    place = place if line == last else 0
                    last, place = line, place + 1
                    source = numbered(f"{path.name}:{line}", place)
                    if isinstance(value, BadJson):
                        yield _bad_record(source, value)
                    else:
                        yield Record(source=source, value=value)
            return
        except UnicodeDecodeError:
            problem = _first_bad_line(path)
            assert problem is not None, "strict decoding failed somewhere"
        except _BadLine as error:
            problem = error.problem
    yield replace(problem, text=f"{problem.text}; nothing after it was read")


def numbered(source: str, place: int) -> str:
    """The source of the ``place``-th record of one line (from 1): ``a.json:1``, ``a.json:1#2``."""
    return source if place == 1 else f"{source}#{place}"


class _BadLine(Exception):
    """A line of a document that is in no encoding it may be in."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.text)
        self.problem = problem


class _LineDecoder:
    """Decodes a document line by line: each as UTF-8 or, where it is none, as GBK."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rest: list[bytes] = []  # of a line whose end has not been read
        self._line, self._offset = 1, 0

    def decode(self, input: bytes, final: bool = False) -> str:
        """Return the text of the lines that are whole.

        Raises:
            _BadLine: one is neither.
        """
        self._rest.append(input)
        if not (final or b"\n" in input):
            return ""
        lines = b"".join(self._rest).split(b"\n")
        self._rest = [] if final else [lines.pop()]
        return "\n".join(map(self._text, lines)) + ("" if final else "\n")

    def _text(self, line: bytes) -> str:
        source, start = f"{self._path.name}:{self._line}", self._offset
        self._line, self._offset = self._line + 1, start + len(line) + 1
        found = decode(line, source, start, self._path, gbk=True)
        if isinstance(found, Problem):
            raise _BadLine(found)
        return found.removeprefix("\ufeff") if start == 0 else found


def _first_bad_line(path: Path) -> Problem | None:
    """The problem of the first line that is not UTF-8."""
    offset = 0
    with open_stream(path) as stream:
        for number, line in enumerate(stream, 1):
            found = decode(line, f"{path.name}:{number}", offset, path, gbk=False)
            if isinstance(found, Problem):
                return found
            offset += len(line)
    return None


def _broken(source: str, what: str) -> Problem:
    text = f"the file is not JSON from here on ({what})"
    return _not_json(source, text, "correct it there; nothing after it was read")
