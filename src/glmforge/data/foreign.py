"""Files that hold data but are none of ours: archives, databases, pickles, told by their bytes.

Without this they would be read as broken JSON, and the report would tell of encodings. ``sources``
asks before it chooses a reader.
"""

from pathlib import Path

from glmforge.data.conversation import Problem

_FOREIGN: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"PK\x03\x04", "a zip archive or an Excel workbook", "unpack it, or save it as CSV"),
    (257, b"ustar", "a tar archive", "unpack it"),
    (0, b"BZh", "compressed with bzip2", "unpack it, or compress it with gzip or zstd"),
    (0, b"\xfd7zXZ\x00", "compressed with xz", "unpack it, or compress it with gzip or zstd"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it"),
    (0, b"SQLite format 3\x00", "a SQLite database", "write its table to JSON Lines"),
    (0, b"\x89HDF", "an HDF5 file", "write its records to JSON Lines"),
    (0, b"\x93NUMPY", "a NumPy array", "write its records to JSON Lines"),
    (0, b"\x80\x02", "a pickle", "write its records to JSON Lines"),
    (0, b"\x80\x04", "a pickle", "write its records to JSON Lines"),
    (0, b"%PDF", "a PDF", "give its text"),
)
"""What is no data file of ours, by bytes at a place, and what to do about it."""


def foreign_kind(head: bytes) -> tuple[str, str] | None:
    """What a file is that we do not read, by its first bytes, and what to do; None for others."""
    for place, magic, kind, advice in _FOREIGN:
        if head.startswith(magic, place):
            return kind, advice
    return None


def foreign_file(path: Path, kind: tuple[str, str]) -> Problem:
    """The problem of a file that ``foreign_kind`` knows."""
    what, advice = kind
    return Problem(
        source=str(path),
        rule="no-data-file",
        text=f"the file is {what}",
        advice=f"{advice}, and give the data files",
    )
