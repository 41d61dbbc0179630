"""What is no dialogue file, or half of one, ends in a sentence that says what to do: no hang, no
text trained by mistake."""

import datetime
import decimal
import gzip
import io
import json
import os
import pickle
import sqlite3
import tarfile
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from glmforge.data import Problem, encode_conversation, encode_rows
from glmforge.data.files import data_files
from glmforge.data.preparing import PrepareSettings, prepare
from glmforge.data.quality import examine
from glmforge.data.quality_text import report_lines
from glmforge.data.sources import ReadOptions, iterate, read_conversations
from glmforge.errors import DataError

PAIR = {"query": "问", "response": "答"}
LINE = json.dumps(PAIR).encode()


def zipped(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.jsonl", LINE)


def tarred(path):
    with tarfile.open(path, "w:gz") as archive:
        entry = tarfile.TarInfo("a.jsonl")
        entry.size = len(LINE)
        archive.addfile(entry, io.BytesIO(LINE))


def database(path):
    connection = sqlite3.connect(path)
    connection.execute("create table t (a)")
    connection.commit()
    connection.close()


def pickled(path):
    path.write_bytes(pickle.dumps([PAIR], 4))


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (zipped, "zip archive"),
        (tarred, "tar archive"),
        (database, "SQLite database"),
        (pickled, "pickle"),
        (lambda path: path.write_bytes(b"BZh91AY&SY\x00"), "bzip2"),
        (lambda path: path.write_bytes(b"\xfd7zXZ\x00\x00"), "xz"),
    ],
)
def test_archives_and_databases_are_called_by_their_names(tmp_path, write, words):
    path = tmp_path / "data.jsonl"
    write(path)
    (problem,) = iterate(path, ReadOptions())
    assert problem.rule == "no-data-file"
    assert words in problem.text


@pytest.mark.parametrize("place", ["file", "directory"])
def test_a_pipe_is_refused_not_waited_for(tmp_path, place):
    pipe = tmp_path / "a.jsonl"
    os.mkfifo(pipe)
    with pytest.raises(DataError, match=r"a pipe or a device|no file of the directory"):
        data_files(pipe if place == "file" else tmp_path)
    (tmp_path / "b.jsonl").write_bytes(LINE)
    assert data_files(tmp_path) == [tmp_path / "b.jsonl"]


def only(tmp_path, value, **options):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
    (found,) = iterate(path, ReadOptions(**options))
    return found


@pytest.mark.parametrize(
    "value",
    [
        {"question": "q", "response": "a"},
        {"input": "q", "response": "a"},
        {"问题": "q", "response": "a"},
        {"text": "q", "answer": "a"},
        {"text": "long", "summary": "short"},
        {"Text": "q", "Response": "a"},
    ],
)
def test_half_of_an_unknown_pair_is_never_taken_for_text(tmp_path, value):
    """It would be trained, without its question or its answer."""
    found = only(tmp_path, value)
    assert isinstance(found, Problem)
    assert found.rule == "unknown-format"
    assert "map them" in found.advice


@pytest.mark.parametrize(
    "value",
    [
        {"text": "t", "source": "wiki", "label": "good", "answer": None},
        {"response": "t", "id": "3", "url": "u", "question": ""},
    ],
)
def test_side_columns_of_a_text_have_no_effect(tmp_path, value):
    (message,) = only(tmp_path, value).messages
    assert (message.role, message.content) == ("text", "t")


def test_a_document_around_the_records_is_named(tmp_path):
    found = only(tmp_path, {"train": [PAIR], "test": [PAIR], "n": 2})
    assert "write the list under 'train' or 'test' to a file of its own" in found.advice


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"qery": "ask"}, "no format has a field 'qery'; did you mean 'query'"),
        ({"query": "a", "response": "a"}, "'a' is mapped to 2 fields"),
    ],
)
def test_a_column_of_no_field_of_ours_is_refused(stub, tmp_path, columns, words):
    """It would leave the other half of the pair, as a text."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": "q", "ask": "q", "response": "x"}', encoding="utf-8")
    with pytest.raises(DataError, match=words):
        read_conversations(path, columns=columns)
    settings = PrepareSettings(max_length=64, columns=columns)
    with pytest.raises(DataError, match=words):
        prepare(path, lambda: stub["glm4"], tmp_path / "sets", settings)


@pytest.mark.parametrize("settings", [{"labels": "all"}, {"truncation": "cut"}, {"max_length": 3}])
def test_settings_are_checked_without_a_tokenizer_too(settings):
    with pytest.raises(DataError, match=next(iter(settings))):
        examine([], **settings)


def test_a_report_without_rows_has_no_bars(stub, tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b"{}"))
    text = "\n".join(report_lines(examine(iterate(path, ReadOptions()), tokenizer=stub["glm4"])))
    assert "█" not in text
    assert "0 rows kept" in text


NOW = datetime.datetime(2020, 1, 1)
ASK = {"role": "user", "content": "q"}
CALL = {"name": "f", "arguments": {"d": NOW}}
STEP = {"role": "tool", "content": "", "name": "f", "parameters": {"a": 1}}


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        ({"query": "q", "response": b"\xff"}, "not-text"),
        ({"query": "q", "response": NOW}, "not-text"),
        ({"query": "q", "response": decimal.Decimal("1.5")}, "not-text"),
        ({"query": "q", "response": "a", "tools": [{"name": "f", "d": NOW}]}, "bad-tools"),
        ({"messages": [{"role": NOW, "content": "q"}]}, "unknown-role"),
        ({"messages": [{**ASK, "tool_calls": None}, {**ASK, "role": "assistant", "content": "",
                                                    "tool_calls": [CALL]}]}, "bad-call"),
        ({"messages": [{**STEP, "observation": {"d": NOW}}]}, "not-text"),
    ],
)  # fmt: skip
def test_values_that_are_no_json_are_faults_not_tracebacks(tmp_path, value, rule):
    """Tables may hold bytes, dates and decimals, in any place."""
    pq.write_table(pa.Table.from_pylist([value]), tmp_path / "a.parquet")
    (problem,) = iterate(tmp_path / "a.parquet", ReadOptions())
    assert problem.rule == rule


@pytest.mark.parametrize("messages", [None, 5, "text", {"role": "user"}, b"x"])
def test_messages_that_are_no_list_are_refused_in_python_too(stub, messages):
    for encode in (encode_rows, encode_conversation):
        with pytest.raises(DataError, match=r"messages is .*, not a list"):
            encode(messages, stub["glm4"])


def test_messages_may_come_one_by_one(stub):
    dialogue = [ASK, {"role": "assistant", "content": "a"}]
    assert encode_rows(iter(dialogue), stub["glm4"]) == encode_rows(dialogue, stub["glm4"])
