"""TensorBoard's files: every point once, settings as hparams, and a lost directory is no loss."""

import json
import shutil

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from glmforge.assets import asset_path
from glmforge.config import config_from_mapping
from glmforge.distributed.collectives import Ranks
from glmforge.distributed.env import World
from glmforge.train.metrics import StepRecord, open_recorder
from small_models import TINY_MODEL

LAST = 8


@pytest.fixture
def recorder(tmp_path):
    """Opens the records of a run of eight steps, shown every second one."""
    import torch

    said = []
    data = str(asset_path("demo/train.jsonl"))
    config = config_from_mapping(
        {
            "model": {"model_name_or_path": str(TINY_MODEL)},
            "data": {"train": data},
            "training": {"output_dir": str(tmp_path), "logging_steps": 2},
        }
    )
    ranks = Ranks(world=World(), device=torch.device("cpu"))

    def make(start=None):
        return open_recorder(config, tmp_path, ranks, LAST, start=start, say=said.append)

    make.said = said
    return make


def record(step, loss=None):
    return StepRecord(
        step=step,
        epoch=step / 8,
        loss=10.0 - step if loss is None else loss,
        learning_rate=1e-3,
        grad_norm=1.0,
        loss_scale=1.0,
        skipped_steps=0,
        trained_tokens=5,
        tokens_per_second=100.0,
        step_seconds=0.1,
        data_seconds=0.01,
        peak_gib=1.0,
    )


def points(directory, name="train/loss"):
    """The curve that TensorBoard shows, purged events left out."""
    board = EventAccumulator(str(directory / "tensorboard"), size_guidance={"scalars": 0})
    board.Reload()
    return [(event.step, event.value) for event in board.Scalars(name)]


def train(recorder, first, last):
    for step in range(first, last + 1):
        recorder.step(record(step), [[0.0, 0.1, 0.01, 1.0, 5.0, 0.0, 0.05, 8.0]])


def test_a_run_shows_its_curves_texts_and_settings(recorder, tmp_path):
    """Steps 1, every second one and the last; evaluations; the answers; hparams."""
    run = recorder()
    train(run, 1, LAST)
    run.evaluation({"step": 8, "epoch": 1.0, "eval_loss": 1.5, "eval_tokens": 9, "eval_x": "words"})
    run.samples(8, [{"prompt": "你好", "answer": "您好", "stop_reason": "stop"}])
    run.close()
    assert [step for step, _ in points(tmp_path)] == [1, 2, 4, 6, 8]
    assert points(tmp_path, "eval/eval_loss") == [(8, 1.5)]
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    assert board.Tags()["tensors"] == ["samples/0/text_summary"]
    hparams = board.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    assert b"training.learning_rate" in hparams


def test_a_resumed_run_goes_on_without_doubled_points(recorder, tmp_path):
    """Killed after step 6, resumed from the checkpoint of step 4."""
    first = recorder()
    train(first, 1, 6)
    first.close()
    again = recorder(start=4)
    train(again, 5, LAST)
    again.close()
    assert [step for step, _ in points(tmp_path)] == [1, 2, 4, 6, 8]


def test_a_directory_deleted_in_the_middle_is_made_again_whole(recorder, tmp_path):
    """Training goes on; a line says it; the curve has every point once."""
    run = recorder()
    train(run, 1, 5)
    run.evaluation({"step": 5, "epoch": 0.5, "eval_loss": 2.5, "eval_tokens": 9})
    run.samples(5, [{"prompt": "a", "answer": "b", "stop_reason": "stop"}])
    shutil.rmtree(tmp_path / "tensorboard")
    train(run, 6, LAST)
    run.close()
    assert points(tmp_path) == [(step, 10.0 - step) for step in (1, 2, 4, 6, 8)]
    assert points(tmp_path, "eval/eval_loss") == [(5, 2.5)]
    (line,) = recorder.said
    assert line.endswith("deleted while the run goes on: made again from metrics.jsonl")


def test_a_directory_lost_before_a_resume_is_made_again(recorder, tmp_path):
    """From the records of the steps that the checkpoint covers."""
    first = recorder()
    train(first, 1, 6)
    first.close()
    shutil.rmtree(tmp_path / "tensorboard")
    again = recorder(start=4)
    train(again, 5, LAST)
    again.close()
    assert points(tmp_path) == [(step, 10.0 - step) for step in (1, 2, 4, 6, 8)]
    assert "is not there: made again" in recorder.said[0]


def test_a_place_that_cannot_be_written_ends_the_curve_and_not_the_run(recorder, tmp_path):
    """A file where the directory was: a line, once, and metrics.jsonl has every step."""
    run = recorder()
    train(run, 1, 2)
    shutil.rmtree(tmp_path / "tensorboard")
    (tmp_path / "tensorboard").write_text("not a directory")
    train(run, 3, LAST)
    run.close()
    assert recorder.said[-1].startswith("tensorboard gets nothing more of this run (")
    assert len(recorder.said) == 2
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["kind"] == "train"] == list(range(1, LAST + 1))


def test_a_full_disk_ends_the_curve_with_one_line_and_no_traceback(
    recorder, tmp_path, monkeypatch, capfd
):
    """The writer's thread never meets it."""
    run = recorder()
    train(run, 1, 2)
    full = shutil.disk_usage(tmp_path)._replace(free=4096)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    train(run, 3, LAST)
    run.close()
    (line,) = recorder.said
    assert line.startswith(
        "tensorboard gets nothing more of this run (OSError: [Errno 28] No space"
    )
    assert "Traceback" not in capfd.readouterr().err
    assert [step for step, _ in points(tmp_path)] == [1, 2]
