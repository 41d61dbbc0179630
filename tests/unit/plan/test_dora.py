"""What DoRA adds to the account, against PEFT's own layer and against counts made by hand."""

import weakref
from typing import Any

import pytest
import torch
from kept_tensors import kept_bytes
from peft import LoraConfig, inject_adapter_in_model
from plan_shapes import chatglm3, lora
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from glmforge.models.attention import AttentionRows
from glmforge.models.glm.configuration import ChatGLM2Config
from glmforge.models.glm.modeling import GLMBlock
from glmforge.plan.activations import layer_bytes
from glmforge.plan.dora import norm_workspace
from glmforge.plan.memory import account
from glmforge.plan.shape import shape_of
from glmforge.plan.weights import trained_parameters
from glmforge.plan.workload import Workload

ROWS, TOKENS, RANK = 2, 32, 8
QKV = ("query_key_value",)
EVERY = ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h")


class LiveBytes(TorchDispatchMode):
    """The highest sum of storages made and not freed yet while it is on."""

    def __init__(self, before: nn.Module) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known = {one.untyped_storage()._cdata for one in before.parameters()}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor):
            storage = made.untyped_storage()
            if storage._cdata not in self.known:
                self.known.add(storage._cdata)
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self.free, storage._cdata, storage.nbytes())
        return made

    def free(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


@pytest.mark.parametrize("targets", [QKV, EVERY])
@pytest.mark.parametrize("use_dora", [False, True])
def test_a_layer_keeps_what_the_account_says(targets: tuple[str, ...], use_dora: bool) -> None:
    """PEFT's own adapters in our layer, plain path, bf16: 2 e x output width more for each."""
    torch.manual_seed(0)
    config = ChatGLM2Config(
        hidden_size=256,
        num_layers=1,
        num_attention_heads=2,
        ffn_hidden_size=640,
        multi_query_group_num=2,
    )
    shape, layer = shape_of(config), GLMBlock(config, 0)
    layer.requires_grad_(False)
    inject_adapter_in_model(
        LoraConfig(r=RANK, use_dora=use_dora, target_modules=list(targets)), layer
    )
    layer.to(torch.bfloat16)
    angles = torch.zeros(1, 1, TOKENS, 32)
    hidden = torch.randn(ROWS, TOKENS, 256, dtype=torch.bfloat16, requires_grad=True)
    work = Workload(
        method="lora", compiled=False, lora_r=RANK, lora_targets=targets, use_dora=use_dora
    )
    planned = ROWS * TOKENS * (layer_bytes(shape, work) - 4 * shape.heads)
    vectors = 3 * 2 * shape.lora_outputs(targets)  # magnitudes, norms and their quotients
    found = kept_bytes(layer, hidden, (angles, angles, AttentionRows(), None), TOKENS)
    assert planned <= found <= planned + (vectors if use_dora else 0)


def test_the_norm_of_an_adapted_weight_takes_what_the_account_says() -> None:
    """The identity, B A, its scaled copy and the sum, at once."""
    base = nn.Sequential(nn.Linear(256, 1024, bias=False)).to(torch.bfloat16)
    base.requires_grad_(False)
    inject_adapter_in_model(LoraConfig(r=RANK, use_dora=True, target_modules=["0"]), base)
    base.to(torch.bfloat16)
    hidden = torch.randn(1, 256, dtype=torch.bfloat16, requires_grad=True)
    with LiveBytes(base) as live:
        base(hidden)
    expected = 2 * 256 * (256 + 3 * 1024)
    assert live.peak == pytest.approx(expected, rel=0.02)


def test_magnitudes_are_trained_and_counted() -> None:
    """One a row of the adapted weight: 28 layers of 4608 rows."""
    shape = chatglm3()
    more = trained_parameters(shape, lora(use_dora=True)) - trained_parameters(shape, lora())
    assert more == 28 * 4608
    states = [account(shape, lora(use_dora=on)).term("optimizer_states").bytes for on in (0, 1)]
    assert states[1] - states[0] == 8 * 28 * 4608


def test_the_norms_of_dora_are_a_moment_of_their_own() -> None:
    """ChatGLM3-6B's query_key_value: 4096 x (4096 + 3 x 4608) elements; QLoRA one copy more."""
    shape = chatglm3()
    assert norm_workspace(shape, lora()).bytes == 2 * 4096 * (4096 + 3 * 4608)
    quantised = norm_workspace(shape, lora(method="qlora"))
    assert quantised.bytes == 2 * 4096 * (4096 + 4 * 4608)
    few = account(shape, lora(use_dora=True, micro_batch=1, row_tokens=8, lora_targets=EVERY))
    assert few.moment == "norm of an adapted weight"
    assert few.term("dora_norms").bytes == 2 * 13696 * (13696 + 3 * 4096)
