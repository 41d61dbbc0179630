"""A real-shape merge: time and peak host memory of `glmforge export --merge`, stage by stage.

``python benchmarks/merge_time.py DIR SHAPE --tokenizer TOKENIZER_DIR [--layout L] [--dtype D]``
makes a random checkpoint of SHAPE (of random_checkpoint.py) and a random adapter in DIR, merges it
in a process of its own and prints one JSON line. Peak memory is that of the exporting process and
of the fresh one that opens what was written, apart; both are read from the kernel (ru_maxrss).
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
CHILD = """
import json, resource, sys, time
from pathlib import Path
from glmforge.export import export
began = time.perf_counter()
report = export(Path(sys.argv[1]), Path(sys.argv[2]), merge=True, base=Path(sys.argv[3]),
                layout=sys.argv[4] or None, dtype=sys.argv[5] or None)
found = {"seconds": round(time.perf_counter() - began, 1),
         "export_peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
         "fresh_process_peak_gib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20,
         "report": report.lines()}
print(json.dumps(found))
"""


def write_adapter(base: Path, out: Path) -> None:
    """A LoRA of rank 8 on query_key_value whose B is not zero, without loading the base."""
    import torch
    from safetensors.torch import save_file

    from glmforge.models import load_config

    config = load_config(base)
    rows = config.num_attention_heads * config.kv_channels
    rows += 2 * config.multi_query_group_num * config.kv_channels
    torch.manual_seed(0)
    tensors = {}
    for layer in range(config.num_layers):
        name = f"base_model.model.transformer.encoder.layers.{layer}.self_attention.query_key_value"
        tensors[f"{name}.lora_A.weight"] = torch.randn(8, config.hidden_size) * 0.01
        tensors[f"{name}.lora_B.weight"] = torch.randn(rows, 8) * 0.01
    out.mkdir(parents=True)
    save_file(tensors, out / "adapter_model.safetensors", metadata={"format": "pt"})
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 8,
        "lora_alpha": 32,
        "lora_dropout": 0.0,
        "target_modules": ["query_key_value"],
        "base_model_name_or_path": str(base),
    }
    (out / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("shape")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--layout", default="")
    parser.add_argument("--dtype", default="")
    arguments = parser.parse_args()
    base, adapter = arguments.directory / "base", arguments.directory / "adapter"
    if not (base / "config.json").is_file():
        command = [sys.executable, str(HERE / "random_checkpoint.py"), arguments.shape, str(base)]
        subprocess.run([*command, "--tokenizer", arguments.tokenizer], check=True)
    if not adapter.exists():
        write_adapter(base, adapter)
    out = arguments.directory / f"merged-{time.time_ns()}"
    command = [sys.executable, "-c", CHILD, str(adapter), str(out), str(base)]
    done = subprocess.run(
        [*command, arguments.layout, arguments.dtype], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(done.stderr[-3000:])
    found = json.loads(done.stdout.splitlines()[-1])
    written = sum(path.stat().st_size for path in out.glob("*.safetensors"))
    found |= {
        "benchmark": "merge",
        "shape": arguments.shape,
        "layout": arguments.layout or "chatglm",
        "written_gib": written / 2**30,
        "cpu_seconds_children": resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime,
    }
    print(json.dumps(found, ensure_ascii=False))


if __name__ == "__main__":
    main()
