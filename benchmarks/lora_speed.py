"""Tokens per second of LoRA training against what users run today, in one call on one GPU.

Ours: a checkpoint of the original layout loaded by glmforge, its training step, bf16, ZeRO-2, no
recomputation. Baseline: hf_trainer.py (transformers Trainer + PEFT + DeepSpeed ZeRO-2), or any
script given with --baseline-command. Each runs in a process of its own, one after the other.

    python benchmarks/lora_speed.py MODEL_DIR SHAPE [--rows 8] [--lengths fixed|dialogues]

`fixed`: rows of 2048 tokens, every token trained. `dialogues`: lengths as dialogue data has them
(log-normal, mean about 290, at most 1024), packed by us and padded by the baseline; tokens are the
real ones, padding not counted.
"""

import argparse
import json
import random
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

ROW = 2048
BASELINE_LORA = {"r": 8, "lora_alpha": 32, "lora_dropout": 0.0, "task_type": "CAUSAL_LM"}


def lengths_of(kind: str, count: int) -> list[int]:
    """Row lengths in tokens: all 2048, or a seeded draw of dialogue lengths."""
    if kind == "fixed":
        return [ROW] * count
    draw, found = random.Random(0), []
    while len(found) < count:
        length = int(draw.lognormvariate(5.45, 0.75))
        if 16 <= length <= 1024:
            found.append(length)
    return found


def row_ids(number: int, length: int, vocabulary: int) -> torch.Tensor:
    """Random token ids, the same for the same number."""
    return torch.randint(2, vocabulary, (length,), generator=torch.Generator().manual_seed(number))


def ours(args: argparse.Namespace) -> None:
    """Train with glmforge's own step and print one JSON line."""
    from glmforge.distributed.collectives import process_group
    from glmforge.distributed.env import read_world
    from glmforge.distributed.zero import deepspeed_running
    from glmforge.models import load_model
    from glmforge.train.loop import train_step

    with process_group(read_world()) as ranks, deepspeed_running():
        started = time.perf_counter()
        model = load_model(args.model, dtype=torch.bfloat16, device=ranks.device)
        load_seconds = time.perf_counter() - started
        order = plan_of(args, model.config.vocab_size)
        engine = engine_of(args, model)
        seconds, tokens = [], []
        for step in range(args.steps):
            batches = order.rank_batches(
                0, step, rank=0, world_size=1, micro_batch=args.rows, accumulation=1, pad_to=ROW
            )
            torch.cuda.synchronize()
            mark = time.perf_counter()
            loss, _ = train_step(engine, batches, 1e-4, ranks)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - mark)
            tokens.append(batches.tokens)
    rates = [count / spent for count, spent in zip(tokens[3:], seconds[3:])]
    result = {
        "tokens_per_second": round(statistics.median(rates)),
        "step_seconds": round(statistics.median(seconds[3:]), 4),
        "first_step_seconds": round(seconds[0], 1),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        "load_seconds": round(load_seconds, 1),
        "loss": round(loss, 4),
    }
    print("RESULT", json.dumps(result))


def plan_of(args: argparse.Namespace, vocabulary: int):
    """Rows of random ids, every token trained, in glmforge's own batch plan."""
    import numpy as np

    from glmforge.data import BatchPlan, Example, pack, unpacked

    packed = args.lengths == "dialogues"
    documents = args.rows * (args.steps + 2) * (8 if packed else 1)
    examples = []
    for number, length in enumerate(lengths_of(args.lengths, documents)):
        ids = row_ids(number, length, vocabulary).numpy().astype(np.int32)
        examples.append(Example(input_ids=ids, labels=ids.copy(), source=str(number)))
    rows = pack([len(e.input_ids) for e in examples], ROW, 0) if packed else unpacked(documents)
    return BatchPlan(examples, rows, global_batch=args.rows, seed=0, packed=packed)


def engine_of(args: argparse.Namespace, model):
    """LoRA as the baseline has it, layers compiled unless --eager, on a ZeRO-2 engine."""
    from glmforge.adapters import LoraSettings, add_lora
    from glmforge.models import family_of
    from glmforge.models.layers import checkpoint_layers, compile_layers
    from glmforge.plan.batch import BatchSizes
    from glmforge.plan.deepspeed_config import EngineSettings, write_config
    from glmforge.train.engine import OptimizerSettings, build_engine

    targets = family_of(model.config).lora_targets
    settings = {"r": 8, "lora_alpha": 32, "lora_dropout": args.dropout}
    model = add_lora(model, LoraSettings(**settings, target_modules=targets))
    if args.checkpointing:
        checkpoint_layers(model)
    if not args.eager:
        compile_layers(model)
    sizes = BatchSizes(micro_batch=args.rows, accumulation=1, world_size=1)
    config = write_config(EngineSettings(sizes=sizes, precision="bf16", max_grad_norm=1.0), None)
    adam = {"learning_rate": 1e-4, "betas": (0.9, 0.999), "epsilon": 1e-8, "weight_decay": 0.01}
    return build_engine(model, config, OptimizerSettings(**adam))


def run(command: list[str]) -> dict[str, float]:
    """Run a measuring process and return its result line (also the prototype's "RES")."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    for line in reversed(done.stdout.splitlines()):
        word, _, text = line.partition(" ")
        if word in ("RESULT", "RES"):
            found = json.loads(text)
            if "tok_s" in found:
                found["tokens_per_second"] = found["tok_s"]
            return found
    sys.exit(f"{shlex.join(command)} failed:\n{(done.stdout + done.stderr)[-4000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("shape")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--lengths", choices=["fixed", "dialogues"], default="fixed")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--eager", action="store_true", help="no compilation (the plain path)")
    parser.add_argument("--only-ours", action="store_true")
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--baseline-command", help="another baseline; prints RES or RESULT + JSON")
    args = parser.parse_args()
    if args.in_process:
        ours(args)
        return
    here = Path(__file__).resolve()
    mine = run([sys.executable, str(here), *sys.argv[1:], "--in-process"])
    report: dict[str, object] = {"shape": args.shape, "rows": args.rows, "lengths": args.lengths}
    report["ours"] = mine
    if not args.only_ours:
        default = [sys.executable, str(here.with_name("hf_trainer.py")), args.shape]
        default += ["--rows", str(args.rows), "--lengths", args.lengths]
        command = shlex.split(args.baseline_command) if args.baseline_command else default
        report["baseline"] = run(command)
        ratio = mine["tokens_per_second"] / report["baseline"]["tokens_per_second"]
        report["ratio"] = round(ratio, 3)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
