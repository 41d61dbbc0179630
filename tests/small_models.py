"""Small random models of ChatGLM3's layout with the demo's vocabulary, and adapters of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from glmforge.adapters import LoraSettings, add_lora
from glmforge.models import load_config, load_model, load_tokenizer, new_model
from glmforge.models.configuration import ChatGLMConfig

TWO_LAYERS = {
    "num_layers": 2,
    "hidden_size": 64,
    "kv_channels": 16,
    "num_attention_heads": 4,
    "ffn_hidden_size": 96,
}
TINY_MODEL = Path(__file__).with_name("tiny_model")
"""config.json of a small ChatGLM3 and a vocabulary; no weights."""
ONE_LAYER = {
    "num_layers": 1,
    "hidden_size": 32,
    "kv_channels": 16,
    "num_attention_heads": 2,
    "ffn_hidden_size": 32,
}


def small_model(**changes: Any) -> Any:
    """Two layers unless `changes`, keys of config.json, say otherwise; always the same weights."""
    keys = load_config(TINY_MODEL).to_diff_dict() | TWO_LAYERS | changes
    torch.manual_seed(0)
    return new_model(ChatGLMConfig.from_dict(keys))


def save_with_tokenizer(model: Any, directory: Path) -> Path:
    """Write a directory that opens as any published one."""
    model.save_pretrained(directory)
    load_tokenizer(TINY_MODEL).save_pretrained(directory)
    return directory


def write_small_model(directory: Path, **changes: Any) -> Path:
    """Write `small_model(**changes)` and its vocabulary."""
    return save_with_tokenizer(small_model(**changes), directory)


def write_random_adapter(
    base: Path,
    directory: Path,
    targets: Sequence[str] = ("query_key_value",),
    *,
    rank: int = 4,
    std: float = 0.05,
    seed: int = 1,
) -> Path:
    """Write a LoRA adapter of `base` that changes its answers: alpha is twice the rank."""
    settings = LoraSettings(
        r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=tuple(targets)
    )
    wrapped: Any = add_lora(load_model(base), settings)
    torch.manual_seed(seed)
    for name, parameter in wrapped.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=std)
    wrapped.save_pretrained(directory)
    return directory
