"""How long training waits for its checkpoints: none, written at once, written in the background.

    python benchmarks/checkpoint_wait.py MODEL_DIR OUT [--method lora]

Real engine, real training steps on rows of random ids, a checkpoint every --save-steps (50). Lost
is the share of the time that training stood still, plus what the steps themselves were slower
than without checkpoints; lost_share_at_50 is what one checkpoint cost, spread over 50 such steps
(--save-steps 20 takes less time to measure). Prints one JSON line.
"""

import argparse
import json
import shutil
import statistics
import time
from pathlib import Path

import numpy as np
import torch

MODES = ("at once", "background")


def order_of(args: argparse.Namespace, vocabulary: int):
    """Rows of random ids, every token trained."""
    from glmforge.data import BatchPlan, Example, unpacked

    draw = np.random.default_rng(0)
    rows = args.rows * args.accumulation
    ids = draw.integers(2, vocabulary, (rows, args.length), dtype=np.int32)
    examples = [Example(input_ids=row, labels=row, source="random") for row in ids]
    plan = {"global_batch": len(examples), "seed": 0, "packed": False}
    return BatchPlan(examples, unpacked(len(examples)), **plan)


def engine_of(args: argparse.Namespace, device: torch.device):
    """The model on a ZeRO-2 engine, full parameters or LoRA."""
    from glmforge.adapters import LoraSettings, add_lora
    from glmforge.models import family_of, load_model
    from glmforge.plan.batch import BatchSizes
    from glmforge.plan.deepspeed_config import EngineSettings, write_config
    from glmforge.train.engine import OptimizerSettings, build_engine

    precision = "bf16" if device.type == "cuda" else "fp32"
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = load_model(args.model, dtype=dtype, device=device)
    if args.method == "lora":
        targets = family_of(model.config).lora_targets
        model = add_lora(
            model, LoraSettings(r=8, lora_alpha=32, lora_dropout=0.0, target_modules=targets)
        )
    else:
        model.requires_grad_(True)
    sizes = BatchSizes(micro_batch=args.rows, accumulation=args.accumulation, world_size=1)
    config = write_config(EngineSettings(sizes=sizes, precision=precision, max_grad_norm=1.0), None)
    adam = {"learning_rate": 1e-5, "betas": (0.9, 0.999), "epsilon": 1e-8, "weight_decay": 0.0}
    return build_engine(model, config, OptimizerSettings(**adam)), model.config.vocab_size


def measure(args: argparse.Namespace, engine, order, ranks, saver) -> dict[str, float]:
    """Train, save on the way, and time both."""
    from glmforge.train.loop import train_step
    from glmforge.train.state import Progress

    steps, stood, saves = [], 0.0, 0
    shape = {"micro_batch": args.rows, "accumulation": args.accumulation, "pad_to": args.length}
    for step in range(1, args.steps + 1):
        batches = order.rank_batches(0, 0, rank=0, world_size=1, **shape)
        mark = time.perf_counter()
        train_step(engine, batches, 1e-5, ranks)  # reads the loss: the device has caught up
        steps.append(time.perf_counter() - mark)
        if saver is None:
            continue
        mark = time.perf_counter()
        if step % args.save_steps == 0:
            saver.save(Progress(step=step), is_best=False, wait=False)
            saves += 1
        else:
            saver.poll()
        stood += time.perf_counter() - mark
    mark = time.perf_counter()
    if saver is not None:
        saver.finish()
        saver.close()
    return {
        "step_seconds": statistics.fmean(steps[args.warmup :]),
        "stood_seconds": stood,
        "saves": saves,
        "last_wait_seconds": time.perf_counter() - mark,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--method", choices=("lora", "full"), default="full")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--save-steps", type=int, default=50)
    parser.add_argument("--rows", type=int, default=2, help="of a micro-batch")
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--warmup", type=int, default=5, help="first steps that are not counted")
    args = parser.parse_args()
    from glmforge.distributed.collectives import process_group
    from glmforge.distributed.env import read_world
    from glmforge.distributed.zero import deepspeed_running
    from glmforge.train.disk import checkpoint_bytes, directory_bytes
    from glmforge.train.saving import Saver
    from glmforge.train.snapshot import snapshot_of

    found: dict[str, dict[str, float]] = {}
    with process_group(read_world()) as ranks, deepspeed_running():
        engine, vocabulary = engine_of(args, ranks.device)
        order = order_of(args, vocabulary)
        one = checkpoint_bytes(engine.module, exclude_frozen=args.method == "lora")
        for name in ("without", *args.modes):
            directory = args.out / name.replace(" ", "-") / "checkpoints"
            saver = Saver(
                engine=engine,
                directory=directory,
                ranks=ranks,
                exclude_frozen=args.method == "lora",
                keep_last=1,
                write_extras=lambda place: None,
                next_bytes=one,
                snapshot=snapshot_of(engine, ranks.device) if name == "background" else None,
            )
            found[name] = measure(args, engine, order, ranks, None if name == "without" else saver)
            if name != "without":
                found[name]["checkpoint_gib"] = directory_bytes(directory) / 2**30
                shutil.rmtree(directory)
    plain = found["without"]["step_seconds"]
    for name in args.modes:
        row = found[name]
        lost = row["stood_seconds"] + args.steps * (row["step_seconds"] - plain)
        row["lost_share_at_50"] = lost / row["saves"] / (50 * plain)
        row["stood_share"] = row["stood_seconds"] / (args.steps * plain)
        row["lost_share"] = lost / (args.steps * plain)
    print(json.dumps({k: {n: round(v, 4) for n, v in row.items()} for k, row in found.items()}))


if __name__ == "__main__":
    main()
