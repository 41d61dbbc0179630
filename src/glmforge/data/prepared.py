"""Prepared sets: examples on disk as Arrow files, opened by memory map.

A set is a directory: ``part-*.arrow`` with ids and trained spans, ``part-*.json`` with what was
wrong with its records, and ``manifest.json``, written last, with the hash of every part and the
counts. Opening verifies the hashes, so a damaged set
never trains. Rows are read where they lie; only the facts about them are in memory.
``preparing`` makes these sets.
"""

import bisect
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import pyarrow as pa

from glmforge.data.conversation import Problem
from glmforge.data.examples import Counts, Example, ExampleList, Int64s
from glmforge.data.segments import IGNORED, Ids
from glmforge.data.selection import RowFacts, copy_key_of
from glmforge.errors import DataError

FORMAT_VERSION = 3
MANIFEST = "manifest.json"
SCHEMA = pa.schema(
    [
        ("input_ids", pa.list_(pa.int32())),
        ("spans", pa.list_(pa.int32())),  # start, end, start, end, … of the trained runs
        ("trained", pa.int32()),
        ("source", pa.string()),
        ("copy", pa.uint64()),  # selection.copy_key_of the record
        ("starts", pa.bool_()),  # the first row of a record
    ]
)


def record_batch(records: Sequence[Sequence[Example]]) -> pa.RecordBatch:
    """Lay the rows of records into Arrow columns."""
    examples = [row for rows in records for row in rows]
    keys = [key for rows in records for key in [copy_key_of(rows)] * len(rows)]
    spans = [_spans(example.labels) for example in examples]
    return pa.record_batch(
        [
            _lists([example.input_ids for example in examples]),
            _lists(spans),
            pa.array([int((e.labels != IGNORED).sum()) for e in examples], pa.int32()),
            pa.array([example.source for example in examples], pa.string()),
            pa.array(keys, pa.uint64()),
            pa.array([number == 0 for rows in records for number in range(len(rows))], pa.bool_()),
        ],
        schema=SCHEMA,
    )


def _lists(arrays: Sequence[Ids]) -> pa.ListArray:
    offsets = np.zeros(len(arrays) + 1, np.int32)
    np.cumsum([len(array) for array in arrays], out=offsets[1:])
    values = np.concatenate(arrays) if arrays else np.zeros(0, np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, pa.int32()))


def _spans(labels: Ids) -> Ids:
    trained = np.concatenate([[False], labels != IGNORED, [False]])
    return np.flatnonzero(trained[1:] != trained[:-1]).astype(np.int32)


class PreparedSet(Sequence[Example]):
    """The examples of a prepared set; ``facts`` about them are in memory."""

    def __init__(self, directory: Path, manifest: dict[str, Any]) -> None:
        self.directory = directory
        self.manifest = manifest
        self.counts = Counts(**manifest["counts"])
        self._batches: list[pa.RecordBatch] = []
        for part in manifest["parts"]:
            with pa.memory_map(str(directory / part["name"])) as source:
                reader = pa.ipc.open_file(source)
                self._batches += [reader.get_batch(n) for n in range(reader.num_record_batches)]
        self._ids = [_parts(batch.column("input_ids")) for batch in self._batches]
        self._sources = [batch.column("source") for batch in self._batches]
        self._spans = [_parts(batch.column("spans")) for batch in self._batches]
        self._ends = np.cumsum([len(batch) for batch in self._batches]).tolist()
        nothing = np.zeros(0, np.int64)
        lengths = [np.diff(b.column("input_ids").offsets.to_numpy()) for b in self._batches]
        self.facts = RowFacts(
            lengths=np.concatenate([nothing, *lengths]).astype(np.int64),
            trained_counts=self._column("trained").astype(np.int64),
            copies=self._column("copy").astype(np.uint64),
            starts=self._column("starts").astype(np.bool_),
        )

    def _column(self, name: str) -> Any:
        columns = [batch.column(name).to_numpy(zero_copy_only=False) for batch in self._batches]
        return np.concatenate(columns) if columns else np.zeros(0)

    @property
    def lengths(self) -> Int64s:
        """Tokens of every row."""
        return self.facts.lengths

    @property
    def trained_counts(self) -> Int64s:
        """Trained tokens of every row."""
        return self.facts.trained_counts

    def problems(self) -> Iterator[Problem]:
        """Why records were skipped, every one, in the order of the files.

        Raises:
            DataError: a file beside a part is missing or damaged.
        """
        for part in self.manifest["parts"]:
            path = (self.directory / part["name"]).with_suffix(".json")
            described = description(path)
            if described is None:
                raise DataError(f"{path}: missing or damaged; {_anew(self.directory)}")
            for values in described["problems"]:
                yield Problem(**values)

    @property
    def hash(self) -> str:
        """One hash over all parts: equal hashes mean equal examples."""
        digests = "".join(part["sha256"] for part in self.manifest["parts"])
        return hashlib.sha256(digests.encode()).hexdigest()

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> ExampleList: ...
    def __getitem__(self, index: int | slice) -> Example | ExampleList:
        if isinstance(index, slice):
            return ExampleList(self[at] for at in range(*index.indices(len(self))))
        if not -len(self) <= index < len(self):
            raise IndexError(f"example {index} of {len(self)}")
        index %= len(self)
        number = bisect.bisect_right(self._ends, index)
        row = index - (self._ends[number - 1] if number else 0)
        input_ids = np.array(_item(self._ids[number], row))  # a copy: the map is read-only
        labels = np.full_like(input_ids, IGNORED)
        for start, end in _item(self._spans[number], row).reshape(-1, 2):
            labels[start:end] = input_ids[start:end]
        source = self._sources[number][row].as_py()
        return Example(input_ids=input_ids, labels=labels, source=source)

    def __iter__(self) -> Iterator[Example]:
        return (self[index] for index in range(len(self)))


