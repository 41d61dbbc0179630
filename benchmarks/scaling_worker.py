"""One rank of ``scaling.py``: train a few steps of one job, measure, and say so in one line.

Weights are random and made in place, rows are random ids, every token trained, so that no file is
needed. The step is the product's own (`glmforge.train.loop.train_step`), and so are checkpoints.
"""

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from random_checkpoint import CHATGLM3, GLM4, SHAPES

TINY = CHATGLM3 | {
    "num_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "kv_channels": 16,
    "ffn_hidden_size": 96,
    "padded_vocab_size": 512,
}
ALL_SHAPES = SHAPES | {"tiny": TINY, "glm-4-9b-chat": GLM4}
MEASURED_AFTER = 2
"""Steps before those that are timed: compilation and the allocator's first growth."""


@dataclass(frozen=True)
class Job:
    """One configuration; `rows` of `length` tokens in a forward pass of a rank."""

    name: str
    shape: str
    method: str
    stage: int
    rows: int
    length: int = 2048
    checkpoint: int = 0
    dropout: float = 0.0

    @property
    def precision(self) -> str:
        return "bf16" if torch.cuda.is_available() else "fp32"


NINE = "glm-4-9b-chat"
JOBS = {
    job.name: job
    for job in (
        Job("6b-lora", "chatglm3-6b", "lora", 2, 8),
        Job("9b-lora", NINE, "lora", 2, 8),
        Job("6b-full", "chatglm3-6b", "full", 3, 4, checkpoint=1),
        Job("9b-full", NINE, "full", 3, 4, checkpoint=1),
        Job("6b-lora-ckpt", "chatglm3-6b", "lora", 2, 8, checkpoint=1),
        Job("6b-lora-zero3", "chatglm3-6b", "lora", 3, 8, checkpoint=1),
        Job("9b-lora-zero3", NINE, "lora", 3, 4),
        Job("9b-lora-zero3-ckpt", NINE, "lora", 3, 8, checkpoint=1),
        Job("6b-full-zero1", "chatglm3-6b", "full", 1, 4, checkpoint=1),
        Job("6b-full-zero2", "chatglm3-6b", "full", 2, 4, checkpoint=1),
        Job("9b-full-zero1", NINE, "full", 1, 2, checkpoint=1),
        Job("9b-full-zero2", NINE, "full", 2, 2, checkpoint=1),
        Job("tiny-lora", "tiny", "lora", 2, 2, length=32),
        Job("tiny-full", "tiny", "full", 3, 2, length=32, checkpoint=1),
    )
}
TARGETS = ("query_key_value",)


def model_config(shape: str):
    """The configuration of a shape."""
    from glmforge.models.glm.configuration import ChatGLM2Config

    return ChatGLM2Config(**ALL_SHAPES[shape])


def planned_gib(job: Job, world_size: int, accumulation: int) -> float:
    """The memory account's peak a rank, GiB."""
    from glmforge.plan.memory import account
    from glmforge.plan.shape import shape_of
    from glmforge.plan.workload import Workload

    work = Workload(
        method=job.method,
        precision=job.precision,
        world_size=world_size,
        zero_stage=job.stage,
        micro_batch=job.rows,
        accumulation=accumulation,
        row_tokens=job.length,
        checkpointing=job.checkpoint > 0,
        lora_targets=TARGETS if job.method == "lora" else (),
        lora_dropout=job.dropout,
    )
    return account(shape_of(model_config(job.shape)), work).peak_gib


def engine_of(job: Job, sizes, ranks):
    """The job's model on its engine, as train/prepare.py builds it."""
    from glmforge.adapters import LoraSettings, add_lora
    from glmforge.models import new_model
    from glmforge.models.layers import checkpoint_layers, compile_layers
    from glmforge.plan.deepspeed_config import EngineSettings, write_config
    from glmforge.train.engine import OptimizerSettings, build_engine, torch_dtype

    torch.manual_seed(0)
    with ranks.device:
        model = new_model(model_config(job.shape), dtype=torch_dtype(job.precision))
    if job.method == "lora":
        settings = {"r": 8, "lora_alpha": 32, "lora_dropout": job.dropout}
        model = add_lora(model, LoraSettings(**settings, target_modules=TARGETS))
        model = model.to(ranks.device)
    if job.checkpoint:
        checkpoint_layers(model, every=job.checkpoint)
    if ranks.device.type == "cuda":
        compile_layers(model)
    config = write_config(
        EngineSettings(sizes=sizes, precision=job.precision, max_grad_norm=1.0),
        {"zero_optimization": {"stage": job.stage}},
    )
    adam = {"learning_rate": 1e-4, "betas": (0.9, 0.999), "epsilon": 1e-8, "weight_decay": 0.01}
    return model, config, build_engine, OptimizerSettings(**adam)


def order_of(job: Job, global_batch: int, steps: int, vocabulary: int):
    """Rows of random ids: the same rows in the same step whatever the number of ranks."""
    import numpy as np

    from glmforge.data import BatchPlan, Example, unpacked

    draw = np.random.default_rng(0)
    examples = []
    for number in range(global_batch * steps):
        ids = draw.integers(2, vocabulary, job.length).astype(np.int32)
        examples.append(Example(input_ids=ids, labels=ids.copy(), source=str(number)))
    return BatchPlan(examples, unpacked(len(examples)), global_batch=global_batch, seed=0)


