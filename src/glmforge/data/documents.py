"""JSON that is one document instead of lines: an array of records, or objects one after another.

The text is decoded and parsed piece by piece, so that an array of any size needs little more than
its longest record. Faults carry the line and column of the file; records before one are read.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import BinaryIO, Protocol

from glmforge.data.conversation import Problem
from glmforge.data.json_text import BadJson, read_json_at

_PIECE = 1 << 20  # bytes read at a time
_NEAR_END = 16  # characters: a fault so near to what was read so far may be its cut end
_BLANK = re.compile(r"\s*")
Value = tuple[int, object | BadJson]


class Decoder(Protocol):
    """Bytes to text, piece by piece, as ``codecs.IncrementalDecoder`` does it."""

    def decode(self, input: bytes, final: bool = False) -> str:
        """Return the text of what is whole so far."""
        ...


class _Text:
    """A window on a document's text that moves forward; knows its place in the file."""

    def __init__(self, stream: BinaryIO, decoder: Decoder) -> None:
        self._stream = stream
        self._decoder = decoder
        self.text = ""
        self.at = 0  # where in ``text`` the next value is looked for
        self._told = 0  # the place that was told last: places are asked for in order
        self._line = 1  # of that place
        self._line_start = 0  # where it begins; negative: before ``text``
        self.ended = False

    def grow(self) -> None:
        """Read more: as much again as is held, at least a piece.

        Raises:
            What the decoder raises for bytes that it cannot read.
        """
        self._forget()
        data = self._stream.read(max(_PIECE, len(self.text)))
        self.ended = not data
        self.text += self._decoder.decode(data, final=self.ended)

    def _forget(self) -> None:
        self.place(self.at)
        self.text = self.text[self.at :]
        self._line_start -= self.at
        self.at = self._told = 0

    def skip(self, pattern: re.Pattern[str]) -> bool:
        """Pass over what a pattern matches; say whether anything follows."""
        while True:
            self.at = pattern.match(self.text, self.at).end()  # type: ignore[union-attr]
            if self.at < len(self.text):
                return True
            if self.ended:
                return False
            self.grow()

    def place(self, at: int) -> tuple[int, int]:
        """Line and column (from 1) of a position of the window, none before the last asked for."""
        last = self.text.rfind("\n", self._told, at)
        if last >= 0:
            self._line += self.text.count("\n", self._told, at)
            self._line_start = last + 1
        self._told = at
        return self._line, at - self._line_start + 1


def read_document(
    stream: BinaryIO, decoder: Decoder, name: str, broken: Callable[[str, str], Problem]
) -> Iterator[Value | Problem]:
    """Yield (line, value) of every record, and a problem of wrong commas and where JSON ends.

    A value that cannot be used is a ``BadJson``.

    Args:
        stream: at the document's beginning.
        decoder: of the text, at its beginning.
        name: the file's name, for problems.
        broken: makes a problem of a place and what is wrong there.

    Raises:
        What the decoder raises for bytes it cannot read; records before them were yielded.
    """
    window = _Text(stream, decoder)
    if not window.skip(_BLANK):
        return
    is_array = window.text.startswith("[", window.at)
    window.at += is_array
    count = 0
    while True:
        commas = _commas(window) if is_array else 0
        if not window.skip(_BLANK):
            break
        line, _ = window.place(window.at)
        closing = is_array and window.text[window.at] == "]"
        if is_array and commas != (count > 0 and not closing):
            yield _wrong_commas(f"{name}:{line}", missing=not commas)
        if closing:
            window.at += 1
            if window.skip(_BLANK):
                line, _ = window.place(window.at)
                yield broken(f"{name}:{line}", "text after the array's closing bracket")
            return
        try:
            yield line, _next_value(window)
        except json.JSONDecodeError as error:
            line, column = window.place(error.pos)
            yield broken(f"{name}:{line}", f"{error.msg} at column {column}")
            return
        except BadJson as error:
            yield broken(f"{name}:{line}", f"a value {error.text}")
            return
        count += 1
    if is_array:
        line, _ = window.place(len(window.text))
        yield broken(f"{name}:{line}", "the array is not closed: the file is cut short")


def _commas(window: _Text) -> int:
    """Pass over white space and commas; how many of these there were."""
    count = 0
    while window.skip(_BLANK) and window.text[window.at] == ",":
        window.at += 1
        count += 1
    return count


def _wrong_commas(source: str, *, missing: bool) -> Problem:
    text = "the array has a comma too many before this place"
    if missing:
        text = "the array has no comma between this record and the one before"
    advice = "correct that; a record may be missing there"
    return Problem(source=source, rule="not-json", text=text, advice=advice)


def _next_value(window: _Text) -> object | BadJson:
    """Parse one value, reading on while it may only be cut.

    Raises:
        json.JSONDecodeError: the text is no JSON there.
        BadJson: it is such, and its end cannot be told.
    """
    while True:
        value: object
        end: int | None
        try:
            value, end = read_json_at(window.text, window.at)
        except BadJson as error:
            value, end = error, error.end
            if end is None:
                raise
        except json.JSONDecodeError as error:
            near_end = error.pos >= len(window.text) - _NEAR_END
            if window.ended or not (near_end or error.msg.startswith("Unterminated string")):
                raise
            end = None
        if end is not None:
            after = window.text[end : end + 1]  # "1" may be the beginning of "1.5"
            if window.ended or (after and (after not in "0123456789.eE+-")):
                window.at = end
                return value
        window.grow()
