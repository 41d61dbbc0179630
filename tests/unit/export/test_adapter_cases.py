"""Adapters that must not be used as they are, and what a merge must compute (cases A01 to A07)."""

import json
import shutil
import warnings

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from glmforge.adapters import open_adapter, peft_names, read_adapter, read_adapter_config
from glmforge.errors import AdapterError, ExportError, ModelError
from glmforge.export import export
from glmforge.export.identity import MERGED_KEY, METADATA_KEY
from glmforge.models import load_tokenizer
from small_models import write_random_adapter, write_small_model

pytestmark = pytest.mark.usefixtures("warm_proofs")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_small_model(tmp_path_factory.mktemp("cases") / "base")


@pytest.fixture(scope="module")
def adapter(base, tmp_path_factory):
    return write_random_adapter(base, tmp_path_factory.mktemp("cases") / "adapter", rank=2)


def test_a01_empty_tensors_are_refused_by_the_files_alone(shared):
    """No model is needed to see that ZeRO-3 saved its parts without gathering them."""
    with pytest.raises(AdapterError) as caught:
        read_adapter(shared / "cases" / "A01")
    assert "4 of 4 LoRA tensors are empty" in str(caught.value)
    assert "saved without gathering" in str(caught.value)
    assert "glmforge consolidate" in str(caught.value)


def test_a03_names_that_match_nothing_are_counted_and_may_be_put_right(shared):
    """Matched 0 of 4; a converter knows both spellings."""
    files = read_adapter(shared / "cases" / "A03")
    fixed, changed = peft_names(files.tensors)
    assert (changed, len(fixed)) == (4, 4)
    name, a = next((name, t) for name, t in fixed.items() if "lora_A" in name)
    b = fixed[name.replace("lora_A", "lora_B")]
    assert name.startswith("base_model.model.")
    model = TinyFused(a.shape[1], b.shape[0], name)
    with pytest.raises(AdapterError) as caught:
        open_adapter(model, shared / "cases" / "A03")
    assert "matched 0 of 4 tensors, unexpected 4, missing 4" in str(caught.value)
    assert "--fix-names" in str(caught.value)


class TinyFused(nn.Module):
    """Two layers whose fused modules have the names and widths of an adapter's."""

    def __init__(self, width, rows, name):
        super().__init__()
        self.config = {"model_type": "tiny"}
        parts = name.removeprefix("base_model.model.").split(".lora_A")[0].split(".")
        place = parts.index("layers")
        layers = nn.ModuleList(
            _nested(parts[place + 2 :], nn.Linear(width, rows, bias=False)) for _ in range(2)
        )
        root = _nested(parts[:place], _nested(["layers"], layers))
        for child, module in root.named_children():
            self.add_module(child, module)

    def prepare_inputs_for_generation(self):
        """PEFT asks for it."""


def _nested(names, leaf):
    for name in reversed(names):
        outer = nn.Module()
        outer.add_module(name, leaf)
        leaf = outer
    return leaf


def test_a03_export_writes_the_right_names(base, adapter, tmp_path):
    """Counted, said, and the same logits as before."""
    wrong = shutil.copytree(adapter, tmp_path / "wrong")
    from safetensors.torch import save_file

    tensors = load_file(wrong / "adapter_model.safetensors")
    renamed = {
        name.removeprefix("base_model.model.").replace(".weight", ".default.weight"): tensor
        for name, tensor in tensors.items()
    }
    save_file(renamed, wrong / "adapter_model.safetensors")
    with pytest.raises(AdapterError, match="matched 0 of 4 tensors, unexpected 4, missing 4"):
        export(wrong, tmp_path / "out")
    report = export(wrong, tmp_path / "out", fix_names=True)
    assert report.notes[0] == "names: 4 of 4 tensors renamed as PEFT does"
    fixed = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert fixed.keys() == tensors.keys()
    assert all(torch.equal(fixed[name], tensors[name]) for name in tensors)


def test_a05_a_newer_librarys_value_is_refused_by_name(shared):
    """Never a bare TypeError."""
    with pytest.raises(AdapterError, match=r"future_flag=.*newer version; upgrade.*knowingly"):
        read_adapter_config(shared / "cases" / "A05" / "adapter_config.json")


