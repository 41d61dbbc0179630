"""Make prepared sets: split files into units, encode them in parallel, write one part each.

The directory's name is a hash of everything the examples depend on: file bytes, tokenizer,
rendering code and settings. The same input is never encoded twice, and changed input never
meets old rows. A unit is a few megabytes of a JSON Lines file, or a whole file of another kind,
so memory stays bounded; finished parts survive an interruption and are used again.
"""

import dataclasses
import hashlib
import json
import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from glmforge.data.conversation import Conversation, Problem
from glmforge.data.encoder import TokenizerLike
from glmforge.data.examples import (
    Counts,
    Example,
    OnError,
    encode_many,
    limit_of,
    nothing_left,
    problems_error,
)
from glmforge.data.prepared import (
    FORMAT_VERSION,
    MANIFEST,
    SCHEMA,
    PreparedSet,
    open_prepared,
    record_batch,
    sha256_of,
)
from glmforge.data.reading import LineRange, is_plain_json_lines, read_json_lines
from glmforge.data.segments import Labels
from glmforge.data.sources import Paths, ReadOptions, convert, data_files, read_records
from glmforge.data.truncation import Truncation

MakeTokenizer = Callable[[], TokenizerLike]
_UNIT_BYTES = 4 << 20
_KEPT_PROBLEMS = 200  # of a part; all are counted
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
    """A piece of work: a file, or a stretch of lines of one."""

    path: Path
    size: int
    stretch: LineRange | None = None


