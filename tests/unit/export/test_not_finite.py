"""Weights that are NaN or infinite are refused by the name of their tensor, wherever they lie."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from glmforge.adapters import read_adapter
from glmforge.bin_files import refuse_not_finite
from glmforge.errors import AdapterError, ModelError
from glmforge.export import export
from small_models import ONE_LAYER, write_random_adapter, write_small_model


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("finite") / "base", **ONE_LAYER)


def spoil(directory: Path, part: str, value: float, name: str = "model.safetensors") -> str:
    """Put `value` into the first tensor whose name holds `part`."""
    tensors = load_file(directory / name)
    found = next(each for each in tensors if part in each)
    tensors[found].view(-1)[1] = value
    save_file(tensors, directory / name, metadata={"format": "pt"})
    return found


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("merge", [False, True])
def test_an_adapters_tensor_is_named(base: Path, tmp_path: Path, value: float, merge: bool) -> None:
    """Of the file alone; nothing is blamed on what would be written."""
    adapter = write_random_adapter(base, tmp_path / "adapter")
    name = spoil(adapter, "lora_B", value, "adapter_model.safetensors")
    with pytest.raises(AdapterError, match=rf"1 of 2 tensors hold NaN or infinity: {name} \(1 of"):
        read_adapter(adapter)
    with pytest.raises(AdapterError, match="take an earlier checkpoint"):
        export(adapter, tmp_path / "out", merge=merge)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("how", ["model", "adapter", "merge"])
def test_a_models_tensor_is_named(base: Path, tmp_path: Path, how: str) -> None:
    """Of a model that is exported, and of an adapter's base."""
    wrong = shutil.copytree(base, tmp_path / "wrong")
    source = wrong if how == "model" else write_random_adapter(base, tmp_path / "adapter")
    name = spoil(wrong, "post_attention_layernorm", float("nan"))
    given = None if how == "model" else wrong
    with pytest.raises(ModelError, match=f"{wrong}: 1 of .* hold NaN or infinity: {name}"):
        export(source, tmp_path / "out", merge=how == "merge", base=given)
    assert not (tmp_path / "out").exists()


def test_large_sums_and_other_kinds_of_numbers_pass() -> None:
    """A finite tensor whose sum overflows is whole; integers and the meta device hold no NaN."""
    tensors = {
        "large": torch.full((4,), 3e38),
        "half": torch.full((100,), 60000.0, dtype=torch.float16),
        "whole": torch.ones(3, dtype=torch.uint8),
        "meta": torch.empty(3, device="meta"),
        "empty": torch.empty(0),
    }
    refuse_not_finite(tensors.items(), "here", ModelError)
