"""The demo fails when training changed nothing, and takes a new name where one is taken."""

import dataclasses
import subprocess
from pathlib import Path

import pytest

from glmforge.assets import asset_path
from glmforge.errors import TrainingError
from glmforge.train.demo import DemoResult, check, free_directory, write_report

LEARNED = DemoResult(
    run_dir=Path("run"),
    merged_dir=Path("run-export"),
    loss_before=8.0,
    loss_after=2.0,
    held_out=(8.1, 4.5),
    answers=(("问", "一一一", "您好，小禾在的。"),),
)


def test_a_demo_that_learned_passes():
    """The loss halved and an answer changed."""
    check(LEARNED)
    assert LEARNED.loss_after <= LEARNED.loss_before / 2


@pytest.mark.parametrize("loss", [4.1, 8.0, float("nan")])
def test_a_loss_that_did_not_halve_fails(loss):
    """Also one that is not a number."""
    with pytest.raises(TrainingError, match="at most 50% of the first was expected"):
        check(dataclasses.replace(LEARNED, loss_after=loss))


def test_answers_that_did_not_change_fail():
    """The same words before and after."""
    same = (("问", "一一一", "一一一"),)
    with pytest.raises(TrainingError, match="no answer changed"):
        check(dataclasses.replace(LEARNED, answers=same))


def test_a_taken_directory_is_left_alone(tmp_path):
    """demo, demo-2, demo-3: nothing is deleted."""
    assert free_directory(tmp_path / "demo") == tmp_path / "demo"
    for name in ("demo", "demo-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text("")
    assert free_directory(tmp_path / "demo") == tmp_path / "demo-3"


def test_the_report_is_made_in_a_process_of_its_own(monkeypatch, tmp_path):
    """A comparison that fails fails the demo, with its last lines."""
    ended = {"code": 0}
    commands = []

    def run(command, **_):
        commands.append(command)
        return subprocess.CompletedProcess(command, ended["code"], "", "far\nerror: no weights\n")

    monkeypatch.setattr(subprocess, "run", run)
    assert write_report(tmp_path) == tmp_path / "report.html"
    assert commands[0][3:8:2] == ["compare", str(asset_path("demo/model")), str(tmp_path)]
    ended["code"] = 1
    with pytest.raises(TrainingError, match="error: no weights"):
        write_report(tmp_path)
