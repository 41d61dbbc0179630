"""Write a model directory of a real shape with random weights, in the original sharded layout.

Real weights cannot travel with the project; speed, memory and loading do not depend on their
values. Usage: random_checkpoint.py SHAPE OUT --tokenizer DIR [--shard-gib 2] [--bin]
(SHAPE: chatglm3-6b, glm-4-9b-chat, glm-3b, glm-1.5b). The tokenizer directory is the user's own.
"""

import argparse
import json
import shutil
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from glmforge.models import load_config, new_model

CHATGLM3 = {
    "model_type": "chatglm",
    "_name_or_path": "THUDM/chatglm3-6b",
    "architectures": ["ChatGLMModel"],
    "add_bias_linear": False,
    "add_qkv_bias": True,
    "apply_query_key_layer_scaling": True,
    "apply_residual_connection_post_layernorm": False,
    "attention_dropout": 0.0,
    "attention_softmax_in_fp32": True,
    "bias_dropout_fusion": True,
    "ffn_hidden_size": 13696,
    "fp32_residual_connection": False,
    "hidden_dropout": 0.0,
    "hidden_size": 4096,
    "kv_channels": 128,
    "layernorm_epsilon": 1e-05,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "num_attention_heads": 32,
    "num_layers": 28,
    "original_rope": True,
    "padded_vocab_size": 65024,
    "post_layer_norm": True,
    "rmsnorm": True,
    "seq_length": 8192,
    "use_cache": True,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GLM4 = CHATGLM3 | {
    "_name_or_path": "THUDM/glm-4-9b-chat",
    "num_layers": 40,
    "padded_vocab_size": 151552,
    "seq_length": 131072,
    "rope_ratio": 500,
    "layernorm_epsilon": 1.5625e-07,
    "eos_token_id": [151329, 151336, 151338],
    "pad_token_id": 151329,
}
SHAPES = {
    "chatglm3-6b": CHATGLM3,
    "glm-4-9b-chat": GLM4,
    "glm-3b": CHATGLM3
    | {"num_layers": 26, "hidden_size": 3072, "num_attention_heads": 24, "ffn_hidden_size": 8192},
    "glm-1.5b": CHATGLM3
    | {"num_layers": 24, "hidden_size": 2048, "num_attention_heads": 16, "ffn_hidden_size": 6144},
}


def write(shape: str, out: Path, tokenizer: Path, shard_bytes: int, *, as_bin: bool) -> None:
    """Write config.json, tokenizer files and shards named as on the hub, with their index."""
    out.mkdir(parents=True)
    for path in tokenizer.iterdir():
        if path.name.startswith("tokenizer"):
            shutil.copy(path, out / path.name)
    (out / "config.json").write_text(json.dumps(SHAPES[shape], indent=1))
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        model = new_model(load_config(out), dtype=torch.bfloat16)
    shards: list[dict[str, torch.Tensor]] = [{}]
    for name, tensor in model.state_dict().items():
        size = sum(t.nbytes for t in shards[-1].values())
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            shards.append({})
        shards[-1][name] = tensor.cpu()
    stem, ending = ("pytorch_model", "bin") if as_bin else ("model", "safetensors")
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        name = f"{stem}-{number:05d}-of-{len(shards):05d}.{ending}"
        if as_bin:
            torch.save(shard, out / name)
        else:
            save_file(shard, out / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, name)
    total = sum(t.nbytes for shard in shards for t in shard.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (out / f"{stem}.{ending}.index.json").write_text(json.dumps(index, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--shard-gib", type=float, default=2.0)
    parser.add_argument("--bin", action="store_true", help="PyTorch .bin shards")
    args = parser.parse_args()
    started = time.perf_counter()
    write(args.shape, args.out, args.tokenizer, int(args.shard_gib * 2**30), as_bin=args.bin)
    print(f"{args.out}: {args.shape} written in {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
