"""Losses and gradients that are not finite are counted, and too many in a row end a run."""

from types import SimpleNamespace

import pytest

from glmforge.errors import TrainingError
from glmforge.train.lost_steps import MOST_LOST_STEPS, stop_on_lost_steps, what_was_lost
from glmforge.train.metrics import StepRecord
from glmforge.train.session import Session, Stopped
from glmforge.train.state import Progress

NAN, INF = float("nan"), float("inf")


def record(loss=2.0, norm=1.0, step=1):
    names = """epoch learning_rate loss_scale skipped_steps trained_tokens tokens_per_second
    step_seconds data_seconds peak_gib"""
    return StepRecord(step=step, loss=loss, grad_norm=norm, **dict.fromkeys(names.split(), 1.0))


@pytest.fixture
def session(tmp_path):
    """A run of five steps an epoch that has said nothing yet."""
    said = []
    found = SimpleNamespace(
        progress=Progress(),
        precision="bf16",
        zero_stage=2,
        checkpoints=tmp_path,
        recorder=SimpleNamespace(say=said.append),
        said=said,
        plan=SimpleNamespace(
            steps_per_epoch=5,
            sources=lambda epoch, step: [
                f"train.jsonl:{100 * epoch + 10 * step + n}" for n in range(9)
            ],
        ),
    )
    found.last_checkpoint = lambda: Session.last_checkpoint(found)
    return found


@pytest.mark.parametrize(
    ("loss", "norm", "skipped", "precision", "stage", "expected"),
    [
        (2.0, 1.0, False, "bf16", 2, None),
        (NAN, 1.0, False, "bf16", 2, "the loss was nan"),
        (NAN, INF, True, "fp16", 2, "the loss was nan"),
        (2.0, INF, True, "bf16", 2, "the gradients were not finite (loss 2.0000)"),
        (2.0, 1.0, True, "fp32", 3, "the gradients were not finite (loss 2.0000)"),
        (2.0, NAN, False, "fp32", 0, "the gradients were not finite (loss 2.0000)"),
        (2.0, NAN, False, "bf16", 1, None),  # the engine keeps no norm
        (2.0, INF, True, "fp16", 2, None),  # the loss scale falls: that is its way
    ],
)
def test_what_counts_as_a_lost_step(loss, norm, skipped, precision, stage, expected):
    """Non-finite gradients with a finite loss count too, except fp16's overflows."""
    found = what_was_lost(record(loss, norm), skipped=skipped, precision=precision, stage=stage)
    assert found == expected


def test_ten_steps_in_a_row_without_finite_gradients_end_the_run(session):
    """With the rows of the step, the last checkpoint, and what to try."""
    (session.checkpoints / "latest").write_text("step-000004\n")
    for step in range(1, MOST_LOST_STEPS):
        stop_on_lost_steps(session, record(2.5, INF, step), skipped=True)
    assert session.progress.lost_in_a_row == MOST_LOST_STEPS - 1
    assert session.said[0] == (
        "step 1: the gradients were not finite (loss 2.5000); no update was made"
    )
    with pytest.raises(TrainingError) as caught:
        stop_on_lost_steps(session, record(2.5, INF, 13), skipped=True)
    text = str(caught.value)
    assert "the gradients were not finite (loss 2.5000), for 10 step(s) in a row" in text
    assert "look at its rows (train.jsonl:220, train.jsonl:221, " in text
    assert "train.jsonl:227 and 1 more; glmforge data check)" in text
    assert text.endswith("Last checkpoint: step-000004")


def test_a_good_step_begins_the_count_anew(session):
    """k in a row, not k in all."""
    for step in range(1, 40):
        lost = step % 5 != 0
        stop_on_lost_steps(session, record(NAN if lost else 2.0, step=step), skipped=lost)
    assert session.progress.lost_in_a_row == 4


def test_stage_0_in_fp32_ends_at_once_because_nothing_guards_the_weights(session):
    """The update was made, with gradients that are no numbers."""
    session.zero_stage, session.precision = 0, "fp32"
    with pytest.raises(TrainingError, match="stage=1 \\(it skips such steps\\)"):
        stop_on_lost_steps(session, record(2.0, NAN), skipped=False)
    assert session.said == [
        "step 1: the gradients were not finite (loss 2.0000); the weights are spoilt (stage 0 in "
        "fp32)"
    ]


class Saving:
    """A run whose checkpoints are only counted."""

    def __init__(self, directory, *, step, lost, total=20, is_best=False):
        self.progress = Progress(step=step, lost_in_a_row=lost)
        training = SimpleNamespace(save_steps=1)
        self.config = SimpleNamespace(training=training, trains_adapter=True)
        self.total_steps, self.finished, self.is_best = total, step == total, is_best
        self.directory, self.checkpoints = directory, directory / "checkpoints"
        self.checkpoints.mkdir(exist_ok=True)
        self.saver = SimpleNamespace(poll=lambda: None, finish=lambda: None)
        self.saved = []

    def look_is_due(self):
        return self.is_best

    def look(self):
        return True

    def save(self, *, is_best, wait=False):
        self.saved.append(self.progress.step)

    last_checkpoint = Session.last_checkpoint
    _stopped = Session._stopped


def test_a_lost_step_is_not_saved_in_place_of_a_whole_one(tmp_path):
    """But where an evaluation has found the weights good, and at the end of the run."""
    for step, lost, is_best, saved in (
        (4, 0, False, [4]), (4, 1, False, []), (4, 1, True, [4]), (20, 1, False, [20])
    ):  # fmt: skip
        run = Saving(tmp_path, step=step, lost=lost, is_best=is_best)
        Session.after_step(run, stop_signal=0)
        assert run.saved == saved


def test_a_signal_in_lost_steps_names_the_checkpoint_before_them(tmp_path):
    """And where there is none, what --resume does."""
    run = Saving(tmp_path, step=6, lost=2)
    with pytest.raises(Stopped, match="there is no checkpoint yet"):
        Session.after_step(run, stop_signal=15)
    (run.checkpoints / "latest").write_text("step-000004\n")
    with pytest.raises(Stopped) as told:
        Session.after_step(run, stop_signal=15)
    assert run.saved == []
    assert "nothing was saved of its last 2 step(s), which were lost" in str(told.value)
    assert f"the checkpoint is {run.checkpoints / 'step-000004'}" in str(told.value)


def test_a_checkpoint_of_the_step_before_the_first_lost_one_is_doubted(session):
    """The update that was saved last may be the one that spoilt the weights."""
    for name in ("step-000002", "step-000004"):
        (session.checkpoints / name).mkdir()
    (session.checkpoints / "latest").write_text("step-000004\n")
    for step in range(5, 4 + MOST_LOST_STEPS):
        stop_on_lost_steps(session, record(NAN, step=step), skipped=False)
    with pytest.raises(TrainingError) as told:
        stop_on_lost_steps(session, record(NAN, step=4 + MOST_LOST_STEPS), skipped=False)
    assert "its weights may be spoilt" in str(told.value)
    assert "move it away to go on from step-000002" in str(told.value)
