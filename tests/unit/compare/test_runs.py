"""Two runs side by side: what differs, and each step's numbers paired."""

import json

import pytest

from glmforge.assets import asset_path
from glmforge.cli import main
from glmforge.compare.runs import compare_runs, comparison_lines
from glmforge.config import config_from_mapping
from glmforge.errors import CheckpointError
from small_models import TINY_MODEL

STEPS = 4


def run(directory, rows=None, *, hash_="h", **training):
    """A run directory as training leaves it, without weights."""
    directory.mkdir()
    config = config_from_mapping(
        {
            "model": {"model_name_or_path": str(TINY_MODEL)},
            "data": {"train": str(asset_path("demo/train.jsonl"))},
            "training": {"output_dir": str(directory), **training},
        }
    )
    engine = {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
    }
    (directory / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    (directory / "deepspeed.json").write_text(json.dumps(engine))
    (directory / "data.json").write_text(json.dumps({"hash": hash_}))
    (directory / "versions.json").write_text(json.dumps({"torch": "2.13.0"}))
    if rows is None:
        rows = [record(step) for step in range(1, STEPS + 1)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (directory / "metrics.jsonl").write_text(text + '{"kind": "tra')  # killed while writing
    return directory


def record(step, **values):
    usual = {"loss": 5.0 - step, "grad_norm": 1.0, "tokens_per_second": 100.0, "peak_gib": 2.0}
    return {"kind": "train", "step": step, **usual, **values}


def test_one_changed_setting_and_its_numbers_step_by_step(tmp_path):
    """The setting that differs, the pairs, and their summary."""
    one = run(tmp_path / "a")
    rows = [record(n, loss=4.5 - n, tokens_per_second=150.0, peak_gib=3.0) for n in (1, 2, 3, 4)]
    other = run(tmp_path / "b", rows, learning_rate=1e-3)
    found = compare_runs(one, other)
    mattering = [difference for difference in found.differences if difference.matters]
    assert [(d.name, d.values) for d in mattering] == [("training.learning_rate", (5e-5, 1e-3))]
    assert [(step.step, step.loss) for step in found.steps] == [
        (n, (5.0 - n, 4.5 - n)) for n in (1, 2, 3, 4)
    ]
    assert found.summary["loss_difference"] == (-0.5, 0.0)
    assert found.summary["tokens_per_second"] == (100.0, 150.0)
    assert found.summary["peak_gib"] == (2.0, 3.0)
    assert found.warnings == ()


def test_more_than_one_changed_setting_is_warned_of(tmp_path):
    """With the names; where a run lies is not counted."""
    one = run(tmp_path / "a")
    other = run(tmp_path / "b", hash_="other", learning_rate=1e-3, seed=1)
    (warning,) = compare_runs(one, other).warnings
    assert warning.startswith("3 differences may each explain what follows (")
    assert "training.seed" in warning
    assert "training.learning_rate" in warning
    assert "data (hash" in warning
    assert warning.endswith("change one thing at a time")


def test_two_runs_of_the_same_are_said_to_be_noise(tmp_path):
    """No setting that matters differs."""
    found = compare_runs(run(tmp_path / "a"), run(tmp_path / "b"))
    assert [d.name for d in found.differences if d.matters] == []
    assert found.warnings[0].startswith("no setting that matters differs")


def test_lost_steps_and_runs_of_unequal_length(tmp_path):
    """A loss that was not finite is a dash and in no mean; the shared steps are compared."""
    rows = [record(1), record(2, loss=None, grad_norm=None), record(3), record(9)]
    found = compare_runs(run(tmp_path / "a", seed=1), run(tmp_path / "b", rows, seed=2))
    assert [step.step for step in found.steps] == [1, 2, 3]
    assert found.summary["loss"] == (3.0, 3.0)
    assert "the runs have 4 and 4 steps; the 3 that both have" in found.warnings[0]
    table = "\n".join(comparison_lines(found, most_steps=20))
    assert "     2    3.0000        -        -" in table


def test_a_long_run_is_shown_in_few_rows(tmp_path):
    """Evenly chosen, the first and the last among them."""
    rows = [record(step) for step in range(1, 101)]
    found = compare_runs(run(tmp_path / "a", rows), run(tmp_path / "b", rows))
    lines = comparison_lines(found, most_steps=5)
    shown = [line.split()[0] for line in lines if line.strip()[:1].isdigit()]
    assert shown == ["1", "26", "51", "75", "100"]


@pytest.mark.parametrize("what", ["nothing", "no step"])
def test_what_is_no_run_is_named(tmp_path, what):
    """The directory, and what is missing in it."""
    one = run(tmp_path / "a")
    other = tmp_path / "b"
    other.mkdir()
    if what == "no step":
        (other / "config.yaml").write_text((one / "config.yaml").read_text())
        (other / "metrics.jsonl").write_text("")
    words = "recorded no step" if what == "no step" else "config.yaml and metrics.jsonl not found"
    with pytest.raises(CheckpointError, match=words):
        compare_runs(one, other)


def test_the_command_prints_a_table_or_json(tmp_path, monkeypatch, capsys):
    """`glmforge compare --runs A B [--json]`."""
    one, other = run(tmp_path / "a"), run(tmp_path / "b", seed=7)
    monkeypatch.setattr("sys.argv", ["glmforge", "compare", "--runs", str(one), str(other)])
    assert main.main() == 0
    out = capsys.readouterr().out
    assert "differs    training.seed: 42 -> 7" in out
    assert "no effect  training.output_dir" in out
    monkeypatch.setattr(
        "sys.argv", ["glmforge", "compare", "--runs", str(one), str(other), "--json"]
    )
    assert main.main() == 0
    found = json.loads(capsys.readouterr().out)
    assert found["steps"][0]["loss"] == [4.0, 4.0]
    monkeypatch.setattr("sys.argv", ["glmforge", "compare"])
    assert main.main() == 2


@pytest.mark.parametrize("name", ["versions.json", "data.json", "deepspeed.json"])
@pytest.mark.parametrize("text", ["", '{"torch":', "[]"])
def test_a_torn_file_of_a_run_is_named_with_its_copies(tmp_path, name, text):
    """It is no bug of ours, and every checkpoint has a whole one."""
    for one in ("a", "b"):
        run(tmp_path / one)
    (tmp_path / "a" / name).write_text(text)
    with pytest.raises(CheckpointError) as caught:
        compare_runs(tmp_path / "a", tmp_path / "b")
    assert f"{tmp_path / 'a' / name}: cannot be read" in str(caught.value)
    assert "every checkpoint has a copy" in str(caught.value)
