"""Opens model directories: configuration and weights, with our code only.

Owns `load_config`, `load_model` and `new_model`. A directory's own .py files are never run.
Tensors that are missing, unexpected or mis-shaped are an error with the list.
"""

import copy
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from glmforge.errors import ModelError
from glmforge.models.foreign import attention_for, class_for
from glmforge.models.registration import register_models

Attention = Literal["auto", "eager", "sdpa"]


def load_config(directory: str | Path) -> PreTrainedConfig:
    """Read config.json of a model directory.

    Raises:
        ModelError: there is no config.json, or its keys are of no known model.
    """
    path = Path(directory)
    if not (path / "config.json").is_file():
        raise ModelError(f"{path}: no config.json there; give the directory of a model")
    register_models()
    return AutoConfig.from_pretrained(str(path))


def new_model(config: PreTrainedConfig, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Build a model with random weights; the same torch seed gives the same weights."""
    register_models()
    config = copy.deepcopy(config)
    config._attn_implementation = attention_for(config, "auto")
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        model = class_for(config)(config)
    finally:
        torch.set_default_dtype(before)
    config.dtype = dtype
    return model


def load_model(
    directory: str | Path,
    dtype: torch.dtype | None = None,
    device: str | torch.device | None = None,
    attention: Attention = "auto",
) -> PreTrainedModel:
    """Load a model in evaluation mode.

    Args:
        directory: config.json and weights (safetensors or .bin, single or sharded).
        dtype: of the weights; by default float32 on the CPU, the config's own elsewhere.
        device: by default the CPU.
        attention: ``eager`` is the slow oracle; ``auto`` picks the fastest kernel.

    Raises:
        ModelError: the directory is incomplete, or its tensors are not this model's.
    """
    config = load_config(directory)
    place = torch.device(device or "cpu")
    if dtype is None:
        dtype = torch.float32 if place.type == "cpu" else config.dtype or torch.bfloat16
    model, info = class_for(config).from_pretrained(
        str(directory),
        config=config,
        dtype=dtype,
        attn_implementation=attention_for(config, attention),
        output_loading_info=True,
    )
    _refuse_differences(str(directory), info)
    return model.to(place).eval()


def _refuse_differences(directory: str, info: dict[str, Any]) -> None:
    kinds = {
        "missing": "missing_keys",
        "unexpected": "unexpected_keys",
        "of another shape": "mismatched_keys",
    }
    problems = [
        f"{directory}: {len(info[key])} tensors {kind}: {', '.join(sorted(map(str, info[key])))}"
        for kind, key in kinds.items()
        if info.get(key)
    ]
    if problems:
        raise ModelError(problems)
