"""Data prepared by several processes: the same set as by one, and a process that dies is named."""

import functools
import gzip
import json
import os
import signal

import numpy as np
import pytest

import glmforge.data.preparing as preparing
from glmforge.assets import asset_path
from glmforge.data.preparing import PrepareSettings, prepare
from glmforge.errors import DataError
from glmforge.models import load_tokenizer

SETTINGS = PrepareSettings(max_length=64)
MAKE = functools.partial(load_tokenizer, asset_path("base"))


@pytest.fixture(autouse=True)
def small_units_on_two_cores(monkeypatch):
    monkeypatch.setattr(preparing, "_UNIT_BYTES", 4096)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})


def rows(count):
    pairs = ((f"{number} 加 {number} 等于几？", f"{2 * number}。") for number in range(count))
    return [
        {"messages": [{"role": "user", "content": ask}, {"role": "assistant", "content": told}]}
        for ask, told in pairs
    ]


def lines(count):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows(count))


@pytest.mark.parametrize("kind", ["json", "jsonl.gz"])
def test_two_processes_make_the_same_set_as_one(tmp_path, kind):
    path = tmp_path / f"train.{kind}"
    whole = kind == "json"
    text = json.dumps(rows(200), ensure_ascii=False) if whole else lines(200)
    path.write_bytes(text.encode() if whole else gzip.compress(text.encode()))
    one = prepare(path, MAKE, tmp_path / "one", SETTINGS)
    two = prepare(path, MAKE, tmp_path / "two", SETTINGS, workers=2)
    assert len(one.manifest["parts"]) > 2
    assert one.hash == two.hash
    assert len(one) == len(two) == 200
    for left, right in zip(one, two, strict=True):
        assert np.array_equal(left.input_ids, right.input_ids)
        assert np.array_equal(left.labels, right.labels)
        assert left.source == right.source


@pytest.mark.parametrize("end", [9, -9])
def test_a_process_that_dies_is_named_with_the_lines_it_had(tmp_path, end):
    """No hang: file, first line of its stretch, and the exit status; the finished parts stay."""
    path = tmp_path / "train.jsonl"
    path.write_text(lines(300), encoding="utf-8")

    class DiesElsewhere:
        def __call__(self):
            return MAKE()

        def __reduce__(self):
            return functools.partial, ((os._exit, 9) if end == 9 else (signal.raise_signal, 9))

    named = rf"train\.jsonl:\d+ \(from that line to byte [\d,]+\): the process .* status {end} "
    with pytest.raises(DataError, match=named):
        prepare(path, DiesElsewhere(), tmp_path / "sets", SETTINGS, workers=2)
    (directory,) = (tmp_path / "sets").iterdir()
    kept = {part.name for part in directory.glob("*.arrow")}
    found = prepare(path, MAKE, tmp_path / "sets", SETTINGS)
    assert len(found) == 300
    assert kept <= {part.name for part in directory.glob("*.arrow")}
