"""Reference values for the models that a clone can check without any file beside it.

Weights follow a formula, so none are stored; `models.json` holds the logits of two rows. The code
that made it gave the outputs of the original code on the reference models (tests/unit/models/
test_golden_models.py). Regenerate: ``python tests/golden/make_models.py``.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent
FILE = HERE / "models.json"
KEPT = (0, 5, 11)
"""Positions whose logits are kept."""

_DECODER = {
    "model_type": "chatglm",
    "ffn_hidden_size": 40,
    "hidden_size": 32,
    "kv_channels": 8,
    "multi_query_group_num": 2,
    "num_attention_heads": 4,
    "num_layers": 2,
    "padded_vocab_size": 48,
    "seq_length": 64,
}
_FIRST = {
    "model_type": "chatglm",
    "hidden_size": 32,
    "inner_hidden_size": 64,
    "num_attention_heads": 4,
    "num_layers": 2,
    "max_sequence_length": 64,
    "vocab_size": 48,
    "bos_token_id": 44,
    "eos_token_id": 45,
    "mask_token_id": 40,
    "gmask_token_id": 41,
    "pad_token_id": 3,
}
_SPLIT = {
    "attention_bias": True,
    "head_dim": 8,
    "hidden_size": 32,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "rope_parameters": {
        "partial_rotary_factor": 0.5,
        "rope_theta": 10000.0,
        "rope_type": "default",
    },
    "vocab_size": 48,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "chatglm-6b": {**_FIRST, "_name_or_path": "chatglm-6b", "position_encoding_2d": True},
    "chatglm-6b-1d": {**_FIRST, "_name_or_path": "chatglm-6b", "position_encoding_2d": False},
    "chatglm2-6b": {**_DECODER, "_name_or_path": "chatglm2-6b"},
    "chatglm2-6b-32k": {**_DECODER, "_name_or_path": "chatglm2-6b-32k", "rope_ratio": 4},
    "chatglm3-6b": {**_DECODER, "_name_or_path": "chatglm3-6b"},
    "chatglm3-6b-128k": {**_DECODER, "_name_or_path": "chatglm3-6b-128k", "rope_ratio": 500},
    "glm-4-9b-chat": {**_DECODER, "_name_or_path": "glm-4-9b-chat", "rope_ratio": 500},
    "glm-4-9b-hf": {"model_type": "glm", **_SPLIT},
    "glm-4-0414": {"model_type": "glm4", **_SPLIT},
}


def set_weights(model: nn.Module) -> None:
    """Give every parameter values that depend on its name, shape and place alone."""
    with torch.no_grad():
        for number, (name, parameter) in enumerate(sorted(model.named_parameters())):
            places = np.arange(parameter.numel(), dtype=np.float64)
            wave = np.sin(places * 12.9898 + (number + 1) * 78.233) * 43758.5453
            noise = wave - np.floor(wave) - 0.5
            values = torch.from_numpy(noise.astype(np.float32)).view(parameter.shape)
            near_one = "norm" in name and name.endswith("weight")
            parameter.copy_(1 + 0.4 * values if near_one else 0.6 * values)


def inputs() -> Tensor:
    """Return two rows that suit every family: context, mask token, <sop>, answer."""
    first = [5, 9, 13, 17, 21, 41, 44, 6, 10, 14, 18, 45]
    second = [7, 8, 30, 41, 44, 11, 12, 16, 20, 24, 28, 45]
    return torch.tensor([first, second])


def logits(directory: Path, name: str) -> Tensor:
    """Return the fp32 logits at `KEPT`, ``[2, 3, 48]``, of the model of one entry of `CONFIGS`."""
    from glmforge.models import load_config, new_model

    (directory / "config.json").write_text(json.dumps(CONFIGS[name]), encoding="utf-8")
    model = new_model(load_config(directory)).eval()
    set_weights(model)
    with torch.no_grad():
        return model(inputs()).logits[:, list(KEPT)]


def main() -> None:
    """Write `models.json`."""
    import tempfile

    kept = {}
    for name in CONFIGS:
        with tempfile.TemporaryDirectory() as directory:
            values = logits(Path(directory), name)
        kept[name] = [[[round(x, 7) for x in row] for row in rows] for rows in values.tolist()]
    lines = [f" {json.dumps(name)}: {json.dumps(rows)}" for name, rows in kept.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{FILE.name}: {len(kept)} models, {FILE.stat().st_size} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
