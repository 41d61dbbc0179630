"""JSON that is one document instead of lines: an array of records, or objects one after another.

The text is decoded and parsed piece by piece, so that an array of any size needs little more than
its longest record. Faults carry the line and column of the file; records before one are read.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import BinaryIO, Protocol

from glmforge.data.conversation import Problem

_PIECE = 1 << 20  # bytes read at a time
_NEAR_END = 16  # characters: a fault so near to what was read so far may be its cut end
_BLANK = re.compile(r"\s*")
_BLANK_OR_COMMA = re.compile(r"[\s,]*")
Value = tuple[int, object]


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
    """Yield (line, value) of every record, and a problem where the text is no JSON from there on.

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
    between = _BLANK_OR_COMMA if is_array else _BLANK
    while window.skip(between):
        line, _ = window.place(window.at)
        if is_array and window.text[window.at] == "]":
            window.at += 1
            if window.skip(_BLANK):
                line, _ = window.place(window.at)
                yield broken(f"{name}:{line}", "text after the array's closing bracket")
            return
        value = _next_value(window, name, broken)
        if isinstance(value, Problem):
            yield value
            return
        yield line, value[0]
    if is_array:
        line, _ = window.place(len(window.text))
        yield broken(f"{name}:{line}", "the array is not closed: the file is cut short")


_decode = json.JSONDecoder().raw_decode


def _next_value(
    window: _Text, name: str, broken: Callable[[str, str], Problem]
) -> tuple[object] | Problem:
    """Parse one value, reading on while it may only be cut."""
    while True:
        try:
            value, end = _decode(window.text, window.at)
            after = window.text[end : end + 1]  # "1" may be the beginning of "1.5"
            if window.ended or (after and (after not in "0123456789.eE+-")):
                window.at = end
                return (value,)
        except json.JSONDecodeError as error:
            near_end = error.pos >= len(window.text) - _NEAR_END
            if window.ended or not (near_end or error.msg.startswith("Unterminated string")):
                line, column = window.place(error.pos)
                return broken(f"{name}:{line}", f"{error.msg} at column {column}")
        except (RecursionError, ValueError) as error:
            line, _ = window.place(window.at)
            return broken(f"{name}:{line}", f"a value that cannot be read ({str(error)[:80]})")
        window.grow()