def prepare(
    path: Paths,
    make_tokenizer: MakeTokenizer,
    root: str | Path,
    settings: PrepareSettings,
    *,
    workers: int = 1,
    on_error: OnError = "stop",
    progress: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> PreparedSet:
    """Encode files into a prepared set under ``root``, or open the one that is there.

    Args:
        path: files, directories or hub names.
        make_tokenizer: returns the tokenizer; picklable, called once a worker process.
        root: directory of all prepared sets; this one gets a subdirectory named by its key.
        settings: what to make.
        workers: processes; 1 works in this one.
        on_error: "stop" refuses a set with faulty records, "skip" leaves them out, counted.
        progress: called with (bytes done, bytes in all).
        say: called with a line about reuse.

    Raises:
        DataError: as ``load_examples``, or the set that is there is damaged.
    """
    tokenizer = make_tokenizer()
    limit_of(
        tokenizer,
        max_length=settings.max_length,
        labels=settings.labels,
        truncation=settings.truncation,
    )
    files = data_files(path)
    units = [unit for file in files for unit in units_of(file)]
    hashes = {str(file): sha256_of(file) for file in files if file.exists()}
    key = _key(list(hashes.values()), tokenizer, settings, on_error)
    directory = Path(root) / key
    if (directory / MANIFEST).is_file():
        found = open_prepared(directory)
        if say:
            say(f"data: using the prepared set {directory} ({found.counts})")
        return found
    directory.mkdir(parents=True, exist_ok=True)
    total = sum(unit.size for unit in units) or 1
    done = 0
    parts = []
    for number, part in enumerate(_parts(units, directory, settings, make_tokenizer, workers)):
        parts.append(part)
        done += units[number].size
        if progress:
            progress(done, total)
    return _finish(directory, parts, hashes, settings, on_error)


def units_of(file: Path) -> list[Unit]:
    """Divide a JSON Lines file into stretches of about 4 MiB; other files are one unit."""
    if not file.exists():
        return [Unit(path=file, size=0)]
    size = file.stat().st_size
    if file.suffix in (".yml", ".yaml", ".arrow") or not is_plain_json_lines(file):
        return [Unit(path=file, size=size)]
    units = []
    start, line = 0, 1
    with file.open("rb") as stream:
        while block := stream.read(_UNIT_BYTES):
            block += stream.readline()
            end = start + len(block)
            stretch = LineRange(start=start, end=end, first_line=line)
            units.append(Unit(path=file, size=len(block), stretch=stretch))
            start, line = end, line + block.count(b"\n")
    return units


def _key(
    hashes: list[str], tokenizer: TokenizerLike, settings: PrepareSettings, on_error: OnError
) -> str:
    """Sixteen hex digits of everything the examples depend on."""
    code = hashlib.sha256()
    for module in sorted(Path(__file__).parent.glob("*.py")):
        code.update(module.read_bytes())
    everything = {
        "format_version": FORMAT_VERSION,
        "files": hashes,
        "tokenizer": fingerprint(tokenizer),
        "code": code.hexdigest(),
        "settings": dataclasses.asdict(settings),
        "on_error": on_error,
    }
    text = json.dumps(everything, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def fingerprint(tokenizer: Any) -> str:
    """A hash of what a tokenizer makes of text: class, vocabulary, chat template."""
    digest = hashlib.sha256(type(tokenizer).__name__.encode())
    digest.update(str(getattr(tokenizer, "family", "")).encode())
    digest.update(str(getattr(tokenizer, "chat_template", "")).encode())
    vocab_file = getattr(tokenizer, "vocab_file", None)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if isinstance(vocab_file, str) and Path(vocab_file).is_file():
        digest.update(Path(vocab_file).read_bytes())
    elif backend is not None:
        digest.update(backend.to_str().encode())
    return digest.hexdigest()


def _parts(
    units: list[Unit],
    directory: Path,
    settings: PrepareSettings,
    make_tokenizer: MakeTokenizer,
    workers: int,
) -> Iterator[dict[str, Any]]:
    """The finished parts in the order of the units; those that exist already are not redone."""
    if workers <= 1 or len(units) == 1:
        worker = _Worker(make_tokenizer, settings, directory)
        yield from map(worker.part, range(len(units)), units)
        return
    context = multiprocessing.get_context("forkserver")  # imports once, whatever the workers
    context.set_forkserver_preload(["glmforge.models", __name__])
    with ProcessPoolExecutor(
        max_workers=min(workers, len(units)),
        mp_context=context,
        initializer=_start_worker,
        initargs=(make_tokenizer, settings, directory),
    ) as pool:
        yield from pool.map(_work, range(len(units)), units)


class _Worker:
    """One process's tokenizer and settings."""

    current: "_Worker | None" = None

    def __init__(
        self, make_tokenizer: MakeTokenizer, settings: PrepareSettings, directory: Path
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._limit = limit_of(
            make_tokenizer(),
            max_length=settings.max_length,
            labels=settings.labels,
            truncation=settings.truncation,
        )

    def part(self, number: int, unit: Unit) -> dict[str, Any]:
        """Write a unit's part and its description; return the description."""
        name = f"part-{number:05d}.arrow"
        target = self._directory / name
        sidecar = target.with_suffix(".json")
        if sidecar.is_file() and target.is_file():
            known: dict[str, Any] = json.loads(sidecar.read_text(encoding="utf-8"))
            if known.get("sha256") == sha256_of(target):
                return known
        counts = Counts()
        problems: list[Problem] = []
        draft = target.with_suffix(".tmp")
        with pa.OSFile(str(draft), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
            for examples in self._batches(unit, counts, problems):
                writer.write_batch(record_batch(examples))
        draft.replace(target)
        described = {
            "name": name,
            "sha256": sha256_of(target),
            "counts": dataclasses.asdict(counts),
            "problems": [dataclasses.asdict(problem) for problem in problems[:_KEPT_PROBLEMS]],
        }
        draft = sidecar.with_suffix(".tmp")
        draft.write_text(json.dumps(described, ensure_ascii=True), encoding="utf-8")
        draft.replace(sidecar)
        return described

    def _batches(
        self, unit: Unit, counts: Counts, problems: list[Problem]
    ) -> Iterator[list[Example]]:
        examples: list[Example] = []
        conversations = self._conversations(unit, counts, problems)
        for found, faults in encode_many(
            conversations, self._limit, self._settings.truncation, counts
        ):
            examples.extend(found)
            problems.extend(faults)
            if len(examples) >= _ROWS_OF_A_BATCH:
                yield examples
                examples = []
        yield examples

    def _conversations(
        self, unit: Unit, counts: Counts, problems: list[Problem]
    ) -> Iterator[Conversation]:
        options = ReadOptions(columns=self._settings.columns, repairs=self._settings.repairs)
        records = (
            read_records(unit.path, options)
            if unit.stretch is None
            else read_json_lines(unit.path, unit.stretch, gbk="gbk" in options.repairs)
        )
        for item in convert(records, options):
            if isinstance(item, Problem):
                problems.append(item)
                counts.records += 1
                counts.skipped += 1
            else:
                yield item


def _start_worker(
    make_tokenizer: MakeTokenizer, settings: PrepareSettings, directory: Path
) -> None:
    _Worker.current = _Worker(make_tokenizer, settings, directory)


def _work(number: int, unit: Unit) -> dict[str, Any]:
    assert _Worker.current is not None, "the worker was not started"
    return _Worker.current.part(number, unit)


def _finish(
    directory: Path,
    parts: list[dict[str, Any]],
    hashes: Mapping[str, str],
    settings: PrepareSettings,
    on_error: OnError,
) -> PreparedSet:
    """Refuse what must be refused, then write the manifest: the set exists from then on."""
    counts = Counts()
    for part in parts:
        counts.add(Counts(**part["counts"]))
    problems = [Problem(**values) for part in parts for values in part["problems"]]
    if problems and on_error == "stop":
        raise problems_error(problems, total=counts.skipped)
    if not counts.rows:
        raise nothing_left(counts)
    manifest = {
        "format_version": FORMAT_VERSION,
        "files": [{"path": path, "sha256": digest} for path, digest in hashes.items()],
        "settings": dataclasses.asdict(settings),
        "counts": dataclasses.asdict(counts),
        "parts": [{"name": part["name"], "sha256": part["sha256"]} for part in parts],
        "problems": [values for part in parts for values in part["problems"]],
    }
    draft = directory / f"{MANIFEST}.tmp"
    draft.write_text(json.dumps(manifest, ensure_ascii=False, indent=1), encoding="utf-8")
    draft.replace(directory / MANIFEST)
    return open_prepared(directory, verify=False)
