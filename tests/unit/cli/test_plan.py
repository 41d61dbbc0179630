"""`glmforge plan`: the demo's run planned as a user would, on a machine without a GPU."""

import json
import sys
from pathlib import Path

import pytest

from glmforge.assets import asset_path
from glmforge.cli.main import main

HERE = asset_path("demo")
TRAIN = [
    {"path": f"{HERE}/train.jsonl", "weight": 0.2},
    {"path": f"{HERE}/facts.jsonl"},
    {"path": f"{HERE}/general.jsonl"},
]
DEMO = [
    str(HERE / "demo.yaml"),
    f"model.model_name_or_path={asset_path('base')}",
    f"data.train={json.dumps(TRAIN)}",
    f"data.validation={HERE / 'facts_validation.jsonl'}",
]


def run(monkeypatch: pytest.MonkeyPatch, *argv: str) -> int:
    monkeypatch.setattr(sys, "argv", ["glmforge", "plan", *argv])
    return main()


def test_the_demo_is_planned_with_the_steps_that_it_makes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The demo trains for 335 steps on two processes."""
    assert run(monkeypatch, *DEMO) == 0
    out = capsys.readouterr().out
    assert "134 steps an epoch, 335 in all (2.5 epochs)" in out
    assert '"train_batch_size": 4' in out


def test_json_is_one_document_and_the_cards_are_those_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--gpus and --gpu-memory win over what is here."""
    code = run(monkeypatch, *DEMO, "--gpus", "4", "--gpu-memory", "1", "--json")
    found = json.loads(capsys.readouterr().out)
    assert code == 1
    assert (found["world_size"], found["fits"]) == (4, False)
    assert "1 GiB are there" in found["problems"][0]


def test_bad_data_is_a_problem_beside_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The account is printed all the same."""
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"messages": [{"role": "nobody", "content": "x"}]}\n')
    assert run(monkeypatch, *DEMO, f"data.train={bad}", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert any("bad.jsonl:1" in text for text in found["problems"])
    assert found["peak_gib"] > 0


def test_a_configuration_that_contradicts_itself_is_refused_with_every_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 1, one list: the map, the targets, the positions."""
    code = run(
        monkeypatch,
        *DEMO,
        "method=lora",
        "model.from_scratch=false",
        "lora.target_modules=[q_proj]",
        "data.max_length=1000000",
        "deepspeed={train_batch_size: 3, zero_optimization: {offload_param: {device: cpu}}}",
        "--gpus",
        "2",
        "--json",
    )
    problems = "\n".join(json.loads(capsys.readouterr().out)["problems"])
    assert code == 1
    for word in ("train_batch_size is 3", "offload_param does nothing", "'q_proj'", "positions"):
        assert word in problems


def test_cards_that_fill_no_whole_machines_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """4 cards in machines of 3."""
    assert run(monkeypatch, *DEMO, "--gpus", "4", "--cards-per-host", "3") == 2
    assert "--cards-per-host 3: 4 cards are no whole number" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["models/none", "./none", "owner/none-6b"])
def test_a_directory_that_does_not_exist_is_named_and_no_hub_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """A plan downloads nothing, as training does not."""
    from glmforge.models import hub

    monkeypatch.setattr(hub, "_downloaded", lambda *_: pytest.fail("the hub was asked"))
    assert run(monkeypatch, *DEMO, f"model.model_name_or_path={name}") == 1
    said = capsys.readouterr().err
    assert f"model.model_name_or_path '{name}': no such directory" in said
    assert "nothing is downloaded" in said
