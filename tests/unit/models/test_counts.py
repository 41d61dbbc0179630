"""Parameters counted from the configuration, against real modules and published sizes."""

import json

import pytest
import torch
from generations import FIRST_GENERATION, GENERATIONS, TRANSFORMERS_OWN
from torch import nn

from glmforge.models import load_config, new_model
from glmforge.models.configuration import ChatGLMConfig
from glmforge.models.counts import count_lora_parameters, count_parameters, layer_linears
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