def _parts(column: pa.ListArray) -> tuple[Ids, Ids]:
    """Views of a list column's values and offsets, where they lie: slicing Arrow is slow."""
    return column.values.to_numpy(zero_copy_only=True), column.offsets.to_numpy()


def _item(parts: tuple[Ids, Ids], row: int) -> Ids:
    values, offsets = parts
    return values[offsets[row] : offsets[row + 1]]


def open_prepared(directory: str | Path, *, verify: bool = True) -> PreparedSet:
    """Open a prepared set.

    Args:
        directory: what ``prepare`` returned or wrote.
        verify: compare the hash of every part with the manifest, the files beside them too.

    Raises:
        DataError: there is no finished set, it is of another format version, or it is damaged
            (all damaged parts are named).
    """
    directory = Path(directory)
    path = directory / MANIFEST
    if not path.is_file():
        raise DataError(f"{directory}: no finished prepared set; run the preparation again")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        version, parts = manifest["format_version"], manifest["parts"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: damaged; {_anew(directory)}") from error
    if version != FORMAT_VERSION:
        raise DataError(
            f"{directory}: format version {version}, this program writes {FORMAT_VERSION}; "
            f"{_anew(directory)}"
        )
    if not is_sealed(manifest):
        raise DataError(f"{path}: not what was written (its seal differs); {_anew(directory)}")
    if verify:
        damaged = [name for part in parts for name in _damaged_files(directory, part["name"], part)]
        if damaged:
            raise DataError(
                [
                    f"{directory / name}: missing or not what was written (its hash differs); "
                    f"{_anew(directory)}"
                    for name in damaged
                ]
            )
    return PreparedSet(directory, manifest)


def _damaged_files(directory: Path, name: str, part: Mapping[str, Any]) -> Iterator[str]:
    """The files of a part that are missing or not as they were written."""
    path = directory / name
    if not path.is_file() or sha256_of(path) != part["sha256"]:
        yield name
    described = description(path.with_suffix(".json"))
    if described is None or described["sha256"] != part["sha256"]:
        yield path.with_suffix(".json").name


def description(path: Path) -> dict[str, Any] | None:
    """What was written of a part; None where it is missing or not as it was written."""
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return values if is_sealed(values) else None


def _anew(directory: Path) -> str:
    """What to do about a set that cannot be used."""
    return f"make it anew with `glmforge data prepare` and the run's config, or delete {directory}"


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description with its own hash in it, so that a changed byte shows."""
    rest = {key: value for key, value in values.items() if key != "seal"}
    text = json.dumps(rest, ensure_ascii=True, sort_keys=True)
    return rest | {"seal": hashlib.sha256(text.encode()).hexdigest()}


def is_sealed(values: Any) -> bool:
    """Say whether a description is as ``sealed`` made it."""
    return isinstance(values, dict) and values.get("seal") == sealed(values)["seal"]


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
