"""Which files a path stands for: exactly the data, once."""

import json
import re

import datasets
import pytest

from glmforge.data import read_conversations
from glmforge.data.sources import data_files
from glmforge.errors import DataError

PAIR = {"query": "问", "response": "答"}


def write(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(PAIR), encoding="utf-8")
    return path


def test_results_that_datasets_cached_beside_a_saved_set_are_no_records(tmp_path):
    datasets.Dataset.from_list([PAIR] * 30).save_to_disk(tmp_path / "set")
    rows = datasets.load_from_disk(tmp_path / "set").map(lambda row: {"response": "乙"})
    rows.filter(lambda row, number: number < 20, with_indices=True)
    assert len(list((tmp_path / "set").glob("cache-*.arrow"))) == 2
    assert len(read_conversations(tmp_path / "set")) == 30
    (tmp_path / "set/state.json").unlink()
    assert len(read_conversations(tmp_path / "set")) == 30, "told by the name where no list is"
    cache = next((tmp_path / "set").glob("cache-*.arrow"))
    assert data_files(cache) == [cache], "asked for by name"


def test_a_file_that_a_saved_set_lists_and_lacks_is_named(tmp_path):
    datasets.Dataset.from_list([PAIR] * 4).save_to_disk(tmp_path / "set", num_shards=2)
    (tmp_path / "set/data-00001-of-00002.arrow").unlink()
    with pytest.raises(DataError, match=r"lacks data-00001-of-00002\.arrow"):
        read_conversations(tmp_path / "set")


def test_other_data_beside_a_saved_set_is_read_too(tmp_path):
    datasets.Dataset.from_list([PAIR] * 3).save_to_disk(tmp_path / "set")
    write(tmp_path / "more.jsonl")
    assert len(read_conversations(tmp_path)) == 4


def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path):
    one, two = write(tmp_path / "a/x/train.jsonl"), write(tmp_path / "b/x/train.jsonl")
    three = write(tmp_path / "c.jsonl")
    found = read_conversations([one, two, three])
    assert [c.source for c in found] == ["a/x/train.jsonl:1", "b/x/train.jsonl:1", "c.jsonl:1"]
    two.write_text("{broken", encoding="utf-8")
    with pytest.raises(DataError, match=r"^b/x/train\.jsonl:1: the file is not JSON"):
        read_conversations(tmp_path)
    assert [c.source for c in read_conversations([one, one])] == ["train.jsonl:1"] * 2


def test_hidden_folders_and_files_are_passed_over(tmp_path):
    place = tmp_path / ".hidden-above/set"
    seen = write(place / "a.jsonl")
    write(place / ".ipynb_checkpoints/a-checkpoint.jsonl")
    write(place / ".a.jsonl")
    assert data_files(place) == [seen]


def test_a_directory_without_data_names_what_it_holds(tmp_path):
    write(tmp_path / "notes.data")
    (tmp_path / "a.txt").write_text("文", encoding="utf-8")
    with pytest.raises(DataError, match=r"a\.txt, notes\.data: name a file to have it read"):
        data_files(tmp_path)


def test_a_missing_shard_is_named(tmp_path):
    """A download that stopped half-way; given by name, the files that are there are read."""
    for number in (0, 2):
        write(tmp_path / f"train-{number:05d}-of-00003.jsonl")
    with pytest.raises(DataError, match=r"of 3 files .* it lacks train-00001-of-00003\.jsonl"):
        data_files(tmp_path)
    assert len(data_files(sorted(tmp_path.glob("*.jsonl")))) == 2
    write(tmp_path / "train-00001-of-00003.jsonl")
    assert len(data_files(tmp_path)) == 3


def test_shards_may_be_counted_from_1(tmp_path):
    for number in (1, 2):
        write(tmp_path / f"part-{number:05d}-of-00002.jsonl")
    assert len(data_files(tmp_path)) == 2


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        ("part_0_of_3 part_2_of_3", "part_1_of_3"),
        ("train.00001-of-00002", "train.00002-of-00002"),
        ("x-00000-of-00002-abc", "x-00001-of-00002-abc"),
        (" ".join(f"d-{n}-of-10" for n in range(1, 11)), ""),
        ("a/d-0-of-2 b/d-1-of-2", ""),
        ("of-5 one-of-2 best-of-3", ""),
    ],
)
def test_files_that_belong_together_are_known_by_any_such_name(tmp_path, names, missing):
    for name in names.split():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / f"{name}.jsonl")
    if missing:
        with pytest.raises(DataError, match=f"lacks {re.escape(missing)}.jsonl"):
            data_files(tmp_path)
    else:
        assert len(data_files(tmp_path)) == len(names.split())
