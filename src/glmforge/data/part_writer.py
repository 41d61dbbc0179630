"""One part of a prepared set: a unit of work encoded, written and described, once.

A part is an Arrow file with a JSON file beside it (hash, counts, every problem), each renamed into
place when whole, so parts that were finished before an interruption are used again and several
programs may prepare the same set at once. ``preparing`` decides about units and directories,
``workers`` runs writers in processes of their own.
"""

import dataclasses
import hashlib
import json
import os
import pickle
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from glmforge.data.conversation import Conversation, Problem
from glmforge.data.encoder import TokenizerLike
from glmforge.data.examples import Counts, Example, encode_many, limit_of
from glmforge.data.prepared import SCHEMA, description, record_batch, sealed, sha256_of
from glmforge.data.reading import LineRange, Record, read_json_lines
from glmforge.data.segments import Labels
from glmforge.data.sources import ReadOptions, convert, named
from glmforge.data.truncation import Truncation
from glmforge.errors import DataError

KEPT_PROBLEMS = 200
"""Faults of a part that its description brings along; the file beside the part has all problems,
those of records dropped as too long included."""
_ROWS_OF_A_BATCH = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareSettings:
    """What the examples depend on besides files and tokenizer; as of ``load_examples``."""

    max_length: int
    labels: Labels = "all_turns"
    truncation: Truncation = "drop_last_turns"
    columns: Mapping[str, str] = field(default_factory=dict)
    repairs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A piece of work: a stretch of lines of a file, or records of it that were read already.

    ``size`` is its share of the file's bytes, for progress. ``name`` is what reports call the file
    (empty: its name alone). ``records`` are pickled records and problems.
    """

    path: Path
    size: int
    name: str = ""
    stretch: LineRange | None = None
    records: tuple[bytes, ...] = ()

    @property
    def identity(self) -> str:
        """What tells it from other units of its set: a part of another is not taken for its own."""
        if self.stretch is not None:
            return f"{self.path}:{self.stretch.start}-{self.stretch.end}"
        digest = hashlib.sha256()
        for record in self.records:
            digest.update(record)
        return f"{self.path}:{digest.hexdigest()}"


@contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Name what cannot be written under a prepared set's directory, and the way out.

    Raises:
        DataError: the system refuses: no such place, no room, no permission.
    """
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{error.filename or directory}: the prepared set cannot be written here "
            f"({error.strerror or error}); choose a directory with data.prepared_dir that may be "
            "written and has room"
        ) from error


_DRAFT = "tmp"


def draft_of(target: Path) -> Path:
    """The name of a file of this process until it is whole: ``part-00000.json.host.123.tmp``."""
    return target.with_name(f"{target.name}.{platform.node()}.{os.getpid()}.{_DRAFT}")


def remove_leftovers(directory: Path) -> None:
    """Remove the drafts of this machine's processes that were killed, never one being written."""
    for path in directory.glob(f"*.{platform.node()}.*.{_DRAFT}"):
        pid = path.name.split(".")[-2]
        if pid.isdecimal() and not _is_running(int(pid)):
            path.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


class PartWriter:
    """Writes parts into one directory with one tokenizer, on one core."""

    def __init__(
        self, tokenizer: TokenizerLike, settings: PrepareSettings, directory: Path
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._limit = limit_of(
            tokenizer,
            max_length=settings.max_length,
            labels=settings.labels,
            truncation=settings.truncation,
        )

    def part(self, number: int, unit: Unit) -> dict[str, Any]:
        """Write a unit's part and its description; return the description.

        Raises:
            DataError: it cannot be written.
        """
        with writing(self._directory):
            return self._part(number, unit)

    def _part(self, number: int, unit: Unit) -> dict[str, Any]:
        name = f"part-{number:05d}.arrow"
        target = self._directory / name
        sidecar = target.with_suffix(".json")
        known = description(sidecar)
        if (
            known is not None
            and known.get("unit") == unit.identity
            and target.is_file()
            and known["sha256"] == sha256_of(target)
        ):
            return _shortened(known)
        counts = Counts()
        problems: list[Problem] = []
        draft = draft_of(target)
        with pa.OSFile(str(draft), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
            for records in self._batches(unit, counts, problems):
                writer.write_batch(record_batch(records))
        draft.replace(target)
        problems.sort(key=lambda problem: problem.line)  # reading finds its own before encoding
        described = {
            "name": name,
            "unit": unit.identity,
            "sha256": sha256_of(target),
            "counts": dataclasses.asdict(counts),
            "problems": [dataclasses.asdict(problem) for problem in problems],
        }
        draft = draft_of(sidecar)
        draft.write_text(json.dumps(sealed(described), ensure_ascii=True), encoding="utf-8")
        draft.replace(sidecar)
        return _shortened(described)

    def _batches(
        self, unit: Unit, counts: Counts, problems: list[Problem]
    ) -> Iterator[list[list[Example]]]:
        """The rows of every record, some thousand rows at a time; a record is never divided."""
        records: list[list[Example]] = []
        rows = 0
        conversations = self._conversations(unit, counts, problems)
        for found, faults in encode_many(
            conversations, self._limit, self._settings.truncation, counts, prefetch=False
        ):
            problems.extend(faults)
            if found:
                records.append(found)
                rows += len(found)
            if rows >= _ROWS_OF_A_BATCH:
                yield records
                records, rows = [], 0
        yield records

    def _conversations(
        self, unit: Unit, counts: Counts, problems: list[Problem]
    ) -> Iterator[Conversation]:
        options = ReadOptions(columns=self._settings.columns, repairs=self._settings.repairs)
        records: Iterator[Record | Problem] = map(pickle.loads, unit.records)
        if unit.stretch is not None:
            records = read_json_lines(unit.path, unit.stretch, gbk="gbk" in options.repairs)
        for item in convert(named(records, unit.path, unit.name or unit.path.name), options):
            if isinstance(item, Problem):
                problems.append(item)
                counts.leave_out(item)
            else:
                yield item


def _shortened(described: dict[str, Any]) -> dict[str, Any]:
    faults = [problem for problem in described["problems"] if problem["level"] == "error"]
    return described | {"problems": faults[:KEPT_PROBLEMS]}
