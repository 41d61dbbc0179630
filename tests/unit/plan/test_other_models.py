"""Models of transformers' own: mixtures of experts, normed heads, layers of several kinds."""

from typing import Any

import pytest
import torch
import transformers
from kept_tensors import kept_bytes
from peft import LoraConfig, inject_adapter_in_model
from torch import nn

from glmforge.plan.activations import layer_bytes
from glmforge.plan.memory import account
from glmforge.plan.shape import shape_of
from glmforge.plan.weights import sub_groups
from glmforge.plan.workload import Workload

ROWS, TOKENS = 2, 32
SIZES = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3, "vocab_size": 128}
MORE: dict[str, dict[str, Any]] = {
    "LlamaConfig": {"intermediate_size": 160, "num_key_value_heads": 2},
    "Qwen3Config": {"intermediate_size": 160, "num_key_value_heads": 2, "head_dim": 16},
    "MixtralConfig": {
        "intermediate_size": 160,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "num_key_value_heads": 2,
    },
    "Qwen3MoeConfig": {
        "intermediate_size": 160,
        "moe_intermediate_size": 96,
        "num_experts": 8,
        "num_experts_per_tok": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
    },
}
TARGETS = ("q_proj", "k_proj", "v_proj")


def config_of(name: str, **changes: Any) -> Any:
    return getattr(transformers, name)(**SIZES, **MORE[name], **changes)


class Layer(nn.Module):
    """The first decoder layer, called with its positions."""

    def __init__(self, model: Any, hidden: torch.Tensor) -> None:
        super().__init__()
        self.layer = model.model.layers[0]
        self.positions = model.model.rotary_emb(hidden, torch.arange(TOKENS)[None])

    def forward(self, hidden: torch.Tensor) -> Any:
        return self.layer(hidden, position_embeddings=self.positions, attention_mask=None)


@pytest.mark.parametrize("name", MORE)
@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_layer_keeps_what_the_account_says(name: str, method: str) -> None:
    """Plain path, bf16, sdpa on the CPU; the rest is of rotary angles and the router's scores."""
    torch.manual_seed(0)
    config = config_of(name)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    if method == "lora":
        model.requires_grad_(False)
        inject_adapter_in_model(LoraConfig(r=8, target_modules=list(TARGETS)), model)
    model.to(torch.bfloat16)
    hidden = torch.randn(ROWS, TOKENS, 64, dtype=torch.bfloat16, requires_grad=True)
    shape = shape_of(config)
    targets = TARGETS if method == "lora" else ()
    work = Workload(method=method, compiled=False, lora_r=8, lora_targets=targets)
    planned = ROWS * TOKENS * (layer_bytes(shape, work) - 4 * shape.heads)
    assert kept_bytes(Layer(model, hidden), hidden, (), TOKENS) == pytest.approx(planned, rel=0.06)


def test_a_token_goes_through_its_own_experts_only() -> None:
    """Mixtral-8x7B: 46.7 B parameters, of which 12.7 B multiply a token (without embedding)."""
    shape = shape_of(transformers.MixtralConfig())
    assert shape.parameters == 46_702_792_704
    experts = 32 * 3 * 14336 * 4096 * 2  # two of eight
    attention = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024)
    assert shape.matrix_parameters == experts + attention + 32000 * 4096
    assert shape.largest == 8 * 2 * 14336 * 4096


def test_experts_are_weights_of_sub_groups_and_of_full_training() -> None:
    """Nothing of a mixture but norms and routers is left for the last sub-group."""
    shape = shape_of(config_of("MixtralConfig"))
    work = Workload(method="full", zero_stage=3, sub_group=1)
    groups = sub_groups(shape, work)
    assert sum(groups) == shape.parameters
    assert groups.count(4 * 2 * 160 * 64) == groups.count(4 * 160 * 64) == 3
    router_and_norms = 3 * 4 * 64 + 7 * 64
    assert groups[-1] == router_and_norms
    assert account(shape, work.but(row_tokens=16)).peak_bytes > 16 * shape.parameters


def test_layers_of_several_kinds_are_counted_each() -> None:
    """Qwen3-MoE with one dense layer of three: its MLP's linears are there once."""
    config = config_of("Qwen3MoeConfig", mlp_only_layers=[0])
    shape = shape_of(config)
    dense = {one.name: count for one, count in shape.everywhere}
    assert (dense["q_proj"], dense["gate_proj"], dense["down_proj"]) == (3, 1, 1)
    assert shape.experts is not None
    assert shape.experts.layers == 2
    assert shape.lora_parameters(("down_proj",), 8) == 8 * (160 + 64)
    assert {one.name for one in shape.linears} == {"q_proj", "k_proj", "v_proj", "o_proj"}
