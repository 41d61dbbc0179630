"""Models of transformers' own: mixtures of experts, normed heads, layers of several kinds."""

import sys
from typing import Any

import pytest
import torch
import transformers
from kept_tensors import kept_bytes
from peft import LoraConfig, inject_adapter_in_model
from torch import nn

from glmforge.models import counts
from glmforge.plan import weights
from glmforge.plan.activations import layer_bytes
from glmforge.plan.memory import account
from glmforge.plan.shape import shape_of
from glmforge.plan.weights import matrices, persistent_elements, sub_groups
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


def test_a_large_model_costs_a_plan_one_empty_model_and_no_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The layers are not walked for each candidate, and PEFT is not imported for its table."""
    built, build = [], counts._on_meta
    monkeypatch.setattr(counts, "_on_meta", lambda config: built.append(1) or build(config))
    for name in ("peft", "peft.utils"):
        monkeypatch.setitem(sys.modules, name, None)  # an import of it raises
    shape = shape_of(
        transformers.DeepseekV3Config(
            **SIZES, q_lora_rank=16, kv_lora_rank=16, moe_intermediate_size=32, n_routed_experts=8
        )
    )
    assert len(built) == 1
    assert "q_b_proj" in shape.usual_targets
    monkeypatch.setattr(weights, "_in_order", lambda _: pytest.fail("walked layer by layer"))
    work = Workload(
        method="lora", lora_r=8, zero_stage=3, world_size=8, lora_targets=shape.usual_targets
    )
    account(shape, work)


@pytest.mark.parametrize("persistence", [0, 4096, 64 * 160])
@pytest.mark.parametrize("all_persistent", [0, 64 * 160, 10**9])
def test_small_weights_stay_whole_up_to_the_limit_of_all(
    persistence: int, all_persistent: int
) -> None:
    """In the order of the model, as DeepSpeed takes them."""
    shape = shape_of(config_of("LlamaConfig"))
    work = Workload(
        method="full",
        zero_stage=3,
        world_size=2,
        persistence=persistence,
        all_persistent=all_persistent,
    )
    found = persistent_elements(shape, work)
    small = sum(size * count for size, count in matrices(shape) if size <= persistence)
    assert found <= all_persistent
    assert found == small or found + persistence > all_persistent
