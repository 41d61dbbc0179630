"""How files become units: every format divided, the same set from any number of processes."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dialogue_lines import line

import glmforge.data.preparing as preparing
from glmforge.data import load_examples
from glmforge.data.part_writer import PartWriter
from glmforge.data.preparing import PrepareSettings, prepare
from glmforge.errors import DataError

SETTINGS = PrepareSettings(max_length=64)


@pytest.fixture
def small_units(monkeypatch):
    monkeypatch.setattr(preparing, "_UNIT_BYTES", 4096)


def same(left, right):
    return len(left) == len(right) and all(
        np.array_equal(a.input_ids, b.input_ids)
        and np.array_equal(a.labels, b.labels)
        and a.source == b.source
        for a, b in zip(left, right)
    )


def written_as(kind, tmp_path, lines):
    """The records in a file of some kind."""
    whole = "[" + ",\n".join(lines) + "]"
    values = [json.loads(text) for text in lines]
    pairs = [[message["content"] for message in value["messages"]] for value in values]
    path = tmp_path / f"train.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(values), path)
    elif kind == "csv":
        rows = "".join(f"{ask},{told}\n" for ask, told in pairs)
        path.write_text("query,response\n" + rows, encoding="utf-8")
    elif kind == "yml":
        entries = "".join(f"- - {ask}\n  - {told}\n" for ask, told in pairs)
        path.write_text("conversations:\n" + entries, encoding="utf-8")
    else:
        text = {"jsonl": "\n".join(lines), "jsonl.gz": "\n".join(lines)}.get(kind, whole)
        data = text.encode("utf-8")
        packed = {"gz": "gzip", "zst": "zstd"}.get(kind.rpartition(".")[2])
        path.write_bytes(pa.compress(data, packed, asbytes=True) if packed else data)
    return path


KINDS = ("jsonl", "jsonl.gz", "json", "json.zst", "csv", "parquet", "yml")


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_is_divided_and_gives_what_memory_would(stub, tmp_path, small_units, kind):
    path = written_as(kind, tmp_path, [line(number) for number in range(300)])
    direct = load_examples(path, stub["chatglm3"], max_length=64)
    done = []
    found = prepare(
        path, lambda: stub["chatglm3"], tmp_path / "sets", SETTINGS,
        progress=lambda so_far, total: done.append((so_far, total)),
    )  # fmt: skip
    assert same(direct.examples, found)
    assert found.counts == direct.counts
    assert len(found.manifest["parts"]) > 3
    assert done == sorted(done)
    assert done[-1] == (path.stat().st_size,) * 2


def test_records_are_read_only_a_little_ahead_of_the_work(stub, tmp_path, small_units, monkeypatch):
    """Memory stays bounded however large the file: one process holds one unit."""
    path = written_as("json", tmp_path, [line(number) for number in range(300)])
    ahead = []
    taken = [0]
    read, part = preparing.read_records, PartWriter.part

    def counted(*arguments):
        for item in read(*arguments):
            taken[0] += 1
            yield item

    def working(self, number, unit):
        ahead.append(taken[0])
        taken[0] = 0
        return part(self, number, unit)

    monkeypatch.setattr(preparing, "read_records", counted)
    monkeypatch.setattr(PartWriter, "part", working)
    prepare(path, lambda: stub["chatglm3"], tmp_path / "sets", SETTINGS)
    assert sum(ahead) == 300
    assert max(ahead) < 60


def test_a_part_of_other_records_is_never_taken_for_its_own(stub, tmp_path, monkeypatch):
    """Where a set was left unfinished by a program that divided the file in another way."""
    path = written_as("json", tmp_path, [line(number) for number in range(300)])
    direct = load_examples(path, stub["chatglm3"], max_length=64)
    for size in (4096, 6000, 2048):
        monkeypatch.setattr(preparing, "_UNIT_BYTES", size)
        found = prepare(path, lambda: stub["chatglm3"], tmp_path / "sets", SETTINGS)
        assert same(direct.examples, found)
        (found.directory / "manifest.json").unlink()


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_file_of_any_kind_ends_in_a_clean_refusal(stub, tmp_path, kind):
    path = written_as(kind, tmp_path, [])
    with pytest.raises(DataError, match="train"):
        prepare(path, lambda: stub["chatglm3"], tmp_path / "sets", SETTINGS)
