"""What is told of the run that weights are from, wherever they have been carried since."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from glmforge.errors import CheckpointError
from glmforge.export.card import card
from glmforge.export.run_facts import run_facts
from glmforge.export.shards import find_tag


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The files of a run that say something of its weights."""
    run = tmp_path / "runs" / "first"
    (run / "checkpoints" / "step-000004" / "global_step4").mkdir(parents=True)
    (run / "adapter").mkdir()
    (run / "config.yaml").write_text(
        "model: {model_name_or_path: base}\ndata: {train: t}\ntraining: {output_dir: o}\n"
    )
    file = {"path": "t.jsonl", "sha256": "ab"}
    (run / "data.json").write_text(json.dumps({"hash": "cd", "files": {"train": [file]}}))
    (run / "final.json").write_text('{"step": 8}')
    rows = [{"kind": "eval", "step": step, "eval_loss": 1.0 / step} for step in (4, 8)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def test_settings_are_those_that_were_used(run: Path) -> None:
    """Not "auto", not an epoch count that max_steps overruled; the modules that were trained."""
    (run / "config.yaml").write_text(
        "model: {model_name_or_path: base}\ndata: {train: t}\n"
        "training: {output_dir: o, max_steps: 4, gradient_accumulation_steps: auto}\n"
    )
    used = {"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 5}
    used |= {"bf16": {"enabled": True}, "fp16": {"enabled": False}}
    (run / "deepspeed.json").write_text(json.dumps(used))
    (run / "adapter" / "adapter_config.json").write_text('{"target_modules": ["b", "a"]}')
    for source in (run, run / "adapter", run / "checkpoints" / "step-000004"):
        facts = run_facts(source)
        assert facts is not None
        assert "auto" not in facts.settings.values()
        assert "training.num_train_epochs" not in facts.settings
        assert facts.settings["training.max_steps"] == 4
        assert facts.settings["training.gradient_accumulation_steps"] == 5
        assert facts.settings["training.per_device_train_batch_size"] == 3
        assert facts.settings["training.precision"] == "bf16"
        assert facts.settings["lora.target_modules"] == ["a", "b"]
    (run / "deepspeed.json").write_text('{"bf16": {"enabled": false}}')
    known = run_facts(run)
    assert known is not None
    assert known.settings["training.precision"] == "fp32"


def test_epochs_are_told_where_they_decided(run: Path) -> None:
    """And no number of steps that was not given."""
    facts = run_facts(run)
    assert facts is not None
    assert facts.settings["training.num_train_epochs"] == 3.0
    assert "training.max_steps" not in facts.settings


@pytest.mark.parametrize("name", ["export.json", "consolidate.json"])
def test_facts_go_along_with_exports_and_joined_shards(
    run: Path, tmp_path: Path, name: str
) -> None:
    """What is exported once more still tells base, data hash, settings and evaluation."""
    known = run_facts(run / "adapter")
    assert known is not None
    assert (known.data_hash, known.step, known.metrics) == ("cd", 8, {"eval_loss": 0.125})
    carried = tmp_path / "carried"
    carried.mkdir()
    (carried / name).write_text(json.dumps({"kind": "adapter", "run": asdict(known)}))
    assert run_facts(carried) == known
    (carried / name).write_text('{"kind": "adapter", "run": null}')
    assert run_facts(carried) is None


def test_shards_named_by_their_folder_are_of_the_checkpoints_step(run: Path) -> None:
    """step-000004 and its global_step4 are one thing."""
    checkpoint = run / "checkpoints" / "step-000004"
    facts = run_facts(checkpoint)
    assert facts is not None
    assert facts.metrics == {"eval_loss": 0.25}
    assert run_facts(checkpoint / "global_step4") == facts


def test_a_run_in_place_of_a_checkpoint_is_told_its_checkpoints(run: Path) -> None:
    """`glmforge consolidate RUN OUT`, and the folder of the checkpoints."""
    checkpoint = run / "checkpoints" / "step-000004"
    (checkpoint / "global_step4" / "mp_rank_00_model_states.pt").touch()
    for place in (run, run / "checkpoints"):
        with pytest.raises(CheckpointError, match=f"give one of its checkpoints: {checkpoint}"):
            find_tag(place)


@pytest.mark.parametrize(("layout", "needs_us"), [("chatglm", True), ("transformers", False)])
def test_the_card_of_an_adapter_opens_its_base_as_its_layout_is_opened(
    layout: str, needs_us: bool
) -> None:
    """Stock transformers and PEFT need no glmforge for their own layout."""
    text = card(title="t", layout=layout, origin="o", kind="adapter", dtype="fp32", proof=())
    assert ("import glmforge" in text) == needs_us
    assert ("AutoModelForCausalLM.from_pretrained(" in text) == (not needs_us)
