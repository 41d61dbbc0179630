"""A LoRA checkpoint joined with settings, a base or options that are not its own."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from glmforge.errors import AdapterError, ExportError
from glmforge.export import export
from glmforge.export.base_print import BASE_PRINT, BaseState, check_base, write_base_print
from glmforge.export.consolidate import consolidate
from small_models import ONE_LAYER, write_random_adapter, write_small_model


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("joined") / "base", **ONE_LAYER)


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    """Rank 8, with the settings that name its base."""
    adapter = write_random_adapter(base, tmp_path / "adapter", rank=8)
    settings = json.loads((adapter / "adapter_config.json").read_text())
    settings["base_model_name_or_path"] = str(base)
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    return adapter


@pytest.fixture
def shards(adapter: Path, tmp_path: Path) -> Path:
    """Its tensors as DeepSpeed writes them at stage 0, with nothing beside them."""
    folder = tmp_path / "checkpoint" / "global_step2"
    folder.mkdir(parents=True)
    tensors = load_file(adapter / "adapter_model.safetensors")
    module = {name.replace(".weight", ".default.weight"): t for name, t in tensors.items()}
    torch.save({"module": module, "dp_world_size": 1}, folder / "mp_rank_00_model_states.pt")
    return folder.parent


def changed(adapter: Path, **values: object) -> Path:
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return path


@pytest.mark.parametrize("with_base", [False, True])
def test_settings_of_another_rank_are_refused(
    base: Path, adapter: Path, shards: Path, tmp_path: Path, with_base: bool
) -> None:
    """By the rank, whether the base is there or not; never as a base of another size."""
    path = changed(adapter, r=4, base_model_name_or_path=None)
    with pytest.raises(AdapterError, match=f"has rank 8, but {path} says r=4"):
        consolidate(shards, tmp_path / "out", adapter_config=path, base=base if with_base else None)
    assert not (tmp_path / "out").exists()


def test_the_settings_are_asked_for_the_base(
    base: Path, adapter: Path, shards: Path, tmp_path: Path
) -> None:
    """So that tensors are counted against the model without --base."""
    path = changed(adapter)
    report = consolidate(shards, tmp_path / "out", adapter_config=path)
    assert report.counted
    assert "each counted against the model and read back" in report.lines()[1]
    assert [note.split(":")[0] for note in report.notes] == ["the base cannot be checked"]
    changed(adapter, base_model_name_or_path="gone")
    report = consolidate(shards, tmp_path / "alone", adapter_config=path)
    assert "counted against the model" not in report.lines()[1]
    assert "ranks were compared with adapter_config.json and nothing else" in report.notes[0]


def test_another_base_is_refused_and_the_print_goes_along(
    base: Path, adapter: Path, shards: Path, tmp_path: Path
) -> None:
    """base.json is found beside the settings or in the checkpoint's adapter."""
    other = shutil.copytree(base, tmp_path / "other")
    weights = {n: t + 0.1 for n, t in load_file(other / "model.safetensors").items()}
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    write_base_print(base, adapter)
    shutil.copytree(adapter, shards / "adapter")
    with pytest.raises(AdapterError, match="is not the base it was trained on"):
        consolidate(shards, tmp_path / "out", base=other)
    report = consolidate(shards, tmp_path / "out")
    assert report.notes == ()
    assert check_base(tmp_path / "out", base).state is BaseState.SAME
    (shards / "adapter" / BASE_PRINT).unlink()
    consolidate(shards, tmp_path / "again", adapter_config=adapter / "adapter_config.json")
    assert (tmp_path / "again" / BASE_PRINT).is_file()


def test_options_are_refused_where_they_do_nothing(
    adapter: Path, shards: Path, tmp_path: Path
) -> None:
    """A size that is none, a size for one small file, a file that is not there."""
    path = adapter / "adapter_config.json"
    with pytest.raises(ExportError, match="--max-shard-size foo: write a number"):
        consolidate(shards, tmp_path / "out", adapter_config=path, max_shard_size="foo")
    with pytest.raises(ExportError, match="--max-shard-size does nothing for an adapter"):
        consolidate(shards, tmp_path / "out", adapter_config=path, max_shard_size="1GB")
    consolidate(shards, tmp_path / "out", adapter_config=path, with_base=True, max_shard_size="9KB")
    assert len(list((tmp_path / "out" / "base").glob("model-*.safetensors"))) > 1
    with pytest.raises(ExportError, match="gone: no adapter_config"):
        consolidate(shards, tmp_path / "out2", adapter_config=Path("gone"))


def test_an_alpha_of_zero_is_refused_like_a_lora_b_of_zeros(adapter: Path, tmp_path: Path) -> None:
    """Such a merge changes nothing."""
    changed(adapter, lora_alpha=0)
    for merge in (True, False):
        with pytest.raises(AdapterError, match="lora_alpha is 0, so the adapter changes nothing"):
            export(adapter, tmp_path / "out", merge=merge)
