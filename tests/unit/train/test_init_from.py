"""`--init-from`: which weights are taken, which are refused, and what to do instead."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from glmforge.assets import asset_path
from glmforge.config import RunConfig, config_from_mapping
from glmforge.data.prepared import sha256_of
from glmforge.errors import AdapterError, CheckpointError, ExportError
from glmforge.export.manifest import FORMAT_VERSION, MANIFEST, seal_of
from glmforge.models import load_config
from glmforge.train.init_from import find_weights
from glmforge.train.prepare import ModelPlan, plan_model
from glmforge.train.rundir import write_final
from small_models import ONE_LAYER, write_random_adapter, write_small_model


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("base") / "m", **ONE_LAYER)


def config_of(base: Path, method: str = "lora") -> RunConfig:
    values: dict[str, Any] = {
        "model": {"model_name_or_path": str(base)},
        "method": method,
        "data": {"train": str(asset_path("demo/validation.jsonl")), "max_length": 256},
        "training": {"output_dir": "r", "max_steps": 1},
    }
    if method == "lora":
        values["lora"] = {"r": 4, "lora_alpha": 8}
    return config_from_mapping(values)


def refusal(given: Path, base: Path, kind: type[Exception] = AdapterError) -> str:
    config = config_of(base)
    with pytest.raises(kind) as caught:
        find_weights(str(given), config, plan_model(config))
    return str(caught.value)


def seal(checkpoint: Path, step: int) -> Path:
    """Give a checkpoint the manifest that its files call for."""
    found = sorted(path for path in checkpoint.rglob("*") if path.is_file())
    files = {
        path.relative_to(checkpoint).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": sha256_of(path),
        }
        for path in found
    }
    manifest = {"format_version": FORMAT_VERSION, "step": step, "world_size": 1, "files": files}
    text = json.dumps(manifest | {"seal": seal_of(manifest)})
    (checkpoint / MANIFEST).write_text(text)
    return checkpoint


def full_run(directory: Path) -> Path:
    """A run of method full with one checkpoint; its shards are never opened here."""
    shards = directory / "checkpoints" / "step-000003" / "global_step3"
    shards.mkdir(parents=True)
    (shards / "mp_rank_00_model_states.pt").write_bytes(b"shards")
    seal(shards.parent, 3)
    (directory / "config.yaml").write_text("method: full\n")
    return directory


def test_an_adapter_on_a_finished_full_run_is_told_its_model_directory(
    base: Path, tmp_path: Path
) -> None:
    """The run directory itself is no model that could be loaded."""
    run = full_run(tmp_path / "r")
    shutil.copytree(base, run / "model")
    for given in (run, run / "model"):
        text = refusal(given, base)
        advised = re.search(r"model\.model_name_or_path=(\S+)", text)
        assert advised is not None
        assert Path(advised[1]) == run / "model"
        assert load_config(advised[1]).model_type == "chatglm"
        assert "leave --init-from out" in text


def test_an_adapter_on_shards_alone_is_told_to_consolidate_them(base: Path, tmp_path: Path) -> None:
    """A run that has not ended, its checkpoint, and a checkpoint of transformers' Trainer."""
    run = full_run(tmp_path / "r")
    checkpoint = run / "checkpoints" / "step-000003"
    foreign = tmp_path / "t" / "checkpoint-3"
    shutil.copytree(checkpoint / "global_step3", foreign / "global_step3")
    optimizer = "zero_pp_rank_0_mp_rank_00_optim_states.pt"
    (foreign / "global_step3" / optimizer).write_bytes(b"states")
    (foreign / "latest").write_text("global_step3")
    (foreign / "trainer_state.json").write_text('{"global_step": 3}')
    (foreign / "rng_state_0.pth").write_bytes(b"state")
    for given, place in ((run, checkpoint), (checkpoint, checkpoint), (tmp_path / "t", foreign)):
        text = refusal(given, base)
        assert f"(glmforge consolidate {place} OUT)" in text
        assert text.endswith("write model.model_name_or_path=OUT")


