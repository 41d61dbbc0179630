"""Exports in the other layout: equal logits, stock transformers alone opens them, and back."""

import json

import pytest
import torch
from safetensors import safe_open
from transformers import AutoTokenizer, GlmForCausalLM

from glmforge.adapters import open_adapter
from glmforge.errors import ExportError
from glmforge.export import export
from glmforge.export.card import card
from glmforge.export.layouts import copy_code
from glmforge.models import load_config, load_model, load_tokenizer
from small_models import save_with_tokenizer, small_model, write_random_adapter

pytestmark = pytest.mark.usefixtures("warm_proofs")
IDS = torch.tensor([[5, 6, 7, 8, 9, 300, 301]])
FUSED = ("query_key_value", "dense_4h_to_h")
SPLIT = ("q_proj", "k_proj", "v_proj", "o_proj")


def logits(model):
    with torch.no_grad():
        return model.eval()(IDS).logits


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A small ChatGLM3 whose biases and untied head could show a mistake."""
    directory = tmp_path_factory.mktemp("layouts") / "base"
    model = small_model(tie_word_embeddings=False)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    save_with_tokenizer(model, directory)
    (directory / "modeling_chatglm.py").write_text("raise SystemExit('this code was run')\n")
    return directory


@pytest.fixture(scope="module")
def adapter(base, tmp_path_factory):
    return write_random_adapter(base, tmp_path_factory.mktemp("layouts") / "adapter", FUSED)


@pytest.fixture(scope="module")
def merged(base, adapter, tmp_path_factory, warm_proofs):
    """Base and adapter as one model in transformers' layout, and the report."""
    out = tmp_path_factory.mktemp("layouts") / "merged"
    return out, export(adapter, out, merge=True, layout="transformers")


def test_a_merged_model_opens_in_stock_transformers(base, adapter, merged):
    """The fresh process cannot import glmforge; its logits and dialogue ids were compared."""
    out, report = merged
    assert report.reopened.max_abs < 2e-5
    assert report.dialogues == 5
    stock = GlmForCausalLM.from_pretrained(out)
    ours = open_adapter(load_model(base), adapter)
    assert (logits(stock) - logits(ours)).abs().max() < 1e-4
    assert stock.generation_config.eos_token_id == [2, 3006, 3008]


def test_the_fast_tokenizer_lies_beside_it(merged):
    """tokenizer.json, under the name that transformers 4 and 5 know; no vocabulary of ours."""
    names = {path.name for path in merged[0].iterdir()}
    assert {"tokenizer.json", "chat_template.jinja", "README.md", "export.json"} <= names
    assert not {"tokenizer.model", "modeling_chatglm.py"} & names
    settings = json.loads((merged[0] / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_the_card_says_what_stock_machinery_cannot_do(merged):
    """Control spellings by name, the renamed tokens, how it was checked."""
    text = (merged[0] / "README.md").read_text(encoding="utf-8")
    assert "`<|user|>`" in text
    assert "`<sop>`" in text
    assert "5 of 5 dialogues, same ids" in text
    stock = AutoTokenizer.from_pretrained(merged[0])
    spelled = stock("<|user|>", add_special_tokens=False)["input_ids"]
    assert spelled == [stock.convert_tokens_to_ids("<|user|>")]


def test_the_way_back_gives_the_originals_files(base, merged, tmp_path):
    """Vocabulary, settings, config keys, rotary buffer; the weights bit by bit."""
    out = tmp_path / "back"
    report = export(merged[0], out, layout="chatglm")
    assert report.reopened.max_abs == 0.0
    settings = json.loads((out / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert settings["tokenizer_class"] == "ChatGLMTokenizer"
    again, before = load_tokenizer(out), load_tokenizer(base)
    text = "您好，订单 12345 在哪里？\n<|user|>sop 😀"
    assert again.family == "chatglm3"
    assert again.encode_text(text) == before.encode_text(text)
    assert again.control_ids == before.control_ids
    assert load_config(out).to_diff_dict()["_name_or_path"] == "glmforge/demo-chatglm3"
    with safe_open(out / "model.safetensors", "pt") as file:
        assert "transformer.rotary_pos_emb.inv_freq" in set(file.keys())
    assert torch.equal(logits(load_model(out)), logits(load_model(out, attention="sdpa")))
    stock = GlmForCausalLM.from_pretrained(merged[0])
    assert (logits(load_model(out)) - logits(stock)).abs().max() < 2e-5


def test_the_originals_code_is_copied_and_never_run(base, tmp_path):
    """For programs that want it; the card says which case it is."""
    assert copy_code(base, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["modeling_chatglm.py"]
    facts = {"title": "ChatGLM3-6B", "layout": "chatglm", "origin": "THUDM/chatglm3-6b"}
    facts |= {"kind": "model", "dtype": "bfloat16", "proof": ["reopened"]}
    assert "glmforge never does" in card(**facts, has_code=True)
    assert "copy `*_chatglm.py` from THUDM/chatglm3-6b" in card(**facts)


@pytest.mark.parametrize("targets", [FUSED, ("query_key_value",)])
def test_an_adapter_goes_to_the_other_layout_and_back(base, merged, tmp_path, targets):
    """Split by rows and fused again: the same function on the same base."""
    adapter = write_random_adapter(base, tmp_path / "adapter", targets)
    report = export(adapter, tmp_path / "split", layout="transformers")
    assert report.reopened.max_abs < 2e-5
    config = json.loads((tmp_path / "split" / "adapter_config.json").read_text(encoding="utf-8"))
    assert {"q_proj", "k_proj", "v_proj"} <= set(config["target_modules"])
    assert config["base_model_name_or_path"] is None
    with pytest.raises(ExportError, match="give it with --base"):
        export(tmp_path / "split", tmp_path / "fused", layout="chatglm")
    report = export(tmp_path / "split", tmp_path / "fused", base=merged[0], layout="chatglm")
    assert report.reopened.max_abs < 2e-5
    first = open_adapter(load_model(base), adapter)
    second = open_adapter(load_model(base), tmp_path / "fused")
    assert torch.equal(logits(first), logits(second))


def test_an_adapter_of_split_modules_is_fused_by_blocks(base, merged, tmp_path):
    """Three adapters that share nothing become one of three times the rank."""
    adapter = write_random_adapter(merged[0], tmp_path / "adapter", SPLIT)
    report = export(adapter, tmp_path / "fused", layout="chatglm")
    assert report.reopened.max_abs < 2e-5
    config = json.loads((tmp_path / "fused" / "adapter_config.json").read_text(encoding="utf-8"))
    assert set(config["target_modules"]) == {"query_key_value", "dense"}


def test_a_model_without_a_form_there_is_refused_before_weights_are_read(tmp_path):
    """ChatGLM-6B has no class in transformers, Glm4 no form in the original's code."""
    first = {"model_type": "chatglm", "hidden_size": 64, "inner_hidden_size": 128,
             "max_sequence_length": 128, "num_layers": 2, "num_attention_heads": 4}  # fmt: skip
    for name, keys, layout, message in (
        ("first", first, "transformers", "ChatGLM-6B: transformers has no class"),
        ("glm4", {"model_type": "glm4"}, "chatglm", "GLM-4-0414 and GLM-Z1: has no form"),
        ("other", {"model_type": "llama"}, "chatglm", "'llama': has no form"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(keys), encoding="utf-8")
        with pytest.raises(ExportError, match=message):
            export(tmp_path / name, tmp_path / "out", layout=layout)
    with pytest.raises(ExportError, match="use one of chatglm, transformers"):
        export(tmp_path / "first", tmp_path / "out", layout="gguf")
