"""Adapters written by stock PEFT on the original code open on our models, and mean the same.

The original code is stood in for by bare modules under its names (written out below), so that
nothing of ours decides what the adapter's tensors are called. What the adapter means is worked out
by hand on the weights.
"""

import json
import math

import peft
import pytest
import torch
from generations import FIRST_GENERATION, GENERATIONS, TRANSFORMERS_OWN
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn

from glmforge.adapters import open_adapter, read_adapter
from glmforge.errors import AdapterError
from glmforge.models import load_model

DECODER = {
    "transformer.encoder.layers.{}.self_attention.query_key_value": (128, 64, True),
    "transformer.encoder.layers.{}.self_attention.dense": (64, 64, False),
    "transformer.encoder.layers.{}.mlp.dense_h_to_4h": (224, 64, False),
    "transformer.encoder.layers.{}.mlp.dense_4h_to_h": (64, 112, False),
}
FIRST = {
    "transformer.layers.{}.attention.query_key_value": (192, 64, True),
    "transformer.layers.{}.attention.dense": (64, 64, True),
    "transformer.layers.{}.mlp.dense_h_to_4h": (256, 64, True),
    "transformer.layers.{}.mlp.dense_4h_to_h": (64, 256, True),
}
SPLIT = {
    "model.layers.{}.self_attn.q_proj": (64, 64, True),
    "model.layers.{}.self_attn.k_proj": (32, 64, True),
    "model.layers.{}.self_attn.v_proj": (32, 64, True),
    "model.layers.{}.self_attn.o_proj": (64, 64, False),
    "model.layers.{}.mlp.gate_up_proj": (224, 64, False),
    "model.layers.{}.mlp.down_proj": (64, 112, False),
}
ORIGINALS = {
    **dict.fromkeys(GENERATIONS, DECODER),
    **dict.fromkeys(FIRST_GENERATION, FIRST),
    **dict.fromkeys(TRANSFORMERS_OWN, SPLIT),
}
METHODS = {"lora": {}, "rslora": {"use_rslora": True}, "dora": {"use_dora": True}}
IDS = torch.tensor([[5, 6, 7, 8, 9, 10, 501, 504, 11, 12]])
TOLERANCE = 2e-5  # fp32: one product more or less a layer


def original(modules, layers=2):
    """Bare linear layers under the original's names."""
    root = nn.Module()
    for name, (rows, columns, bias) in modules.items():
        for layer in range(layers):
            *path, last = name.format(layer).split(".")
            parent = root
            for part in path:
                if part not in dict(parent.named_children()):
                    parent.add_module(part, nn.Module())
                parent = getattr(parent, part)
            parent.add_module(last, nn.Linear(columns, rows, bias=bias))
    return root


def write_adapter(modules, base, directory, **options):
    """Save what stock PEFT makes of the original; returns its tensors by module."""
    model = original(modules)
    weights = {k: v for k, v in base.state_dict().items() if k in model.state_dict()}
    model.load_state_dict(weights)
    targets = sorted({name.rsplit(".", 1)[1] for name in modules})
    config = LoraConfig(r=4, lora_alpha=6, target_modules=targets, **options)
    wrapped = get_peft_model(model, config)
    torch.manual_seed(3)
    for name, parameter in wrapped.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.05)
        elif "magnitude" in name:
            parameter.data.mul_(1 + 0.2 * torch.rand_like(parameter))
    wrapped.save_pretrained(directory)
    path = directory / "adapter_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(settings | {"task_type": "CAUSAL_LM"}), encoding="utf-8")
    return peft.load_peft_weights(str(directory))


def merge_by_hand(model, adapter, scale):
    """W + s B A, with DoRA's m (W + s B A) / its row norms."""
    parameters = dict(model.named_parameters())
    names = [name for name in adapter if name.endswith("lora_A.weight")]
    for name in names:
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        weight = parameters[f"{module}.weight"].data
        weight += scale * adapter[name.replace("lora_A", "lora_B")] @ adapter[name]
        magnitude = adapter.get(name.replace("lora_A.weight", "lora_magnitude_vector"))
        if magnitude is not None:
            weight *= (magnitude / weight.norm(dim=1))[:, None]
    return len(names)


def logits(model):
    with torch.no_grad():
        return model.eval()(IDS).logits


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("generation", ORIGINALS)
def test_an_adapter_of_the_original_code_gives_the_same_logits(
    tiny_model, tmp_path, generation, method
):
    """Every linear layer of every generation, by our opening and by PEFT's own."""
    modules = ORIGINALS[generation]
    base = tiny_model(generation)
    base.save_pretrained(tmp_path / "base")
    adapter = write_adapter(modules, base, tmp_path / "adapter", **METHODS[method])
    expected = load_model(tmp_path / "base")
    scale = 6 / (math.sqrt(4) if method == "rslora" else 4)
    assert merge_by_hand(expected, adapter, scale) == 2 * len(modules)
    found = open_adapter(load_model(tmp_path / "base"), tmp_path / "adapter")
    bound = TOLERANCE * max(1.0, logits(expected).abs().max().item())
    assert (logits(found) - logits(expected)).abs().max() <= bound
    assert (logits(base) - logits(expected)).abs().max() > 100 * bound
    stock = PeftModel.from_pretrained(load_model(tmp_path / "base"), tmp_path / "adapter")
    assert torch.equal(logits(stock), logits(found))


