"""Make prepared sets: split files into units, encode them in parallel, write one part each.

The directory's name is a hash of everything the examples depend on: file bytes, tokenizer,
rendering code and settings. The same input is never encoded twice, and changed input never
meets old rows. A unit is a few megabytes of a file: lines of JSON Lines, which each process reads
for itself, or records of another kind, which this one reads for all. So memory stays bounded;
finished parts survive an interruption and are used again.
"""

import dataclasses
import hashlib
import json
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from glmforge.collector import collector_looks_at_new_ones
from glmforge.data.conversation import Problem
from glmforge.data.encoder import TokenizerLike
from glmforge.data.examples import Counts, OnError, limit_of, nothing_left, problems_error
from glmforge.data.hub import hub_digest
from glmforge.data.part_writer import (
    PrepareSettings,
    Unit,
    draft_of,
    remove_leftovers,
    writing,
)
from glmforge.data.prepared import (
    FORMAT_VERSION,
    MANIFEST,
    PreparedSet,
    open_prepared,
    sealed,
    sha256_of,
)
from glmforge.data.reading import LineRange, is_plain_json_lines
from glmforge.data.sources import Paths, ReadOptions, data_files, names_of, read_records
from glmforge.data.workers import MakeTokenizer, write_parts
from glmforge.errors import DataError

__all__ = ["PrepareSettings", "Unit", "prepare", "units_of"]

_UNIT_BYTES = 4 << 20


def prepare(
    path: Paths,
    make_tokenizer: MakeTokenizer,
    root: str | Path,
    settings: PrepareSettings,
    *,
    beside: Paths = (),
    workers: int = 1,
    on_error: OnError = "stop",
    rebuild: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
    say: Callable[[str], None] = lambda line: None,
) -> PreparedSet:
    """Encode files into a prepared set under ``root``, or open the one that is there.

    Args:
        path: files, directories or hub names.
        make_tokenizer: returns the tokenizer; called once a process, so with several workers it
            must be picklable and importable.
        root: directory of all prepared sets; this one gets a subdirectory named by its key.
        settings: what to make.
        beside: other files of the same run, from whose names those of ``path`` must differ.
        workers: processes, one core each; 1 works in this one.
        on_error: "stop" refuses a set with faulty records, "skip" leaves them out, counted.
        rebuild: make a damaged set anew, which ``say`` is told of, instead of refusing it.
        progress: called with (bytes done, bytes in all).
        say: called with a line about reuse or a set made anew.

    Raises:
        DataError: as ``load_examples``, the set that is there is damaged, or none can be written.
    """
    tokenizer = make_tokenizer()
    limit_of(tokenizer, max_length=settings.max_length, labels=settings.labels,
             truncation=settings.truncation)  # fmt: skip
    options = ReadOptions(columns=settings.columns, repairs=settings.repairs)
    options.check()
    files = data_files(path)
    called = names_of([*files, *data_files(beside)])
    hashes = {
        str(file): sha256_of(file) if file.exists() else hub_digest(str(file)) for file in files
    }
    key = _key([(called[file], hashes[str(file)]) for file in files], tokenizer, settings, on_error)
    directory = Path(root) / key
    if (directory / MANIFEST).exists():
        found = _opened(directory, rebuild, say)
        if found is not None:
            return found
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
    units = (unit for file in files for unit in units_of(file, called[file], options))
    total = sum(file.stat().st_size for file in files if file.exists()) or 1
    parts, done = [], 0
    with collector_looks_at_new_ones():
        for unit, part in write_parts(units, directory, settings, make_tokenizer, workers):
            parts.append(part)
            done += unit.size
            progress(done, total)
    if done < total:  # nobody knows how much of a compressed file a record was
        progress(total, total)
    return _finish(directory, parts, hashes, settings, on_error)


def _opened(directory: Path, rebuild: bool, say: Callable[[str], None]) -> PreparedSet | None:
    """The set that is there; None where it is damaged and is to be made anew.

    Raises:
        DataError: it is damaged, and not to be made anew.
    """
    try:
        found = open_prepared(directory)
    except DataError as error:
        if not rebuild:
            raise
        damage = error.problems[0].partition(";")[0]
        say(f"data: {damage}: made anew, with the parts that are whole")
        with writing(directory):
            (directory / MANIFEST).unlink()
        return None
    say(f"data: using the prepared set {directory}")
    return found


