"""Exported weights answer as the trained ones; whatever does not is refused and leaves nothing."""

import json

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from glmforge.errors import AdapterError, ExportError
from glmforge.export import export
from glmforge.models import load_config, new_model
from small_models import TINY_MODEL, save_with_tokenizer, write_random_adapter

pytestmark = pytest.mark.usefixtures("warm_proofs")
IDS = torch.tensor([[5, 6, 7, 8, 9, 300, 301]])


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    directory = tmp_path_factory.mktemp("export") / "base"
    torch.manual_seed(0)
    return save_with_tokenizer(new_model(load_config(TINY_MODEL)), directory)


@pytest.fixture(scope="module")
def adapter(base, tmp_path_factory):
    directory = tmp_path_factory.mktemp("export") / "adapter"
    return write_random_adapter(base, directory, ("query_key_value", "dense_4h_to_h"))


def test_a_merge_is_base_plus_scaled_product(base, adapter, tmp_path, plain_proofs):
    """W + (alpha / r) B A, by hand, and stock PEFT's logits."""
    report = export(adapter, tmp_path / "merged", merge=True)
    assert report.reopened.max_abs < 1e-5
    a, w0, w1 = (
        load_file(path / name)
        for path, name in (
            (adapter, "adapter_model.safetensors"),
            (base, "model.safetensors"),
            (tmp_path / "merged", "model.safetensors"),
        )
    )
    layer = "transformer.encoder.layers.2.self_attention.query_key_value"
    product = (
        a[f"base_model.model.{layer}.lora_B.weight"]
        @ (a[f"base_model.model.{layer}.lora_A.weight"])
    )
    expected = w0[f"{layer}.weight"] + 2.0 * product
    assert torch.allclose(w1[f"{layer}.weight"], expected, atol=1e-6)
    stock = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter).eval()
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    with torch.no_grad():
        assert torch.allclose(merged(IDS).logits, stock(IDS).logits, atol=1e-4)


def test_the_merged_directory_is_self_contained(base, adapter, tmp_path):
    """Config, tokenizer, generation config and the proof lie in it."""
    export(adapter, tmp_path / "merged", merge=True, dtype="bf16")
    names = {path.name for path in (tmp_path / "merged").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.model", "export.json"} <= names
    proof = json.loads((tmp_path / "merged" / "export.json").read_text())
    assert proof["dtype"] == "bfloat16"
    assert proof["cast"]["max_abs"] > 0
    assert proof["reopened"]["greedy_agreement"] == 1.0


def test_an_adapter_alone_is_copied_and_opened_again(adapter, tmp_path):
    """The same logits from the copy."""
    report = export(adapter, tmp_path / "copy")
    assert report.kind == "adapter"
    assert report.reopened.max_abs == 0.0


def test_whole_weights_need_no_merge(base, tmp_path):
    """A model directory is written again, proven."""
    assert export(base, tmp_path / "again").merge is None


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda a: {k: torch.empty(0) for k in a}, "16 of 16 LoRA tensors are empty"),
        (
            lambda a: {k.replace("base_model.model.", ""): v for k, v in a.items()},
            "matched 0 of 16 tensors, unexpected 16, missing 16",
        ),
        (lambda a: dict(list(a.items())[:-1]), "matched 15 of 16"),
        (
            lambda a: {k: v[..., :2].contiguous() for k, v in a.items()},
            "has rank 2, but adapter_config.json says r=4",
        ),
        (
            lambda a: {k: v[:, :4].contiguous() for k, v in a.items()},
            "matched 8 of 16 .* is .4, 4., and this base needs .* a base of another size",
        ),
        (
            lambda a: {k: v * ("lora_A" in k) for k, v in a.items()},
            "every lora_B is zero",
        ),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(adapter, tmp_path, damage, message):
    """Empty, renamed and missing tensors (cases A01, A03): nothing is left behind."""
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "adapter_config.json").write_bytes((adapter / "adapter_config.json").read_bytes())
    tensors = damage(load_file(adapter / "adapter_model.safetensors"))
    save_file(tensors, bad / "adapter_model.safetensors")
    with pytest.raises(AdapterError, match=message):
        export(bad, tmp_path / "out", merge=True)
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".tmp-*"))


def test_what_cannot_be_exported_is_said(adapter, base, tmp_path):
    """No such place, an existing target, an unknown dtype, a base that would do nothing."""
    with pytest.raises(ExportError, match="it does not exist"):
        export(tmp_path / "none", tmp_path / "out")
    with pytest.raises(ExportError, match="exists already"):
        export(adapter, base)
    with pytest.raises(ExportError, match="use one of bf16, fp16, fp32"):
        export(adapter, tmp_path / "out", merge=True, dtype="int4")
    with pytest.raises(ExportError, match="does nothing for an adapter"):
        export(adapter, tmp_path / "out", dtype="bf16")
    with pytest.raises(ExportError, match=r"--base .* would do nothing"):
        export(base, tmp_path / "out", base=base)


def test_a_base_that_moved_is_named(adapter, tmp_path):
    """The adapter's own idea of its base is checked."""
    moved = tmp_path / "moved"
    moved.mkdir()
    for path in adapter.iterdir():
        (moved / path.name).write_bytes(path.read_bytes())
    config = json.loads((moved / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "/nowhere/base"
    (moved / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(ExportError, match="'/nowhere/base' is not a model directory"):
        export(moved, tmp_path / "out", merge=True)


@pytest.mark.parametrize("size", ["0", "5", "foo", "0GB", "0.0001KB"])
def test_a_size_that_is_none_is_named(base, adapter, tmp_path, size):
    """Whatever is exported; nothing is read for it."""
    for source, merge in ((adapter, True), (adapter, False), (base, False)):
        with pytest.raises(ExportError, match=f"--max-shard-size {size}: write a number and KB"):
            export(source, tmp_path / "out", merge=merge, base=None, max_shard_size=size)


def test_options_that_would_do_nothing_are_refused_together(base, adapter, tmp_path):
    """An adapter has one file and its own dtype; whole weights have no adapter's names."""
    with pytest.raises(ExportError) as caught:
        export(adapter, tmp_path / "out", max_shard_size="1GB", dtype="bf16")
    assert "--dtype does nothing for an adapter" in str(caught.value)
    assert "--max-shard-size does nothing for an adapter" in str(caught.value)
    with pytest.raises(ExportError) as caught:
        export(base, tmp_path / "out", fix_names=True, merge=True)
    assert "--fix-names does nothing for whole weights" in str(caught.value)
    assert "--merge does nothing for whole weights" in str(caught.value)


def test_a_size_is_kept(base, tmp_path):
    """Decimal units, as transformers counts them."""
    export(base, tmp_path / "out", max_shard_size="1MB")
    files = list((tmp_path / "out").glob("model-*.safetensors"))
    assert len(files) > 1