def test_a05_unknown_keys_without_a_value_are_listed_once(shared, tmp_path):
    """Null, false and empty: a newer library writes all its defaults."""
    values = json.loads((shared / "cases" / "A05" / "adapter_config.json").read_text())
    values["future_flag"] = None
    values |= {"later_list": [], "later_switch": False}
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(values))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config = read_adapter_config(path)
    assert len(caught) == 1
    text = str(caught[0].message)
    assert all(key in text for key in ("future_flag", "later_list", "later_switch"))
    assert (config.r, config.lora_alpha) == (2, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a07_a_merge_adds_alpha_over_r_times_b_a_once(shared, dtype):
    """The numbers of the case, exact in every dtype."""
    from peft import LoraConfig, get_peft_model

    numbers = json.loads((shared / "cases" / "A07" / "numbers.json").read_text())
    model = nn.Sequential()
    model.add_module("linear", nn.Linear(3, 3, bias=False))
    config = LoraConfig(r=numbers["r"], lora_alpha=numbers["lora_alpha"], target_modules=["linear"])
    wrapped = get_peft_model(model, config)
    layer = wrapped.base_model.model.linear
    with torch.no_grad():
        layer.base_layer.weight.copy_(torch.tensor(numbers["W"]))
        layer.lora_A["default"].weight.copy_(torch.tensor(numbers["lora_A"]))
        layer.lora_B["default"].weight.copy_(torch.tensor(numbers["lora_B"]))
    merged = wrapped.merge_and_unload().linear.weight.detach().to(dtype)
    expected = [[2.0, 2.0, -1.0], [0.5, 1.5, 2.25], [2.0, 5.5, -6.5]]
    assert merged.tolist() == expected
    assert (merged.float() @ torch.tensor(numbers["x"])).tolist() == [-2.0, 3.5, -16.5]


@pytest.mark.parametrize("layout", ["chatglm", "transformers"])
def test_a07_a_second_merge_is_refused(base, adapter, tmp_path, layout):
    """The marker is in config.json; it follows the weights and the adapter to the other layout."""
    report = export(adapter, tmp_path / "merged", merge=True, layout=layout)
    assert report.merge is not None
    assert report.merge.max_abs < 1e-4
    assert report.merge.greedy_agreement == 1.0
    keys = json.loads((tmp_path / "merged" / "config.json").read_text())
    assert len(keys[MERGED_KEY]) == 1
    other = adapter
    if layout == "transformers":
        other = tmp_path / "split"
        export(adapter, other, layout=layout)
        with safe_open(other / "adapter_model.safetensors", framework="pt") as file:
            assert file.metadata()[METADATA_KEY] == keys[MERGED_KEY][0]
    with pytest.raises(ExportError, match=r"is merged into .* already"):
        export(other, tmp_path / "twice", merge=True, base=tmp_path / "merged")
    assert not (tmp_path / "twice").exists()
    back = "transformers" if layout == "chatglm" else "chatglm"
    export(tmp_path / "merged", tmp_path / "back", layout=back)
    kept = json.loads((tmp_path / "back" / "config.json").read_text())
    assert kept[MERGED_KEY] == keys[MERGED_KEY]


def test_a07_in_half_precision_the_difference_is_reported(adapter, tmp_path):
    """Merged in fp32 and cast once: the cast alone is what differs."""
    report = export(adapter, tmp_path / "merged", merge=True, dtype="bf16")
    assert report.merge is not None
    assert report.cast is not None
    assert report.merge.max_abs < 1e-4 < report.cast.max_abs
    assert any("cast to bfloat16 vs fp32" in line for line in report.lines())


def test_a_base_of_another_size_is_named(adapter, tmp_path):
    """Widths are compared before anything is computed."""
    other = write_small_model(tmp_path / "other", hidden_size=96, num_attention_heads=6)
    with pytest.raises(AdapterError, match="made for a base of another size"):
        export(adapter, tmp_path / "out", merge=True, base=other)


def test_m03_nothing_is_merged_into_an_int4_export(adapter, base, tmp_path):
    """Refused before weights are read, with the same advice as for training."""
    quantised = shutil.copytree(base, tmp_path / "int4")
    keys = json.loads((quantised / "config.json").read_text())
    (quantised / "config.json").write_text(json.dumps(keys | {"quantization_bit": 4}))
    with pytest.raises(ModelError, match=r"int4 export.*quantise afterwards"):
        export(adapter, tmp_path / "out", merge=True, base=quantised)


def test_e03_the_bases_generation_config_goes_with_the_export(base, adapter, tmp_path):
    """Its settings are kept, and every stop id of the family is among its stop ids."""
    tuned = shutil.copytree(base, tmp_path / "base")
    given = {"eos_token_id": 2, "pad_token_id": 0, "temperature": 0.8, "do_sample": True}
    (tuned / "generation_config.json").write_text(json.dumps(given))
    export(adapter, tmp_path / "out", merge=True, base=tuned)
    written = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    tokenizer = load_tokenizer(tuned)
    wanted = {tokenizer.convert_tokens_to_ids(name) for name in ("<|user|>", "<|observation|>")}
    assert wanted | {2} == set(written["eos_token_id"])
    assert (written["temperature"], written["do_sample"]) == (0.8, True)


def test_the_licence_goes_with_the_weights(base, adapter, tmp_path):
    """Files of the base's licence are copied, and the card says whose they are."""
    licensed = shutil.copytree(base, tmp_path / "base")
    (licensed / "MODEL_LICENSE").write_text("terms")
    export(adapter, tmp_path / "out", merge=True, base=licensed)
    assert (tmp_path / "out" / "MODEL_LICENSE").read_text() == "terms"
    assert "MODEL_LICENSE" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
