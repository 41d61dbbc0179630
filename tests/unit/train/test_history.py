"""What a resumed run still has of the steps before, and what it says of those that are gone."""

import json

import pytest

from glmforge.errors import CheckpointError
from glmforge.train.history import cut_records

TRAIN = [{"kind": "train", "step": step, "loss": 1.0} for step in range(1, 7)]
LOOKS = [{"kind": "eval", "step": step, "eval_empty_answers": 0} for step in (0, 2, 4, 6)]
ANSWERS = [{"step": step, "answer": text} for step in (0, 2, 4, 6) for text in ("a", "b")]


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.fixture
def run(tmp_path):
    """The records of a run of six steps that was evaluated at every second one."""
    (tmp_path / "metrics.jsonl").write_bytes(lines(TRAIN + LOOKS))
    (tmp_path / "samples.jsonl").write_bytes(lines(ANSWERS))
    return tmp_path


def steps(path):
    return {json.loads(line)["step"] for line in path.read_text().splitlines()}


def test_rows_after_the_checkpoint_are_dropped_without_a_word(run):
    """A last line without its end is what a kill leaves."""
    for name in ("metrics.jsonl", "samples.jsonl"):
        with open(run / name, "ab") as file:
            file.write(b'{"kind": "tr')
    assert cut_records(run, 4) == []
    assert steps(run / "metrics.jsonl") == {0, 1, 2, 3, 4}
    assert steps(run / "samples.jsonl") == {0, 2, 4}


def test_a_run_from_its_beginning_keeps_nothing(run):
    assert cut_records(run, None) == []
    assert (run / "metrics.jsonl").read_bytes() == b""


def test_damaged_lines_are_counted(run):
    path = run / "metrics.jsonl"
    path.write_bytes(b"\xff\xfe{\n" + b"[1]\n" + b'{"kind": "train"}\n' + path.read_bytes())
    assert cut_records(run, 4) == [
        f"{path}: 3 damaged line(s) were left out: its curves and texts have gaps there"
    ]


@pytest.mark.parametrize("way", ["gone", "empty"])
def test_steps_that_are_not_there_are_counted(run, way):
    path = run / "metrics.jsonl"
    path.unlink() if way == "gone" else path.write_bytes(b"")
    (said,) = cut_records(run, 4)
    assert said.startswith(f"{path}: 4 of the 4 steps before are not in it")


def test_a_file_that_was_cut_in_the_middle_of_a_step_is_told(run):
    path = run / "metrics.jsonl"
    path.write_bytes(lines(TRAIN[:2]) + lines(TRAIN[2:3])[:-9])
    (said,) = cut_records(run, 4)
    assert said.startswith(f"{path}: 2 of the 4 steps before are not in it")


@pytest.mark.parametrize(
    ("kept", "lost"),
    [(b"", "0, 2, 4"), (lines(ANSWERS[:5]) + lines(ANSWERS[5:6])[:-3], "4")],
)
def test_answers_that_are_not_there_are_told(run, kept, lost):
    path = run / "samples.jsonl"
    path.write_bytes(kept)
    (said,) = cut_records(run, 4)
    assert said.startswith(f"{path}: answers of step {lost} are not in it")


def test_a_record_that_is_a_directory_is_named(run):
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").mkdir()
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl: not a file: move it away"):
        cut_records(run, 4)
