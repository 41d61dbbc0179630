"""A few dialogues of a set of any size, and how many there are, in seconds and little memory.

Owns `sample_conversations`, for estimates before a run (``plan``). Of a large uncompressed JSON
Lines file only every k-th line is parsed; other files are read whole, and every k-th dialogue is
kept. Nothing is left to chance: the same files give the same sample. Training reads everything.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from glmforge.data.conversation import Conversation, Problem
from glmforge.data.reading import Record, decode, is_plain_json_lines, parse
from glmforge.data.rules import faults_of
from glmforge.data.sources import (
    Paths,
    ReadOptions,
    convert,
    data_files,
    named,
    names_of,
    read_records,
)

_HEAD_LINES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Dialogues of a set, evenly spread; ``dialogues`` is how many the set has, about."""

    dialogues: int
    conversations: tuple[Conversation, ...]
    problems: tuple[Problem, ...]
    """Of the records that were looked at."""


def sample_conversations(path: Paths, options: ReadOptions, size: int) -> Sample:
    """Take about `size` dialogues, at most twice as many a file; all of a small set.

    Raises:
        DataError: a path does not exist or a repair is unknown.
    """
    options.check()
    dialogues = 0.0
    kept: list[Conversation] = []
    problems: list[Problem] = []
    files = data_files(path)
    names = names_of([*files, *data_files(options.beside)])
    sizes = [file.stat().st_size if file.exists() else 1 for file in files]
    for file, file_bytes in zip(files, sizes, strict=True):
        share = max(1, round(size * file_bytes / max(1, sum(sizes))))
        stride = _line_stride(file, share)
        lines = _every_line(file, stride, options) if stride > 1 else read_records(file, options)
        found = _thinned(convert(named(lines, file, names[file]), options), share)
        dialogues += found.dialogues * stride
        kept += found.conversations
        problems += found.problems
    return Sample(dialogues=round(dialogues), conversations=tuple(kept), problems=tuple(problems))


def _thinned(items: Iterator[Conversation | Problem], size: int) -> Sample:
    """Keep every k-th good dialogue, k doubling so that at most twice `size` are kept."""
    kept: list[Conversation] = []
    problems: list[Problem] = []
    count, stride = 0, 1
    for item in items:
        faults = [item] if isinstance(item, Problem) else faults_of(item)
        problems += faults
        if isinstance(item, Problem) or faults:
            continue
        if count % stride == 0:
            kept.append(item)
            if len(kept) == 2 * size:
                kept, stride = kept[::2], 2 * stride
        count += 1
    return Sample(dialogues=count, conversations=tuple(kept), problems=tuple(problems))


def _line_stride(file: Path, size: int) -> int:
    """Which lines of a file to parse, so that about `size` are: every n-th; 1 is all."""
    if not file.is_file() or not is_plain_json_lines(file):
        return 1
    with file.open("rb") as stream:
        lengths = [len(line) for line in islice(stream, _HEAD_LINES)]
    return max(1, int(file.stat().st_size / (sum(lengths) / len(lengths)) // size))


def _every_line(file: Path, stride: int, options: ReadOptions) -> Iterator[Record | Problem]:
    """Parse every `stride`-th line of a JSON Lines file, the first line among them."""
    gbk, offset = "gbk" in options.repairs, 0
    with file.open("rb") as stream:
        for number, line in enumerate(stream):
            start, offset = offset, offset + len(line)
            if number % stride or not line or line.isspace():
                continue
            source = f"{file.name}:{number + 1}"
            text = decode(line.removeprefix(b"\xef\xbb\xbf"), source, start, file, gbk)
            yield text if isinstance(text, Problem) else parse(text.strip(), source)
