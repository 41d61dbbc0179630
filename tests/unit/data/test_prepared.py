"""Prepared sets: the same examples from disk, made once, verified, resumable."""

import functools
import json
import os
import platform
import subprocess
import sys

import numpy as np
import pytest
from dialogue_lines import line

import glmforge.data.preparing as preparing
from glmforge.data import BatchPlan, load_examples, pack
from glmforge.data.prepared import open_prepared
from glmforge.data.preparing import PrepareSettings, prepare, units_of
from glmforge.data.sources import ReadOptions
from glmforge.errors import DataError

SETTINGS = PrepareSettings(max_length=64)


@pytest.fixture
def train_file(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text("\n".join(line(number) for number in range(300)) + "\n", encoding="utf-8")
    return path


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


def test_a_prepared_set_holds_the_examples_that_memory_would(
    stub, train_file, tmp_path, small_units
):
    assert len(list(units_of(train_file, "", ReadOptions()))) > 3
    direct = load_examples(train_file, stub["chatglm3"], max_length=64)
    found = prepare(train_file, lambda: stub["chatglm3"], tmp_path / "sets", SETTINGS)
    assert same(direct.examples, found)
    assert found.counts == direct.counts
    assert np.array_equal(found.lengths, direct.examples.lengths)
    assert np.array_equal(found.trained_counts, direct.examples.trained_counts)
    assert found[-1].source == "train.jsonl:300"
    assert same(found[5:8], [found[5], found[6], found[7]])


def test_a_loader_takes_a_prepared_set(stub, train_file, tmp_path, small_units):
    direct = load_examples(train_file, stub["chatglm3"], max_length=64).examples
    found = prepare(train_file, lambda: stub["chatglm3"], tmp_path / "sets", SETTINGS)
    batches = [
        BatchPlan(examples, pack(examples.lengths, 64, 0), global_batch=8, seed=0).rank_batches(
            0, 0, rank=0, world_size=1, micro_batch=8, accumulation=1
        )
        for examples in (direct, found)
    ]
    assert batches[0].micro_batches[0].labels.equal(batches[1].micro_batches[0].labels)


def test_the_same_input_is_reused_and_other_input_is_not(stub, train_file, tmp_path):
    def make(settings=SETTINGS, family="chatglm3"):
        said = []
        found = prepare(
            train_file, lambda: stub[family], tmp_path / "sets", settings, say=said.append
        )
        return found.directory, said

    first, said = make()
    assert said == []
    again, said = make()
    assert again == first
    assert "using the prepared set" in said[0]
    others = {first, make(PrepareSettings(max_length=32))[0], make(family="glm4")[0]}
    train_file.write_text(line(1), encoding="utf-8")
    others.add(make()[0])
    assert len(others) == 4


def test_a_flipped_byte_is_caught_on_opening(stub, train_file, tmp_path):
    found = prepare(train_file, lambda: stub["chatglm3"], tmp_path / "sets", SETTINGS)
    directory = found.directory
    part = directory / "part-00000.arrow"
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(bytes(data))
    with pytest.raises(DataError, match=r"part-00000\.arrow: missing or not what was written"):
        open_prepared(directory)
    with pytest.raises(DataError, match="make it anew with `glmforge data prepare`"):
        prepare(train_file, lambda: stub["chatglm3"], tmp_path / "sets", SETTINGS)


def test_a_damaged_file_beside_a_part_is_caught_on_opening(stub, train_file, tmp_path):
    """It holds the reasons of skipped.jsonl, which are read after training has begun."""
    found = prepare(train_file, lambda: stub["chatglm3"], tmp_path / "sets", SETTINGS)
    sidecar = found.directory / "part-00000.json"
    whole = sidecar.read_text(encoding="utf-8")
    for damaged in (whole[:-9], whole.replace('"rows": ', '"rows": 9'), None):
        sidecar.unlink() if damaged is None else sidecar.write_text(damaged, encoding="utf-8")
        with pytest.raises(DataError, match=r"part-00000\.json: missing or not what was written"):
            open_prepared(found.directory)


def flipped(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("name", "harm", "damage"),
    [
        ("part-00001.arrow", flipped, "missing or not what was written"),
        ("part-00001.arrow", os.unlink, "missing or not what was written"),
        ("part-00001.json", flipped, "missing or not what was written"),
        ("manifest.json", flipped, "manifest.json: "),
    ],
)
def test_a_damaged_set_is_made_anew_on_request_with_one_line(
    stub, train_file, tmp_path, small_units, name, harm, damage
):
    said = []

    def make(**options):
        return prepare(
            train_file, lambda: stub["chatglm3"], tmp_path / "sets", SETTINGS, say=said.append,
            **options,
        )  # fmt: skip

    direct = load_examples(train_file, stub["chatglm3"], max_length=64)
    found = make()
    whole = (found.directory / "part-00002.arrow").stat().st_mtime_ns
    harm(found.directory / name)
    with pytest.raises(DataError, match="make it anew with `glmforge data prepare`"):
        make()
    assert said == []
    again = make(rebuild=True)
    (line,) = said
    assert str(found.directory) in line
    assert damage in line
    assert "made anew" in line
    assert same(direct.examples, again)
    assert again.counts == direct.counts
    assert (found.directory / "part-00002.arrow").stat().st_mtime_ns == whole
    assert len(make()) == len(again)  # and it opens


def test_a_changed_count_is_caught_on_opening(stub, train_file, tmp_path):
    """The manifest is sealed: it says what training prints."""
    directory = prepare(train_file, lambda: stub["chatglm3"], tmp_path / "sets", SETTINGS).directory
    path = directory / "manifest.json"
    text = path.read_text(encoding="utf-8")
    trained = f'"trained_tokens": {json.loads(text)["counts"]["trained_tokens"]}'
    assert trained in text
    path.write_text(text.replace(trained, trained + "1"), encoding="utf-8")
    with pytest.raises(DataError, match="its seal differs"):
        open_prepared(directory)


def test_a_damaged_description_of_a_part_makes_the_part_anew(stub, train_file, tmp_path):
    """Of an unfinished set, which is gone on with."""
    found = prepare(train_file, lambda: stub["chatglm3"], tmp_path / "sets", SETTINGS)
    counts = found.counts
    (found.directory / "manifest.json").unlink()
    sidecar = found.directory / "part-00000.json"
    for damaged in ("{", sidecar.read_text(encoding="utf-8").replace('"rows": ', '"rows": 9')):
        sidecar.write_text(damaged, encoding="utf-8")
        (found.directory / "manifest.json").unlink(missing_ok=True)
        again = prepare(train_file, lambda: stub["chatglm3"], tmp_path / "sets", SETTINGS)
        assert again.counts == counts


@pytest.mark.parametrize("place", ["a-file", "a-file/below", "/proc/nothing"])
def test_a_place_where_no_set_can_be_written_is_named(stub, train_file, tmp_path, place):
    (tmp_path / "a-file").write_text("", encoding="utf-8")
    with pytest.raises(DataError, match=r"cannot be written here .*data\.prepared_dir"):
        prepare(train_file, lambda: stub["chatglm3"], tmp_path / place, SETTINGS)


def test_a_disk_that_is_full_midway_is_named(stub, train_file, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("glmforge.data.part_writer.record_batch", full)
    with pytest.raises(DataError, match=r"sets/\w+: .*No space left on device.*has room"):
        prepare(train_file, lambda: stub["chatglm3"], tmp_path / "sets", SETTINGS)


def test_an_unfinished_set_is_no_set(tmp_path):
    with pytest.raises(DataError, match="no finished prepared set"):
        open_prepared(tmp_path)


def test_parts_that_were_finished_before_an_interruption_are_used_again(
    stub, train_file, tmp_path, small_units
):
    class StoppedError(Exception):
        pass

    def stop(done, total):
        if done > total / 2:
            raise StoppedError

    def make(progress=lambda done, total: None):
        return prepare(
            train_file, lambda: stub["chatglm3"], tmp_path / "sets", SETTINGS, progress=progress
        )

    with pytest.raises(StoppedError):
        make(stop)
    (directory,) = (tmp_path / "sets").iterdir()
    made = {path.name: path.stat().st_mtime_ns for path in directory.glob("*.arrow")}
    found = make()
    assert len(made) < len(found.manifest["parts"])
    assert {name: (directory / name).stat().st_mtime_ns for name in made} == made
    assert len(found) == 300


def test_faulty_records_stop_or_are_skipped_and_keep_their_lines(
    stub, train_file, tmp_path, small_units
):
    with train_file.open("a", encoding="utf-8") as file:
        file.write("{broken\n")
    make = functools.partial(
        prepare, train_file, lambda: stub["chatglm3"], tmp_path / "sets", SETTINGS
    )
    with pytest.raises(DataError, match=r"train\.jsonl:301"):
        make()
    found = make(on_error="skip")
    assert (found.counts.records, found.counts.skipped, len(found)) == (301, 1, 300)
    assert next(found.problems()).source == "train.jsonl:301"


def test_dropped_records_stop_nothing_and_are_kept_with_their_reason(
    stub, train_file, tmp_path, small_units
):
    with train_file.open("a", encoding="utf-8") as file:
        file.write(line(1).replace("问1", "问" * 90) + "\n{broken\n")
    make = functools.partial(
        prepare, train_file, lambda: stub["chatglm3"], tmp_path / "sets", SETTINGS
    )
    with pytest.raises(DataError) as caught:
        make()
    assert [text.split(":")[1] for text in caught.value.problems] == ["302"]
    found = make(on_error="skip")
    assert (found.counts.skipped, found.counts.dropped, found.counts.left_out) == (1, 1, 2)
    dropped, broken = found.problems()
    assert (dropped.source, dropped.rule, dropped.level) == (
        "train.jsonl:301", "too-long", "warning",
    )  # fmt: skip
    assert "no label would be left" in dropped.text
    assert broken.source == "train.jsonl:302"


def test_sets_of_one_run_tell_files_of_one_name_apart(stub, train_file, tmp_path):
    other = tmp_path / "other/train.jsonl"
    other.parent.mkdir()
    other.write_text(train_file.read_text(encoding="utf-8"), encoding="utf-8")
    both = [train_file, other]
    first, second = (
        prepare(path, lambda: stub["chatglm3"], tmp_path / "sets", SETTINGS, beside=both)
        for path in both
    )
    assert first[0].source == f"{tmp_path.name}/train.jsonl:1"
    assert second[0].source == "other/train.jsonl:1"


def test_drafts_of_killed_processes_are_removed_and_no_others(stub, train_file, tmp_path):
    """A process that still runs, here or on another machine, goes on writing."""
    first = prepare(train_file, lambda: stub["chatglm3"], tmp_path / "sets", SETTINGS)
    (first.directory / "manifest.json").unlink()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    here, there = platform.node(), "elsewhere"
    names = [f"part-00000.arrow.{host}.{pid}.tmp" for host, pid in
             ((here, ended.pid), (here, os.getppid()), (there, ended.pid))]  # fmt: skip
    for name in names:
        (first.directory / name).write_bytes(b"half")
    prepare(train_file, lambda: stub["chatglm3"], tmp_path / "sets", SETTINGS)
    assert sorted(path.name for path in first.directory.glob("*.tmp")) == sorted(names[1:])


@pytest.mark.parametrize("size", [0, 3])
def test_a_file_with_a_fault_is_no_record(stub, train_file, tmp_path, size):
    """It stops a run, or is counted as a file and told with the records that are left out."""
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n" * size)
    both = [train_file, empty]
    skipped = load_examples(both, stub["chatglm3"], max_length=64, on_error="skip")
    found = prepare(both, lambda: stub["chatglm3"], tmp_path / "s", SETTINGS, on_error="skip")
    for counts in (skipped.counts, found.counts):
        assert (counts.records, counts.skipped, counts.faulty_files) == (300, 0, 1)
        assert "1 files damaged, empty or of no known kind" in str(counts)
    assert [problem.rule for problem in found.problems()] == ["no-record"]
    with pytest.raises(DataError, match=r"empty\.jsonl: there is no record"):
        load_examples(both, stub["chatglm3"], max_length=64)
    with pytest.raises(DataError, match=r"empty\.jsonl: there is no record"):
        prepare(both, lambda: stub["chatglm3"], tmp_path / "sets", SETTINGS)


def test_the_error_of_many_problems_says_how_many_there_are(stub, tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt": 1}\n' * 125)
    for attempt in (
        lambda: load_examples(path, stub["chatglm3"], max_length=64),
        lambda: prepare(path, lambda: stub["chatglm3"], tmp_path / "sets", SETTINGS),
    ):
        with pytest.raises(DataError, match=r"^125 problems:"):
            attempt()
