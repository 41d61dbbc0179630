"""An adapter that does not fit is told why: ranks, targets, layers or names."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from glmforge.adapters import open_adapter, read_adapter_config
from glmforge.errors import AdapterError
from small_models import ONE_LAYER, small_model, write_random_adapter, write_small_model

SMALL = {**ONE_LAYER, "num_layers": 3}


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    base = write_small_model(tmp_path / "base", **SMALL)
    return write_random_adapter(base, tmp_path / "adapter", ("query_key_value", "dense"))


def change(adapter: Path, **values: object) -> None:
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def refusal(adapter: Path, **changes: object) -> str:
    with pytest.raises(AdapterError) as caught:
        open_adapter(small_model(**SMALL | changes), adapter)
    assert "--fix-names" not in str(caught.value)
    return str(caught.value)


def test_a_module_that_target_modules_lacks_is_named(adapter: Path) -> None:
    """The names are PEFT's own: no converter is advised."""
    change(adapter, target_modules=["query_key_value"])
    text = refusal(adapter)
    assert "matched 6 of 6 tensors, unexpected 6, missing 0" in text
    assert "it has dense and target_modules of its adapter_config.json does not" in text


def test_a_module_that_the_weights_lack_is_named(adapter: Path) -> None:
    change(adapter, target_modules=["query_key_value", "dense", "dense_4h_to_h"])
    assert "names dense_4h_to_h, and the weights have none" in refusal(adapter)


@pytest.mark.parametrize("layers", [2, 4])
def test_another_number_of_layers_is_told(adapter: Path, layers: int) -> None:
    """A base with fewer, and one with more."""
    text = refusal(adapter, num_layers=layers)
    assert f"the base has {layers} layers, the adapter has 3" in text


def test_a_rank_of_one_module_is_no_size_of_the_base(adapter: Path) -> None:
    """rank_pattern holds both ranks, but for other modules."""
    change(adapter, rank_pattern={"dense": 2})
    text = refusal(adapter)
    assert "adapter_config.json needs" in text
    assert "its rank is not the r or rank_pattern" in text


def test_a_width_is_a_size_of_the_base(adapter: Path) -> None:
    text = refusal(adapter, hidden_size=64, num_attention_heads=4)
    assert "made for a base of another size" in text


def test_names_of_another_program_are_still_put_right(adapter: Path, tmp_path: Path) -> None:
    """Only where renaming makes them fit."""
    path = adapter / "adapter_model.safetensors"
    tensors = {n.replace(".weight", ".default.weight"): t for n, t in load_file(path).items()}
    save_file(tensors, path)
    with pytest.raises(AdapterError, match=r"the names are another program's; .*--fix-names"):
        open_adapter(small_model(**SMALL), adapter)


@pytest.mark.parametrize(
    ("key", "value", "advice"),
    [
        ("lora_alpha", "32", "write a number"),
        ("lora_alpha", None, "write a number"),
        ("lora_alpha", True, "write a number"),
        ("lora_alpha", float("nan"), "write a number"),
        ("lora_dropout", "0.1", "write a number"),
        ("r", "8", "write a whole number above 0"),
        ("r", 0, "write a whole number above 0"),
        ("r", 4.0, "write a whole number above 0"),
        ("rank_pattern", {"dense": "2"}, "write a whole number above 0"),
        ("rank_pattern", [2], "write a whole number above 0"),
        ("alpha_pattern", {"dense": "2"}, "write a number"),
        ("target_modules", 3, "write a list of module names"),
        ("target_modules", [3], "write a list of module names"),
        ("modules_to_save", "dense", "write a list of module names"),
    ],
)
def test_values_of_another_kind_are_named(
    adapter: Path, key: str, value: object, advice: str
) -> None:
    """Never PEFT's TypeError while it multiplies."""
    change(adapter, **{key: value})
    with pytest.raises(AdapterError) as caught:
        read_adapter_config(adapter / "adapter_config.json")
    text = str(caught.value)
    assert f"adapter_config.json: {key}" in text
    assert repr(value) in text or key.endswith("pattern")
    assert advice in text
