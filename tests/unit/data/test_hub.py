"""Datasets of the hub, from a cache on disk and without a network."""

import json
import os
import subprocess
import sys

import pyarrow as pa
import pytest

from glmforge.data import read_conversations
from glmforge.data.preparing import PrepareSettings, prepare
from glmforge.data.sources import ReadOptions, data_files, iterate
from glmforge.errors import DataError

ROWS = [{"query": f"问{n}", "response": f"答{n}", "system": None} for n in range(5)]


class Rows(list):
    """What ``load_dataset`` returns, as far as it is used."""

    cache_files = ()


@pytest.fixture
def hub(monkeypatch):
    """A hub with one dataset of two splits; the calls are noted."""
    import datasets

    calls = []

    def load(name, split):
        calls.append((name, split))
        splits = {"train": ROWS, "test": ROWS[:2]}
        if name != "someone/talk":
            raise ConnectionError(f"Couldn't reach '{name}' on the Hub\n(offline)")
        if split not in splits:
            raise ValueError(f"Unknown split {split}")
        return Rows(splits[split])

    monkeypatch.setattr(datasets, "load_dataset", load)
    return calls


def test_a_hub_name_gives_the_train_split_or_the_one_that_is_named(hub):
    read = read_conversations("someone/talk")
    assert [c.source for c in read] == [f"someone/talk:{n}" for n in range(1, 6)]
    assert read[0].messages[0].content == "问0"
    assert len(read_conversations("someone/talk:test")) == 2
    assert hub == [("someone/talk", "train"), ("someone/talk", "test")]


def test_a_null_question_of_a_hubs_row_is_an_empty_one(monkeypatch):
    """Not a missing one, which would make its answer text for pretraining."""
    import datasets

    rows = Rows([{"prompt": None, "response": "答"}])
    monkeypatch.setattr(datasets, "load_dataset", lambda name, split: rows)
    (found,) = read_conversations("someone/talk")
    assert [(m.role, m.content) for m in found.messages] == [("user", ""), ("assistant", "答")]


@pytest.mark.parametrize(
    ("name", "reason"),
    [("someone/talk:dev", "Unknown split dev"), ("else/where", "Couldn't reach 'else/where'")],
)
def test_what_cannot_be_had_is_one_message_with_the_way_out(hub, stub, tmp_path, name, reason):
    (problem,) = iterate(name, ReadOptions())
    assert (problem.rule, problem.source) == ("no-such-data", name)
    with pytest.raises(DataError) as caught:
        prepare(name, lambda: stub["chatglm3"], tmp_path, PrepareSettings(max_length=64))
    for told in (str(problem), str(caught.value)):
        assert reason in told
        assert "without a network the dataset must be in the Hugging Face cache" in told
        assert "\n" not in told


def test_a_directory_of_the_owners_name_makes_it_a_path(hub, tmp_path, monkeypatch):
    (tmp_path / "someone").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="someone/talk: no such file"):
        data_files("someone/talk")
    assert hub == []


def test_a_prepared_set_follows_the_bytes_of_the_hubs_data(hub, stub, tmp_path, monkeypatch):
    def made():
        settings = PrepareSettings(max_length=64)
        return prepare("someone/talk", lambda: stub["chatglm3"], tmp_path, settings)

    cached = tmp_path / "talk-train.arrow"
    cached.write_bytes(b"one")
    monkeypatch.setattr(Rows, "cache_files", [{"filename": str(cached)}])
    first = made()
    assert (len(first), first.manifest["files"][0]["path"]) == (5, "someone/talk")
    assert made().directory == first.directory
    cached.write_bytes(b"two")
    assert made().directory != first.directory


def test_the_cache_answers_without_a_network(tmp_path):
    """The library's own cache, laid out as it does; the command in a process of its own."""
    place = tmp_path / "cache/someone___talk/default/0.0.0/0123456789abcdef"
    place.mkdir(parents=True)
    table = pa.Table.from_pylist([{"query": r["query"], "response": r["response"]} for r in ROWS])
    splits = {}
    for split, count in (("train", 5), ("test", 2)):
        part = table.slice(0, count)
        with pa.ipc.new_stream(place / f"talk-{split}.arrow", table.schema) as writer:
            writer.write_table(part)
        splits[split] = {"name": split, "num_bytes": 1, "num_examples": count,
                         "dataset_name": "talk"}  # fmt: skip
    text = {"dtype": "string", "_type": "Value"}
    info = {"builder_name": "parquet", "dataset_name": "talk", "config_name": "default",
            "version": {"version_str": "0.0.0", "major": 0, "minor": 0, "patch": 0},
            "features": {"query": text, "response": text}, "splits": splits}  # fmt: skip
    (place / "dataset_info.json").write_text(json.dumps(info), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "glmforge", "data", "check", "someone/talk", "--validation",
         "someone/talk:test", "--json"],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tmp_path / "cache")},
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    values = json.loads(done.stdout)
    assert (values["records"], values["rules"], values["overlap"]) == (5, {}, 2), done.stderr
