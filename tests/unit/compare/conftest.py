"""A tiny base with weights, what was made of it, and prompts for both."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from glmforge.adapters import LoraSettings, add_lora, save_adapter
from glmforge.export.base_print import write_base_print
from glmforge.models import load_config, load_model, load_tokenizer, new_model
from small_models import TINY_MODEL

SMALLER = {"hidden_size": 32, "ffn_hidden_size": 64, "num_layers": 2, "num_attention_heads": 2,
           "kv_channels": 16, "multi_query_group_num": 1, "tie_word_embeddings": False}  # fmt: skip


def write_model(directory: Path, seed: int) -> Path:
    """A model directory with the demo's vocabulary and random weights."""
    demo = TINY_MODEL
    directory.mkdir(parents=True)
    for name in ("tokenizer.model", "tokenizer_config.json"):
        (directory / name).write_bytes((demo / name).read_bytes())
    keys = json.loads((demo / "config.json").read_text(encoding="utf-8")) | SMALLER
    (directory / "config.json").write_text(json.dumps(keys), encoding="utf-8")
    torch.manual_seed(seed)
    model = new_model(load_config(directory))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    model.save_pretrained(directory)
    name = "generation_config.json"
    (directory / name).write_bytes((demo / name).read_bytes())
    return directory


@pytest.fixture(scope="session")
def base_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("base") / "chatglm3-tiny", seed=1)


@pytest.fixture(scope="session")
def whole_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another whole model with the same vocabulary."""
    return write_model(tmp_path_factory.mktemp("whole") / "merged", seed=2)


@pytest.fixture(scope="session")
def make_adapter(
    base_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, int], Path]:
    """Write a LoRA adapter for the base that changes its answers."""

    def write(name: str, seed: int) -> Path:
        torch.manual_seed(seed)
        settings = LoraSettings(
            r=4, lora_alpha=32, lora_dropout=0.0, target_modules=("query_key_value", "dense")
        )
        wrapped: Any = add_lora(load_model(base_dir), settings)
        weights = {
            name: torch.randn_like(parameter)
            for name, parameter in wrapped.named_parameters()
            if parameter.requires_grad
        }
        directory = tmp_path_factory.mktemp("adapters") / name
        save_adapter(wrapped, weights, directory)
        write_base_print(base_dir, directory)
        return directory

    return write


@pytest.fixture(scope="session")
def tokenizer(base_dir: Path) -> Any:
    return load_tokenizer(base_dir)
