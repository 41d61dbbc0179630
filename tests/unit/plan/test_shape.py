"""The shape of any causal language model of transformers, against the model built empty."""

import re
import time
from typing import Any

import pytest
import torch
import transformers

from glmforge.config import config_from_mapping
from glmforge.errors import ModelError
from glmforge.models.foreign import class_for
from glmforge.plan.advisor import Machine
from glmforge.plan.memory import account
from glmforge.plan.report import make_plan
from glmforge.plan.shape import shape_of
from glmforge.plan.workload import Workload

SMALL = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3, "vocab_size": 128}
KINDS = {
    "LlamaConfig": {"intermediate_size": 160},
    "Qwen2Config": {"intermediate_size": 160, "num_key_value_heads": 2},
    "GPT2Config": {},
    "GPTNeoXConfig": {"intermediate_size": 256},
    "BloomConfig": {},
    "OPTConfig": {"ffn_dim": 256, "word_embed_proj_dim": 64},
    "Phi3Config": {"intermediate_size": 160, "pad_token_id": 0},
    "FalconConfig": {},
    "GlmConfig": {"intermediate_size": 160, "head_dim": 16, "pad_token_id": 0},
}


@pytest.mark.parametrize("name", KINDS)
def test_parameters_and_linear_layers_are_those_of_the_model(name: str) -> None:
    """By what is really there and not by Llama's names: every kind can be planned."""
    kind = getattr(transformers, name)
    config = kind(**SMALL | KINDS[name] if name != "GPT2Config" else gpt2())
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    shape = shape_of(config)
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    names = {path.rpartition(".")[2] for path, _ in model.named_modules()}
    assert {linear.name for linear in shape.linears} <= names
    assert shape.inner == KINDS[name].get("intermediate_size", 256)
    assert shape.is_gated == any("gate" in linear.name for linear in shape.linears)
    found = account(shape, Workload(method="full", micro_batch=1, row_tokens=16))
    assert found.peak_bytes > 16 * shape.parameters


def gpt2() -> dict[str, int]:
    return {"n_embd": 64, "n_head": 4, "n_layer": 3, "vocab_size": 128}


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("MambaConfig", {}, "'mamba': its config.json has no number num_attention_heads"),
        ("RwkvConfig", {}, "'rwkv': its config.json has no number num_attention_heads"),
        ("BertConfig", {}, "'bert' is an encoder"),
        ("RobertaConfig", {}, "'roberta' is an encoder"),
        ("BartConfig", {}, "'bart' is an encoder"),
        (
            "LlamaConfig",
            {"quantization_config": {"quant_method": "gptq", "bits": 4}},
            "quantised already (gptq, 4 bits)",
        ),
        (
            "LlamaConfig",
            {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
            "quantised already (bitsandbytes)",
        ),
    ],
)
def test_what_the_account_has_no_numbers_for_is_refused(
    name: str, changes: dict[str, Any], said: str
) -> None:
    """No attention heads, an encoder, weights of another format: named, not counted wrongly."""
    with pytest.raises(ModelError, match=re.escape(said)):
        shape_of(getattr(transformers, name)(**changes))


@pytest.mark.parametrize("name", ["MixtralConfig", "LlamaConfig", "GPTNeoXConfig"])
def test_a_model_of_transformers_in_full_size_is_planned_in_a_fifth_of_a_second(name: str) -> None:
    """It is built once, on the meta device; the import of its classes is not arithmetic."""
    model = getattr(transformers, name)()
    class_for(model)
    values = {
        "model": {"model_name_or_path": "model"},
        "data": {"train": "train.jsonl"},
        "training": {"output_dir": "run", "gradient_accumulation_steps": 16},
    }
    run = config_from_mapping(values, ())
    times = []
    for _ in range(3):
        begin = time.process_time()
        make_plan(run, model, Machine(card_gib=80), world_size=8)
        times.append(time.process_time() - begin)
    assert min(times) < 0.2


def test_a_model_outside_the_table_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters, linear layers and LoRA's usual targets come from one empty model."""
    kind = transformers.LlamaForCausalLM
    built = []
    init = kind.__init__

    def counted(self: Any, config: Any) -> None:
        built.append(config)
        init(self, config)

    monkeypatch.setattr(kind, "__init__", counted)
    shape_of(transformers.LlamaConfig(**SMALL))
    assert len(built) == 1
