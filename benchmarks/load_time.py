"""Load time and peak host memory of a checkpoint through transformers' Auto class.

    python benchmarks/load_time.py MODEL_DIR [--new-tokens 64]

`import glmforge`, then `AutoModelForCausalLM.from_pretrained` in bf16 on the GPU (the CPU where
there is none), then greedy generation. Prints one JSON line. The file cache is as it is: the first
run after writing the checkpoint finds it warm.
"""

import argparse
import json
import resource
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import glmforge  # noqa: F401  (registers the ChatGLM classes)

GIB = 2**30


def peak_host_gib() -> float:
    """Highest resident memory of this process so far, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--new-tokens", type=int, default=64)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.zeros(1, device=device)
    before = peak_host_gib()
    started = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.bfloat16, device_map={"": device}
    )
    loaded = time.perf_counter() - started
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    inputs = tokenizer("你好，请介绍一下杭州", return_tensors="pt").to(device)
    started = time.perf_counter()
    output = model.generate(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        min_new_tokens=args.new_tokens,
        max_new_tokens=args.new_tokens,
        do_sample=False,
    )
    files = [*args.model.glob("*.safetensors"), *args.model.glob("*.bin")]
    result = {
        "model_gib": round(sum(path.stat().st_size for path in files) / GIB, 2),
        "largest_file_gib": round(max(path.stat().st_size for path in files) / GIB, 2),
        "load_seconds": round(loaded, 1),
        "peak_host_gib": round(peak_host_gib(), 2),
        "host_gib_before": round(before, 2),
        "new_tokens": output.shape[1] - inputs["input_ids"].shape[1],
        "generate_seconds": round(time.perf_counter() - started, 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
