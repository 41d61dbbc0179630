"""Checkpoints by plain DeepSpeed, every ZeRO stage, for the consolidation tests.

`shards_...` cases train a small module whose sizes divide by no number of ranks, with a buffer, a
tied weight and frozen weights; `glm_...` cases train a tiny ChatGLM3, whole or with LoRA.
"""

from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from cases import tiny_model
from peft import LoraConfig, get_peft_model
from torch import nn

from glmforge.distributed.zero import deepspeed_running, gather_state
from glmforge.models import load_model


class Odd(nn.Module):
    """Odd sizes, two optimizer groups, an integer buffer, a tied and a frozen weight."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 7)
        self.frozen = nn.Linear(7, 7)
        self.layers = nn.ModuleList(nn.Linear(7, 7) for _ in range(3))
        self.head = nn.Linear(7, 11, bias=False)
        self.head.weight = self.words.weight
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("seen", torch.arange(3))
        self.register_buffer("shift", torch.full((5,), 0.1))
        self.frozen.requires_grad_(False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.frozen(self.words(ids))
        for layer in self.layers:
            x = torch.tanh(layer(x)) + self.shift.to(x.dtype)[0]
        return self.head(x * self.scale).float().square().mean()


def _engine(model: nn.Module, stage: int, dtype: str) -> Any:
    import deepspeed

    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage},
        "bf16": {"enabled": dtype == "bf16"},
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=1e-2)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=config, dist_init_required=False
    )
    return engine


def _trained(model: nn.Module, stage: int, dtype: str, loss_of: Any) -> Any:
    if dtype == "bf16":
        model.to(torch.bfloat16)
    engine = _engine(model, stage, dtype)
    for step in range(2):
        torch.manual_seed(10 * step + dist.get_rank())
        engine.backward(loss_of(engine))
        engine.step()
    return engine


def _save(engine: Any, directory: Path, *, exclude: bool = False) -> None:
    engine.save_checkpoint(str(directory), tag="global_step2", exclude_frozen_parameters=exclude)


def _odd(scratch: Path, stage: int, dtype: str = "fp32") -> object:
    torch.manual_seed(0)
    with deepspeed_running():
        engine = _trained(Odd(), stage, dtype, lambda e: e(torch.randint(11, (2, 3))))
        _save(engine, scratch / "whole")
        _save(engine, scratch / "trained", exclude=True)
        state = gather_state(engine.module, only_trainable=False, keep=dist.get_rank() == 0)
    if state is not None:
        torch.save(state, scratch / "truth.pt")
    return {"directory": str(scratch)}


def _glm(scratch: Path, stage: int, *, lora: bool, dtype: str = "fp32") -> object:
    source = tiny_model(scratch)
    model: Any = load_model(source)
    if lora:
        torch.manual_seed(0)
        settings = LoraConfig(r=3, lora_alpha=6, target_modules=["query_key_value", "dense"])
        model = get_peft_model(model, settings, autocast_adapter_dtype=False)

    def loss_of(engine: Any) -> torch.Tensor:
        ids = torch.randint(5, 300, (1, 9))
        return engine(input_ids=ids, labels=ids).loss

    with deepspeed_running():
        engine = _trained(model.train(), stage, dtype, loss_of)
        _save(engine, scratch / "whole")
        if lora:
            _save(engine, scratch / "trained", exclude=True)
        state = gather_state(engine.module, only_trainable=False, keep=dist.get_rank() == 0)
    if state is not None:
        torch.save(state, scratch / "truth.pt")
        if lora:
            for name in ("whole", "trained"):
                settings.base_model_name_or_path = str(source)
                settings.save_pretrained(scratch / name)
    return {"directory": str(scratch), "base": str(source)}


_STAGES = (1, 2, 3)
CASES = {
    **{f"shards_{stage}": partial(_odd, stage=stage) for stage in range(4)},
    **{f"shards_{stage}_bf16": partial(_odd, stage=stage, dtype="bf16") for stage in _STAGES},
    **{f"glm_full_{stage}": partial(_glm, stage=stage, lora=False) for stage in _STAGES},
    **{f"glm_lora_{stage}": partial(_glm, stage=stage, lora=True) for stage in _STAGES},
}