def units_of(file: Path, name: str, options: ReadOptions) -> Iterator[Unit]:
    """Divide a file into units of about 4 MiB; ``name`` is what reports call it.

    Raises:
        DataError: the file cannot be read at all.
    """
    by_name = file.suffix in (".yml", ".yaml", ".arrow")
    if not file.exists() or by_name or not is_plain_json_lines(file):
        yield from _read_ahead(file, name, options)
        return
    start, line = 0, 1
    with file.open("rb") as stream:
        while block := stream.read(_UNIT_BYTES):
            block += stream.readline()
            end = start + len(block)
            stretch = LineRange(start=start, end=end, first_line=line)
            yield Unit(path=file, size=len(block), stretch=stretch, name=name)
            start, line = end, line + block.count(b"\n")


def _read_ahead(file: Path, name: str, options: ReadOptions) -> Iterator[Unit]:
    """Read a file that cannot be divided before it is read, and divide its records."""
    left = file.stat().st_size if file.exists() else 0
    records: list[bytes] = []
    held, divided = 0, False
    for item in read_records(file, options):
        record = pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
        records.append(record)
        held += len(record)
        if held >= _UNIT_BYTES:
            share = min(held, left // 2)  # how much of a compressed file it was, nobody knows
            yield Unit(path=file, size=share, records=tuple(records), name=name)
            left -= share
            records, held, divided = [], 0, True
    if records or not divided:
        yield Unit(path=file, size=left, records=tuple(records), name=name)


def _key(
    files: Sequence[tuple[str, str]],
    tokenizer: TokenizerLike,
    settings: PrepareSettings,
    on_error: OnError,
) -> str:
    """Sixteen hex digits of everything the examples depend on; ``files``: names and hashes."""
    code = hashlib.sha256()
    for module in sorted(Path(__file__).parent.glob("*.py")):
        code.update(module.read_bytes())
    everything = {
        "format_version": FORMAT_VERSION,
        "files": files,
        "tokenizer": fingerprint(tokenizer),
        "code": code.hexdigest(),
        "settings": dataclasses.asdict(settings),
        "on_error": on_error,
    }
    text = json.dumps(everything, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_PLACES = frozenset("name_or_path vocab_file tokenizer_file merges_file _commit_hash".split())
"""Settings of a tokenizer that say where its files lie, and not what it does."""


def fingerprint(tokenizer: Any) -> str:
    """A hash of what a tokenizer makes of text, wherever its files lie.

    Class and its code, vocabulary and merges, added and special tokens, settings, chat template.
    """
    digest = hashlib.sha256(type(tokenizer).__name__.encode())
    for kind in type(tokenizer).__mro__:
        file = getattr(sys.modules.get(kind.__module__), "__file__", None)
        if file is not None and kind.__module__.startswith("glmforge."):
            digest.update(Path(file).read_bytes())
    digest.update(str(getattr(tokenizer, "family", "")).encode())
    digest.update(str(getattr(tokenizer, "chat_template", "")).encode())
    vocab_file = getattr(tokenizer, "vocab_file", None)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if isinstance(vocab_file, str) and Path(vocab_file).is_file():
        digest.update(Path(vocab_file).read_bytes())
    if backend is not None:
        digest.update(backend.to_str().encode())
    settings = dict(getattr(tokenizer, "init_kwargs", {}))
    said = {
        "settings": {name: settings[name] for name in settings.keys() - _PLACES},
        "special": getattr(tokenizer, "special_tokens_map", {}),
        "added": getattr(tokenizer, "added_tokens_decoder", {}),
    }
    digest.update(json.dumps(said, sort_keys=True, default=repr).encode())
    return digest.hexdigest()


def _finish(
    directory: Path,
    parts: Sequence[dict[str, Any]],
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
        raise problems_error(problems, total=counts.skipped + counts.faulty_files)
    if not counts.rows:
        raise nothing_left(counts, problems, ", ".join(hashes))
    manifest = {
        "format_version": FORMAT_VERSION,
        "files": [
            {
                "path": path,
                "bytes": Path(path).stat().st_size if Path(path).exists() else None,
                "sha256": digest,
            }
            for path, digest in hashes.items()
        ],
        "settings": dataclasses.asdict(settings),
        "counts": dataclasses.asdict(counts),
        "parts": [{"name": part["name"], "sha256": part["sha256"]} for part in parts],
    }
    draft = draft_of(directory / MANIFEST)
    with writing(directory):
        remove_leftovers(directory)
        text = json.dumps(sealed(manifest), ensure_ascii=False, indent=1)
        draft.write_text(text, encoding="utf-8")
        draft.replace(directory / MANIFEST)
    return open_prepared(directory, verify=False)
