"""Parameters counted from the configuration, against real modules and published sizes."""

import json

import pytest
import torch
from generations import FIRST_GENERATION, GENERATIONS, TRANSFORMERS_OWN
from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
from torch import nn
from transformers import CONFIG_MAPPING, AutoConfig

from glmforge.adapters import LoraSettings, add_lora, check_targets, open_adapter, save_adapter
from glmforge.errors import ModelError
from glmforge.models import load_config, load_model, new_model
from glmforge.models.configuration import ChatGLMConfig
from glmforge.models.counts import (
    count_lora_parameters,
    count_parameters,
    layer_linears,
    usual_lora_targets,
)
from glmforge.models.inspection import inspect_model
from glmforge.models.layers import decoder_layers

EVERY = {**GENERATIONS, **FIRST_GENERATION, **TRANSFORMERS_OWN}


@pytest.fixture(params=list(EVERY))
def config(request, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(EVERY[request.param]), encoding="utf-8")
    return load_config(tmp_path)


def empty(config):
    with torch.device("meta"):
        return new_model(config)


def test_the_total_and_the_groups_equal_the_built_model(config):
    model, counts = empty(config), count_parameters(config)
    assert counts.total == sum(parameter.numel() for parameter in model.parameters())
    norms = [
        parameter.numel() for name, parameter in model.named_parameters() if "norm" in name.lower()
    ]
    assert counts.norm == sum(norms)
    assert counts.other == 0


def test_the_linear_layers_have_the_built_shapes(config):
    layer = decoder_layers(empty(config))[0]
    built = {
        name.rsplit(".", 1)[-1]: (module.in_features, module.out_features, module.bias is not None)
        for name, module in layer.named_modules()
        if isinstance(module, nn.Linear)
    }
    listed = {x.name: (x.in_features, x.out_features, x.bias) for x in layer_linears(config)}
    assert listed == built


def test_lora_adds_rank_times_both_sides_of_its_targets():
    config = ChatGLMConfig.from_dict(dict(GENERATIONS["chatglm3"]))
    assert count_lora_parameters(config, ("query_key_value",), 8) == 2 * 8 * (64 + 128)


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("chatglm-6b", 6_173_286_400),
        ("chatglm2-6b", 6_243_584_000),
        ("chatglm3-6b", 6_243_584_000),
        ("glm-4-9b-chat", 9_399_951_360),
    ],
)
def test_published_models_have_their_published_size(shared, name, total):
    assert count_parameters(load_config(shared / "tokenizers" / name)).total == total


def test_another_model_is_counted_on_the_meta_device(tmp_path):
    keys = {
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_hidden_layers": 1,
        "vocab_size": 64,
        "tie_word_embeddings": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(keys), encoding="utf-8")
    config = load_config(tmp_path)
    counts = count_parameters(config)
    assert counts.total == sum(parameter.numel() for parameter in empty(config).parameters())
    assert (counts.embedding, counts.head) == (64 * 32, 0)


OTHERS = {
    "gpt2": {"n_embd": 32, "n_layer": 1, "n_head": 4, "vocab_size": 64},
    "gpt_neox": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
                 "num_attention_heads": 4, "vocab_size": 64},
    "opt": {"hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
            "vocab_size": 64, "word_embed_proj_dim": 32},
    "codegen": {"n_embd": 32, "n_layer": 1, "n_head": 4, "rotary_dim": 4, "vocab_size": 64},
}  # fmt: skip
TARGETS = {
    "gpt2": ("c_attn",),
    "gpt_neox": ("query_key_value",),
    "opt": ("q_proj", "k_proj", "v_proj"),
    "codegen": ("qkv_proj",),
}


def test_queries_keys_and_values_in_one_layer_are_the_targets_that_peft_knows():
    """Of every decoder of PEFT's table that has no projections of their own."""
    apart, asked = {"q_proj", "k_proj", "v_proj"}, []
    for model_type, known in TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.items():
        if isinstance(known, str) or apart & set(known) or model_type not in CONFIG_MAPPING:
            continue
        try:
            found = usual_lora_targets(AutoConfig.for_model(model_type))
        except ModelError:  # an encoder, or our own
            continue
        assert set(found) == set(known), model_type
        asked.append(model_type)
    assert {"gpt2", "bloom", "gpt_neox", "mpt", "falcon", "codegen"} <= set(asked)


@pytest.mark.parametrize("model_type", OTHERS)
def test_lora_adapts_some_linear_layers_of_any_model(tmp_path, model_type):
    """Whatever they are called, and where they are GPT-2's Conv1D; forwards, saved and reopened."""
    keys = {"model_type": model_type, **OTHERS[model_type]}
    (tmp_path / "config.json").write_text(json.dumps(keys), encoding="utf-8")
    config = load_config(tmp_path)
    targets = usual_lora_targets(config)
    assert set(targets) == set(TARGETS[model_type])
    torch.manual_seed(0)
    model = new_model(config).eval()
    model.save_pretrained(tmp_path / "base")
    assert check_targets(model, None, targets) == targets
    assert inspect_model(tmp_path / "base").lora_targets == targets
    ids = torch.arange(5, 15)[None]
    plain = model(ids).logits
    settings = LoraSettings(r=2, lora_alpha=4, lora_dropout=0.0, target_modules=targets)
    wrapped = add_lora(model, settings).eval()
    trained = {n: p for n, p in wrapped.named_parameters() if p.requires_grad}
    for name, parameter in trained.items():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    expected = wrapped(ids).logits
    assert not torch.equal(expected, plain)
    save_adapter(wrapped, {n: p.detach() for n, p in trained.items()}, tmp_path / "adapter")
    found = open_adapter(load_model(tmp_path / "base"), tmp_path / "adapter")
    assert torch.equal(found(ids).logits, expected)
    merged = found.merge_and_unload()
    assert (merged(ids).logits - expected).abs().max() < 1e-4
