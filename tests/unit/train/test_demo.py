"""The demo fails when training did not work, and takes a new name where one is taken."""

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest

from glmforge.assets import asset_path
from glmforge.errors import TrainingError
from glmforge.train.demo import (
    Answers,
    DemoResult,
    Share,
    check,
    free_directory,
    measure,
    write_config,
    write_reports,
)


def share(right, count=80):
    return Share(value=right / count, low=0.0, high=1.0, count=count)


EXAMPLES = (("问", "一一一", "您好，小禾在的。"),)
LEARNED = DemoResult(
    run_dir=Path("run"),
    loss_before=4.0,
    loss_after=1.0,
    held_out=Answers(base=share(2), tuned=share(60), examples=EXAMPLES),
    general=Answers(base=share(40, 40), tuned=share(38, 40), examples=EXAMPLES),
)


def test_a_demo_that_learned_passes():
    """The loss halved and far more answers are right."""
    check(LEARNED)
    check(dataclasses.replace(LEARNED, loss_after=2.0))


@pytest.mark.parametrize("loss", [2.1, 4.0, float("nan")])
def test_a_loss_that_did_not_halve_fails(loss):
    """Also one that is not a number."""
    with pytest.raises(TrainingError, match="at most 50% of the first was expected"):
        check(dataclasses.replace(LEARNED, loss_after=loss))


@pytest.mark.parametrize(
    ("base", "tuned", "fails"), [(2, 26, False), (2, 25, True), (30, 30, True)]
)
def test_less_than_thirty_points_more_right_answers_fail(base, tuned, fails):
    """Both shares are in the message."""
    answers = Answers(base=share(base), tuned=share(tuned), examples=EXAMPLES)
    result = dataclasses.replace(LEARNED, held_out=answers)
    if not fails:
        return check(result)
    with pytest.raises(TrainingError, match=f"tuned {tuned}/80 .* at least 30 were expected"):
        check(result)


def test_both_faults_are_told_at_once():
    with pytest.raises(TrainingError) as told:
        check(dataclasses.replace(LEARNED, loss_after=9.0, held_out=LEARNED.general))
    assert "9.000" in str(told.value)
    assert "were expected" in str(told.value)


def test_a_taken_directory_is_left_alone(tmp_path):
    """demo, demo-2, demo-3: nothing is deleted."""
    assert free_directory(tmp_path / "demo") == tmp_path / "demo"
    for name in ("demo", "demo-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text("")
    assert free_directory(tmp_path / "demo") == tmp_path / "demo-3"


def test_the_config_names_the_base_and_the_packaged_data(tmp_path):
    text = write_config(tmp_path / "new" / "demo.yaml", Path("/my base")).read_text()
    assert 'model_name_or_path: "/my base"' in text
    assert f'path: "{asset_path("demo")}/facts.jsonl"' in text
    assert '"DEMO/' not in text


def test_the_reports_are_made_in_processes_of_their_own(monkeypatch, tmp_path):
    """A comparison that fails fails the demo, with its last lines."""
    ended = {"code": 0}
    commands = []

    def run(command, **_):
        commands.append(command)
        return subprocess.CompletedProcess(command, ended["code"], "", "far\nerror: no weights\n")

    monkeypatch.setattr(subprocess, "run", run)
    names = [page.name for page in write_reports(tmp_path, 2)]
    assert names == ["report_questions.html", "report_general_prompts.html"]
    for command, name in zip(commands, ("questions", "general_prompts"), strict=True):
        assert command[3:8:2] == ["compare", str(asset_path("base")), str(tmp_path)]
        assert command[-2:] == ["--nproc", "2"]
        assert str(asset_path(f"demo/{name}.jsonl")) in command
    ended["code"] = 1
    with pytest.raises(TrainingError, match="error: no weights"):
        write_reports(tmp_path, 2)


def test_what_is_measured_is_what_run_and_reports_say(tmp_path):
    """The first loss, the mean of the last twenty, and the reports' own shares."""
    losses = [4.0, *[2.0] * 10, *[1.0] * 20]
    rows = [{"kind": "train", "loss": loss} for loss in losses] + [{"kind": "eval"}]
    text = "\n".join(json.dumps(row) for row in rows)
    (tmp_path / "metrics.jsonl").write_text(text + "\n")
    asked = [f"问{number}" for number in range(10)]

    def model(value, text):
        mean = {"value": value, "low": 0.1, "high": 0.9, "count": 10}
        answers = {"greedy": [{"text": f"{text}{number}"} for number in range(10)]}
        return {"tables": {"greedy": {"check": {"mean": mean}}}, "answers": answers}

    report = {
        "prompts": [{"messages": [["user", "前"], ["user", ask]]} for ask in asked],
        "models": [model(0.1, "甲"), model(0.8, "乙")],
    }
    pages = []
    for name in ("one", "two"):
        pages.append(tmp_path / f"{name}.html")
        pages[-1].with_suffix(".json").write_text(json.dumps(report))
    found = measure(tmp_path, tuple(pages))
    assert (found.loss_before, found.loss_after) == (4.0, 1.0)
    assert str(found.held_out.base) == "1/10 (10% to 90%)"
    assert found.held_out.tuned.value == 0.8
    assert found.held_out.examples[1] == ("问2", "甲2", "乙2")
    assert len(found.general.examples) == 5
