"""Samples of large sets: spread evenly, counted about right, never held whole."""

import gzip
import json
from itertools import pairwise

import pytest

from glmforge.data.sampling import sample_conversations
from glmforge.data.sources import ReadOptions
from glmforge.errors import DataError


def line(number: int, answer: str = "好") -> str:
    messages = [
        {"role": "user", "content": f"问题{number}"},
        {"role": "assistant", "content": answer},
    ]
    return json.dumps({"messages": messages}, ensure_ascii=False)


def write(path, count: int):
    path.write_text("".join(line(n) + "\n" for n in range(count)), encoding="utf-8")
    return path


def test_a_small_set_is_taken_whole(tmp_path):
    found = sample_conversations(write(tmp_path / "a.jsonl", 30), ReadOptions(), 40)
    assert found.dialogues == len(found.conversations) == 30


@pytest.mark.parametrize("packed", [False, True])
def test_a_large_set_is_sampled_evenly_and_counted(tmp_path, packed):
    """Uncompressed JSON Lines by lines, anything else by dialogues."""
    path = write(tmp_path / "a.jsonl", 5000)
    if packed:
        path = tmp_path / "a.jsonl.gz"
        path.write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    found = sample_conversations(path, ReadOptions(), 100)
    assert 100 <= len(found.conversations) <= 200
    assert found.dialogues == pytest.approx(5000, rel=0.05)
    numbers = [int(one.messages[0].content.removeprefix("问题")) for one in found.conversations]
    assert numbers[0] == 0
    assert len({b - a for a, b in pairwise(numbers)}) == 1


def test_unlooked_lines_are_not_parsed(tmp_path):
    """A plan need not read everything: training does."""
    path = write(tmp_path / "a.jsonl", 5000)
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[1] = "{broken"
    path.write_text("\n".join(lines), encoding="utf-8")
    assert not sample_conversations(path, ReadOptions(), 100).problems
    assert sample_conversations(path, ReadOptions(), 9000).problems


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(DataError, match=r"no\.jsonl: no such file"):
        sample_conversations(tmp_path / "no.jsonl", ReadOptions(), 10)


def test_a_file_is_named_apart_from_those_of_the_same_run(tmp_path):
    """As in the prepared sets, which the same run makes after its plan."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "t.jsonl").write_text("{}\n", encoding="utf-8")
    paths = tuple(str(tmp_path / folder / "t.jsonl") for folder in ("a", "b"))
    found = sample_conversations(paths[1], ReadOptions(beside=paths), 10)
    assert [problem.source for problem in found.problems] == ["b/t.jsonl:1"]