def timed_step(engine, batches, ranks) -> tuple[float, float]:
    """Do one step; return the loss of all ranks and the seconds of the slowest."""
    from glmforge.train.loop import train_step

    _wait(ranks)
    mark = time.perf_counter()
    share, _ = train_step(engine, batches, 1e-4, ranks)
    _wait(ranks)
    rows = ranks.gather_floats([share, time.perf_counter() - mark])
    return sum(row[0] for row in rows), max(row[1] for row in rows)


def communication_seconds(engine, batches, ranks) -> float:
    """Seconds of one more step in collectives, waiting included: of the rank that waits least."""
    from torch.profiler import ProfilerActivity, profile

    on_gpu = ranks.device.type == "cuda"
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    with profile(activities=[activity]) as found:
        timed_step(engine, batches, ranks)
    total = 0.0
    for event in found.key_averages():
        if "nccl" in event.key.lower() and on_gpu:
            total += event.self_device_time_total
        elif event.key.startswith("gloo:"):
            total += event.cpu_time_total
    return min(row[0] for row in ranks.gather_floats([total / 1e6]))


def _wait(ranks) -> None:
    if ranks.device.type == "cuda":
        torch.cuda.synchronize()


def work(args: argparse.Namespace) -> None:
    """Train the job's steps (going on from --resume), measure, and print one line."""
    from glmforge.distributed.collectives import process_group
    from glmforge.distributed.env import read_world
    from glmforge.distributed.zero import deepspeed_running
    from glmforge.train.metrics import peak_gib

    job = JOBS[args.job]
    with process_group(read_world()) as ranks, deepspeed_running():
        accumulation = args.global_batch // (job.rows * ranks.world_size)
        engine, progress, found = begin(job, accumulation, args.resume, ranks)
        order = order_of(job, args.global_batch, args.total_steps, engine.module.config.vocab_size)
        options = {"micro_batch": job.rows, "accumulation": accumulation, "pad_to": job.length}
        place = {"rank": ranks.rank, "world_size": ranks.world_size}
        losses, seconds = [], []
        for step in range(progress.step, progress.step + args.steps):
            batches = order.rank_batches(0, step, **place, **options)
            loss, spent = timed_step(engine, batches, ranks)
            losses.append(loss)
            seconds.append(spent)
        progress.step += args.steps
        quick = min(seconds[MEASURED_AFTER:] or seconds)
        tokens = args.global_batch * job.length
        found |= {
            "job": job.name,
            "world_size": ranks.world_size,
            "accumulation": accumulation,
            "losses": losses,
            "step_seconds": quick,
            "steps_seconds": seconds,
            "tokens_per_step": tokens,
            "tokens_per_second": tokens / quick,
            "peak_gib": max(row[0] for row in ranks.gather_floats([peak_gib(ranks.device)])),
            "planned_gib": planned_gib(job, ranks.world_size, accumulation),
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        }
        if args.save is not None:
            found |= saved(job, engine, progress, args.save, ranks)
        if args.profile:
            found["communication_seconds"] = communication_seconds(engine, batches, ranks)
        if ranks.is_main:
            print("RESULT", json.dumps(found), flush=True)


def begin(job: Job, accumulation: int, resume: Path | None, ranks):
    """Return the engine, where it stands, and how long it took to load what it goes on from."""
    from glmforge.plan.batch import BatchSizes
    from glmforge.train.resume import find_start, load_start
    from glmforge.train.state import Progress

    sizes = BatchSizes(micro_batch=job.rows, accumulation=accumulation, world_size=ranks.world_size)
    model, config, build_engine, adam = engine_of(job, sizes, ranks)
    start = find_start(resume, ranks) if resume is not None else None
    if start is not None:
        config = config | start.engine_keys(ranks)
    engine = build_engine(model, config, adam)
    progress, found = Progress(), {}
    if start is not None:
        mark = time.perf_counter()
        progress = load_start(engine, start, ranks, exclude_frozen=job.method == "lora", seed=0)
        found["resume_seconds"] = time.perf_counter() - mark
    if ranks.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    return engine, progress, found


def saved(job: Job, engine, progress, folder: Path, ranks) -> dict[str, float]:
    """Write a checkpoint as training does; return seconds and GiB."""
    from glmforge.train.saving import Saver

    saver = Saver(
        engine=engine,
        directory=folder / "checkpoints",
        ranks=ranks,
        exclude_frozen=job.method == "lora",
        keep_last=1,
        write_extras=lambda _: None,
        next_bytes=0,
    )
    mark = time.perf_counter()
    path = saver.save(progress, is_best=False, wait=True)
    seconds = time.perf_counter() - mark
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return {"save_seconds": seconds, "checkpoint_gib": size / 2**30}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", choices=sorted(JOBS))
    parser.add_argument("--global-batch", type=int, required=True, help="rows a step, all ranks")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--total-steps", type=int, default=16, help="steps there are rows for")
    parser.add_argument("--save", type=Path, help="directory that a checkpoint is written to")
    parser.add_argument("--resume", type=Path, help="the same: go on from its newest")
    parser.add_argument("--profile", action="store_true")
    work(parser.parse_args())


if __name__ == "__main__":
    main()
