"""What a layer keeps, against what autograd really keeps (every saved storage counted once)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from plan_shapes import chatglm3, glm4, lora
from torch import nn
from transformers import Qwen3Config

from glmforge.models import load_config
from glmforge.models.attention import AttentionRows
from glmforge.models.chatglm.configuration import ChatGLM6BConfig
from glmforge.models.chatglm.modeling import GLMBlock as FirstBlock
from glmforge.models.glm.configuration import ChatGLM2Config
from glmforge.models.glm.modeling import GLMBlock
from glmforge.plan.activations import head_bytes, layer_bytes, layer_items
from glmforge.plan.shape import ModelShape, shape_of
from glmforge.plan.workload import Workload

ROWS, TOKENS, RANK = 2, 32, 8
SIZES = {"hidden_size": 256, "num_layers": 1, "num_attention_heads": 2}


class Adapter(nn.Module):
    """A linear layer with LoRA, as PEFT computes it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.a = nn.Linear(base.in_features, RANK, bias=False, dtype=base.weight.dtype)
        self.b = nn.Linear(RANK, base.out_features, bias=False, dtype=base.weight.dtype)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.base(hidden) + self.b(self.a(hidden)) * 4.0


def decoder(dtype: torch.dtype) -> tuple[ModelShape, nn.Module, tuple[Any, ...]]:
    config = ChatGLM2Config(**SIZES, ffn_hidden_size=640, multi_query_group_num=2)
    angles = torch.zeros(1, 1, TOKENS, 32)
    layer = GLMBlock(config, 0).to(dtype)
    return shape_of(config), layer, (angles, angles, AttentionRows(), None)


def first(dtype: torch.dtype) -> tuple[ModelShape, nn.Module, tuple[Any, ...]]:
    config = ChatGLM6BConfig(**SIZES, inner_hidden_size=640)
    angles = torch.zeros(ROWS, 1, TOKENS, 32)
    layer = FirstBlock(config, 0).to(dtype)
    return shape_of(config), layer, (((angles, angles), (angles, angles)), AttentionRows(), None)


def adapt(layer: nn.Module, names: tuple[str, ...]) -> None:
    layer.requires_grad_(False)
    for path, module in list(layer.named_modules()):
        if path.rsplit(".", 1)[-1] in names:
            parent, _, name = path.rpartition(".")
            setattr(layer.get_submodule(parent), name, Adapter(module))


def saved_bytes(layer: nn.Module, hidden: torch.Tensor, others: tuple[Any, ...]) -> int:
    """Bytes of the storages that one forward pass keeps, parameters and angles left out."""
    left_out = {p.untyped_storage().data_ptr() for p in layer.parameters()}
    storages: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in left_out and tensor.shape[-1] != TOKENS:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    kept = []
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        kept.append(layer(hidden, *others))
    return sum(storages.values())


@pytest.mark.parametrize("make", [decoder, first])
@pytest.mark.parametrize("method", ["lora", "full"])
def test_the_plain_path_keeps_what_the_account_says(make: Callable[..., Any], method: str) -> None:
    """bf16, sdpa on the CPU."""
    torch.manual_seed(0)
    shape, layer, others = make(torch.bfloat16)
    targets = ("query_key_value",) if method == "lora" else ()
    if method == "lora":
        adapt(layer, targets)
    hidden = torch.randn(ROWS, TOKENS, 256, dtype=torch.bfloat16, requires_grad=True)
    work = Workload(method=method, compiled=False, lora_r=RANK, lora_targets=targets)
    per_token = layer_bytes(shape, work) - 4 * shape.heads  # these sums are told apart by shape
    expected = per_token * ROWS * TOKENS
    assert saved_bytes(layer, hidden, others) == pytest.approx(expected, rel=0.002)


def test_every_item_of_a_layer_is_named_with_its_formula() -> None:
    """The list of the compiled 6B layer, in bytes a token."""
    items = {item.name: item.bytes for item in layer_items(chatglm3(), lora())}
    assert items == {
        "norm inputs": 2 * 8192,
        "norm statistics": 8,
        "attention's input": 8192,
        "rotated queries": 8192,
        "rotated keys": 512,
        "query_key_value": 9216,
        "attention output": 8192,
        "softmax sums": 128,
        "gate and up": 54784,
        "LoRA A outputs": 16,
        "adapters' inputs": 0,
    }


def test_dropout_adds_a_byte_for_each_element_of_an_adapters_input() -> None:
    """Measured: 62.01 instead of 60.32 GiB at 16,384 tokens."""
    shape = chatglm3()
    with_dropout = layer_bytes(shape, lora(lora_dropout=0.1))
    assert with_dropout - layer_bytes(shape, lora()) == 4096


def test_adapters_on_every_linear_layer_keep_their_inputs() -> None:
    """Traced from the compiled layer: mask, dropped input and A's output for each."""
    shape = chatglm3()
    every = ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h")
    more = layer_bytes(shape, lora(lora_targets=every, lora_dropout=0.1))
    less = layer_bytes(shape, lora(lora_dropout=0.1))
    masks = 4096 + 4096 + 13696
    assert more - less == masks + 2 * masks + 3 * 16


def test_the_head_holds_one_chunk_and_never_all_logits() -> None:
    """4,096 tokens at a time for 65,024 rows, fewer for 151,552."""
    assert head_bytes(chatglm3(), lora()).logits == 8 * 4096 * 65024
    assert head_bytes(glm4(), lora()).logits == 8 * (2**29 // 151552) * 151552
    assert head_bytes(chatglm3(), lora(micro_batch=1)).logits == 8 * 2048 * 65024


def test_other_models_of_transformers_hold_all_logits(tmp_path: Any) -> None:
    """Their loss is transformers' own: logits, an fp32 copy and both gradients."""
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "vocab_size": 100,'
        ' "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}'
    )
    shape = shape_of(load_config(tmp_path))
    assert head_bytes(shape, lora(micro_batch=1)).logits == 12 * 2048 * 100
    assert shape.lora_parameters(("q_proj", "down_proj"), 8) == 2 * 8 * ((64 + 64) + (128 + 64))


def test_all_that_is_counted_as_logits_is_in_their_formula() -> None:
    """Hidden rows too, with and without the chunked loss."""
    tokens, e = 2048, 2
    for shape in (chatglm3(), shape_of(Qwen3Config())):
        found = head_bytes(shape, lora(micro_batch=1))
        assert found.rows == tokens * (4 + 3 * e) * shape.hidden
        assert found.formula.endswith("+ T(4H + 3eH) (last hidden rows)")
    assert found.logits == tokens * shape.vocabulary * (e + 4 + 4 + e)
    assert found.formula.startswith("T V (e + 4 + 4 + e)")
