"""`glmforge plan`: the demo's run planned as a user would, on a machine without a GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from glmforge.assets import asset_path
from glmforge.cli.main import main

HERE = asset_path("demo")
DEMO = [
    str(HERE / "demo.yaml"),
    f"model.model_name_or_path={HERE / 'model'}",
    f"data.train={HERE / 'train.jsonl'}",
    f"data.validation={HERE / 'validation.jsonl'}",
]


def run(monkeypatch: pytest.MonkeyPatch, *argv: str) -> int:
    monkeypatch.setattr(sys, "argv", ["glmforge", "plan", *argv])
    return main()


def test_the_demo_is_planned_with_the_steps_that_it_makes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The demo trains for 696 steps on two processes."""
    assert run(monkeypatch, *DEMO) == 0
    out = capsys.readouterr().out
    assert "58 steps an epoch, 696 in all (12 epochs)" in out
    assert '"train_batch_size": 2' in out


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


def test_planning_imports_no_deepspeed_and_starts_no_gpu() -> None:
    """As a program of its own."""
    code = (
        "import sys; sys.argv = ['glmforge', 'plan', *sys.argv[1:]]\n"
        "from glmforge.cli.main import main; code = main(); import torch\n"
        "assert 'deepspeed' not in sys.modules; assert not torch.cuda.is_initialized()\n"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *DEMO], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