def test_a_directory_without_weights_is_not_said_to_hold_any(base: Path, tmp_path: Path) -> None:
    """Whatever the method."""
    assert "nor a model directory" in refusal(tmp_path, base, ExportError)
    config = config_of(base, "full")
    plan = ModelPlan(config=load_config(str(base)), lora=None)
    with pytest.raises(ExportError, match="nor a model directory"):
        find_weights(str(tmp_path), config, plan)


def finished_run(base: Path, directory: Path) -> tuple[Path, Path]:
    """A finished LoRA run and its last checkpoint, whose adapters are the same bytes."""
    checkpoint = directory / "checkpoints" / "step-000003"
    checkpoint.mkdir(parents=True)
    write_random_adapter(base, checkpoint / "adapter")
    shutil.copytree(checkpoint / "adapter", directory / "adapter")
    (directory / "config.yaml").write_text("method: lora\n")
    write_final(directory, {"status": "complete", "step": 3})
    return directory, seal(checkpoint, 3)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_a_flipped_adapter_of_a_finished_run_is_refused_and_its_checkpoint_taken(
    base: Path, tmp_path: Path
) -> None:
    """The checkpoint of the last step knows what the adapter was."""
    run, checkpoint = finished_run(base, tmp_path / "r")
    config = config_of(base)
    plan = plan_model(config)
    assert find_weights(str(run), config, plan).place == run / "adapter"
    flip(run / "adapter" / "adapter_model.safetensors")
    for given in (run, run / "adapter"):
        text = refusal(given, base, CheckpointError)
        assert f"{run}/adapter/adapter_model.safetensors: its bytes differ" in text
        assert f"--init-from {checkpoint}" in text
    assert find_weights(str(checkpoint), config, plan).place == checkpoint / "adapter"


def test_a_flipped_adapter_of_a_checkpoint_is_refused_by_its_own_path_too(
    base: Path, tmp_path: Path
) -> None:
    run, checkpoint = finished_run(base, tmp_path / "r")
    flip(checkpoint / "adapter" / "adapter_model.safetensors")
    assert "its bytes differ" in refusal(checkpoint / "adapter", base, CheckpointError)
    config = config_of(base)
    assert find_weights(str(run), config, plan_model(config)).adapter


def test_a_damaged_newer_checkpoint_that_is_passed_over_is_told(base: Path, tmp_path: Path) -> None:
    """The weights are older than the user thinks."""
    run = tmp_path / "run"
    for step in (2, 4):
        checkpoint = run / f"checkpoints/step-{step:06d}"
        checkpoint.mkdir(parents=True)
        write_random_adapter(base, checkpoint / "adapter")
        seal(checkpoint, step)
    (run / "checkpoints/step-000004/adapter/adapter_model.safetensors").write_bytes(b"torn")
    config = config_of(base)
    found = find_weights(str(run), config, plan_model(config))
    assert found.place == run / "checkpoints/step-000002/adapter"
    (said,) = found.skipped
    assert "passed over step-000004" in said
    assert "adapter_model.safetensors: 4 bytes" in said


def test_an_adapter_with_nothing_to_compare_it_with_is_taken(base: Path, tmp_path: Path) -> None:
    """The checkpoint is gone, its manifest is damaged, or the run went on after its end."""
    run, checkpoint = finished_run(base, tmp_path / "r")
    write_random_adapter(base, run / "adapter", seed=2)
    config = config_of(base)
    plan = plan_model(config)
    manifest = (checkpoint / MANIFEST).read_text()
    (checkpoint / MANIFEST).write_text(manifest.replace('"step": 3', '"step": 4'))
    assert find_weights(str(run), config, plan).adapter
    (checkpoint / MANIFEST).write_text(manifest)
    write_final(run, {"status": "stopped", "step": 3})
    assert find_weights(str(run), config, plan).adapter
    write_final(run, {"status": "complete", "step": 3})
    shutil.rmtree(checkpoint)
    assert find_weights(str(run), config, plan).adapter