SHAPES = {
    "bias lora_only": {"bias": "lora_only"},
    "bias all": {"bias": "all"},
    "bias in B": {"lora_bias": True},
    "head trained whole": {"modules_to_save": ["output_layer", "lm_head"]},
    "embedding trained whole": {"modules_to_save": ["word_embeddings", "embed_tokens"]},
    "regular expression": {"target_modules": r".*\.(query_key_value|q_proj|dense|o_proj)"},
    "every linear module": {"target_modules": "all-linear"},
    "embedding and linear": {"target_modules": [
        "word_embeddings", "embed_tokens", "query_key_value", "v_proj"]},
    "a longer name": {"target_modules": ["mlp.dense_h_to_4h", "mlp.down_proj"]},
    "some layers": {"layers_to_transform": [1]},
    "ranks by pattern": {"target_modules": "all-linear", "rank_pattern": {"dense": 2, "o_proj": 2},
                         "alpha_pattern": {"dense": 3}},
    "for sequence pairs": {"task_type": "SEQ_2_SEQ_LM"},
    "no task": {"task_type": None},
}  # fmt: skip


def stock_adapter(base, directory, **options):
    """Let stock PEFT put an adapter on our model, change every part of it, and save it."""
    usual = {"target_modules": ["query_key_value", "q_proj"], "task_type": "CAUSAL_LM"}
    config = LoraConfig(r=4, lora_alpha=6, init_lora_weights=False, **{**usual, **options})
    wrapped = get_peft_model(base, config)
    torch.manual_seed(3)
    for name, parameter in wrapped.named_parameters():
        whole = "modules_to_save" in name or name.endswith("bias")
        if whole and parameter.requires_grad:
            parameter.data += 0.05 * torch.randn_like(parameter)
    wrapped.save_pretrained(directory)
    return wrapped


@pytest.mark.filterwarnings("ignore")  # PEFT's, while saving
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("generation", ["chatglm3", "chatglm-untied", "glm"])
def test_whatever_peft_trains_opens_as_peft_opens_it(tiny_model, tmp_path, generation, shape):
    """Biases, modules trained whole, embeddings, targets by expression."""
    tiny_model(generation).save_pretrained(tmp_path / "base")
    base = load_model(tmp_path / "base")
    plain = logits(base)
    expected = stock_adapter(base, tmp_path / "adapter", **SHAPES[shape])
    found = open_adapter(load_model(tmp_path / "base"), tmp_path / "adapter")
    assert torch.equal(logits(found), logits(expected.base_model))
    assert not torch.equal(logits(found), plain)


def test_an_adapter_in_pefts_older_file_opens(tiny_model, tmp_path):
    """PEFT wrote adapter_model.bin before 0.7; it is read without running anything."""
    tiny_model("chatglm2").save_pretrained(tmp_path / "base")
    expected = stock_adapter(load_model(tmp_path / "base"), tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    older = file.with_suffix(".bin")
    tensors = peft.load_peft_weights(str(tmp_path / "adapter"))
    file.unlink()
    torch.save(tensors, older)
    found = open_adapter(load_model(tmp_path / "base"), tmp_path / "adapter")
    assert torch.equal(logits(found), logits(expected.base_model))
    torch.save({"state": tensors, "epoch": 3}, older)
    with pytest.raises(AdapterError, match=r"adapter_model\.bin: besides tensors it holds 'epoch'"):
        read_adapter(tmp_path / "adapter")
    older.write_bytes(older.read_bytes()[:100])
    with pytest.raises(AdapterError, match=r"adapter_model\.bin: cannot be read .*torn"):
        read_adapter(tmp_path / "adapter")
    older.unlink()
    with pytest.raises(AdapterError, match=r"no adapter_model\.safetensors and no .*\.bin in it"):
        read_adapter(tmp_path / "adapter")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, r"matched \d+ of \d+ tensors"),
        ({"target_modules": ["dense"]}, "do not fit this base .* linear modules: q_proj"),
        ({"modules_to_save": ["output_layer"]}, r"matched \d+ of|do not fit"),
        ({"target_modules": r".*\.dense"}, "do not fit this base"),
    ],
)
def test_an_adapter_of_another_layout_is_refused(tiny_model, tmp_path, options, complaint):
    tiny_model("chatglm3").save_pretrained(tmp_path / "base")
    stock_adapter(load_model(tmp_path / "base"), tmp_path / "adapter", **options)
    with pytest.raises(AdapterError, match=complaint):
        open_adapter(tiny_model("glm"), tmp_path / "adapter")
