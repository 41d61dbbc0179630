"""Planned against measured peak memory, one fresh process a point, on one GPU.

    python benchmarks/memory_points.py OUT.jsonl [--seconds 460] [--only WORD] [--jobs 4]

Real shapes with random weights made on the GPU; two optimizer steps each; the measured peak is
torch's max_memory_allocated. Points run side by side as long as their planned memory fits, the
large ones alone. A line is written when a point ends; points that OUT.jsonl has are not run again,
so that a call that ran out of time goes on where it stopped. Prints the table of docs/memory.md.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

GIB = 2**30
EVERY_LINEAR = ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h")


@dataclass(frozen=True)
class Point:
    """One configuration; `rows` of `length` tokens in a forward pass."""

    name: str
    shape: str = "chatglm3-6b"
    method: str = "lora"
    stage: int = 2
    rows: int = 8
    length: int = 2048
    checkpoint: int = 0
    compiled: bool = True
    dropout: float = 0.1
    packed: bool = False
    targets: tuple[str, ...] = ("query_key_value",)
    offload: bool = False
    eight_bit: bool = False
    trained_layers: int = 0
    extra: dict = field(default_factory=dict)


NINE = "glm-4-9b-chat"
POINTS = (
    Point("6B LoRA", dropout=0.0),
    Point("6B LoRA, dropout"),
    Point("6B LoRA, packed", packed=True),
    Point("6B LoRA, packed, checkpointing", packed=True, checkpoint=1),
    Point("6B LoRA, 1 row", rows=1),
    Point("6B LoRA, rows of 4096", rows=4, length=4096),
    Point("6B LoRA, 16 rows, checkpointing", rows=16, checkpoint=1),
    Point("6B LoRA, every 2nd layer checkpointed", checkpoint=2),
    Point("6B LoRA on all linear layers", rows=4, targets=EVERY_LINEAR),
    Point("6B LoRA, ZeRO-0", rows=4, stage=0),
    Point("6B LoRA, ZeRO-3", rows=4, stage=3),
    Point("6B LoRA, ZeRO-3, checkpointing", rows=4, stage=3, checkpoint=1),
    Point("6B LoRA, plain path", rows=4, compiled=False),
    Point("6B LoRA, plain path, checkpointing", compiled=False, checkpoint=1),
    Point("9B LoRA", NINE, rows=4),
    Point("9B LoRA, 1 row", NINE, rows=1),
    Point("9B LoRA, checkpointing", NINE, checkpoint=1),
    Point("9B LoRA, plain path", NINE, rows=2, compiled=False),
    Point("9B LoRA, ZeRO-3, checkpointing", NINE, rows=2, stage=3, checkpoint=1),
    Point("6B QLoRA, checkpointing", method="qlora", compiled=False, checkpoint=1),
    Point("9B QLoRA, checkpointing", NINE, "qlora", rows=4, compiled=False, checkpoint=1),
    Point("6B last 4 layers", method="freeze", rows=4, trained_layers=4),
    Point("1.5B full, ZeRO-1, checkpointing", "glm-1.5b", "full", 1, checkpoint=1),
    Point("1.5B full, ZeRO-2", "glm-1.5b", "full", 2),
    Point("1.5B full, ZeRO-3, checkpointing", "glm-1.5b", "full", 3, checkpoint=1),
    Point("3B full, ZeRO-2, checkpointing", "glm-3b", "full", 2, checkpoint=1),
    Point("3B full, ZeRO-3", "glm-3b", "full", 3, rows=4),
    Point("3B LoRA, ZeRO-1", "glm-3b", stage=1),
    Point("1.5B LoRA, ZeRO-3", "glm-1.5b", stage=3),
    Point("6B full, ZeRO-0, checkpointing", method="full", stage=0, rows=2, checkpoint=1),
    Point("6B full, ZeRO-2, checkpointing", method="full", rows=1, checkpoint=1),
    Point("6B full, ZeRO-3, checkpointing", method="full", stage=3, rows=1, checkpoint=1),
    Point("6B full, 8-bit AdamW", method="full", rows=2, checkpoint=1, eight_bit=True),
    Point("1.5B full, offload", "glm-1.5b", "full", 2, checkpoint=1, offload=True),
    Point("3B full, ZeRO-3, offload", "glm-3b", "full", 3, rows=4, checkpoint=1, offload=True),
)


def model_config(shape: str):
    """The configuration of a shape of random_checkpoint.py."""
    from random_checkpoint import SHAPES

    from glmforge.models.glm.configuration import ChatGLM2Config

    return ChatGLM2Config(**SHAPES[shape])


def engine_config(point: Point) -> dict:
    """The DeepSpeed config that training would write."""
    from glmforge.plan.batch import BatchSizes
    from glmforge.plan.deepspeed_config import EngineSettings, write_config

    sizes = BatchSizes(micro_batch=point.rows, accumulation=1, world_size=1)
    zero: dict = {"stage": point.stage}
    if point.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": False}
    settings = EngineSettings(sizes=sizes, precision="bf16", max_grad_norm=1.0)
    return write_config(settings, {"zero_optimization": zero})


def planned(point: Point):
    """The account of a point."""
    from glmforge.plan.memory import account
    from glmforge.plan.request import kernel_repeats_heads
    from glmforge.plan.shape import shape_of
    from glmforge.plan.workload import Workload

    low_rank = point.method in ("lora", "qlora")
    work = Workload(
        method=point.method,
        zero_stage=point.stage,
        offload_optimizer=point.offload,
        micro_batch=point.rows,
        row_tokens=point.length,
        checkpointing=point.checkpoint > 0,
        checkpoint_every=max(1, point.checkpoint),
        compiled=point.compiled,
        packed=point.packed,
        repeats_heads=point.packed and kernel_repeats_heads(),
        lora_targets=point.targets if low_rank else (),
        lora_dropout=point.dropout if low_rank else 0.0,
        trained_layers=point.trained_layers,
        eight_bit=point.eight_bit,
    )
    return account(shape_of(model_config(point.shape)), work)


def quantise(model) -> None:
    """Put 4-bit linear layers in place of those of the decoder layers, as QLoRA loads them."""
    import bitsandbytes as bnb

    from glmforge.models.layers import decoder_layers

    for layer in decoder_layers(model):
        for path, linear in list(layer.named_modules()):
            if not isinstance(linear, torch.nn.Linear):
                continue
            parent, _, name = path.rpartition(".")
            small = bnb.nn.Linear4bit(
                linear.in_features,
                linear.out_features,
                bias=linear.bias is not None,
                compute_dtype=torch.bfloat16,
                compress_statistics=True,
                quant_type="nf4",
            )
            small.weight = bnb.nn.Params4bit(
                linear.weight.data.cpu(),
                requires_grad=False,
                compress_statistics=True,
                quant_type="nf4",
            )
            small.bias = linear.bias
            setattr(layer.get_submodule(parent), name, small.to("cuda"))


def build(point: Point):
    """The model of a point, as train/prepare.py makes it."""
    from glmforge.adapters import LoraSettings, add_lora
    from glmforge.models import new_model
    from glmforge.models.layers import checkpoint_layers, compile_layers, train_last_layers

    with torch.device("cuda"):
        model = new_model(model_config(point.shape), dtype=torch.bfloat16)
    if point.method == "qlora":
        quantise(model)
    if point.method in ("lora", "qlora"):
        lora = LoraSettings(
            r=8, lora_alpha=32, lora_dropout=point.dropout, target_modules=point.targets
        )
        model = add_lora(model, lora).to("cuda")
    elif point.method == "freeze":
        train_last_layers(model, point.trained_layers)
    if point.checkpoint:
        checkpoint_layers(model, every=point.checkpoint)
    if point.compiled:
        compile_layers(model)
    return model


def batches_of(point: Point, vocabulary: int):
    """Two steps of rows of random ids, every token trained; packed rows hold seven documents."""
    import numpy as np

    from glmforge.data import BatchPlan, Example

    rows_needed, pieces = 2 * point.rows, 7 if point.packed else 1
    draw = np.random.default_rng(0)
    examples, rows = [], []
    for number in range(rows_needed):
        lengths = [point.length // pieces] * (pieces - 1)
        lengths.append(point.length - sum(lengths))
        rows.append(tuple(range(len(examples), len(examples) + pieces)))
        for length in lengths:
            ids = draw.integers(2, vocabulary, length).astype(np.int32)
            examples.append(Example(input_ids=ids, labels=ids.copy(), source=str(number)))
    order = BatchPlan(examples, rows, global_batch=point.rows, seed=0, packed=point.packed)
    options = {"rank": 0, "world_size": 1, "micro_batch": point.rows, "accumulation": 1}
    return [order.rank_batches(0, step, **options, pad_to=point.length) for step in range(2)]


def measure(point: Point) -> dict:
    """Do two steps and return the peak, and the peaks of building and of the second step."""
    from glmforge.distributed.collectives import process_group
    from glmforge.distributed.env import read_world
    from glmforge.distributed.zero import deepspeed_running
    from glmforge.train.engine import OptimizerSettings, build_engine

    phases, peak = {}, 0.0

    def mark(name: str) -> None:
        nonlocal peak
        torch.cuda.synchronize()
        phases[name] = round(torch.cuda.max_memory_allocated() / GIB, 3)
        peak = max(peak, torch.cuda.max_memory_allocated() / GIB)
        torch.cuda.reset_peak_memory_stats()

    with process_group(read_world()) as ranks, deepspeed_running():
        model = build(point)
        vocabulary = model.config.vocab_size
        adam = OptimizerSettings(
            learning_rate=1e-4,
            betas=(0.9, 0.999),
            epsilon=1e-8,
            weight_decay=0.01,
            eight_bit=point.eight_bit,
        )
        engine = build_engine(model, engine_config(point), adam)
        mark("build")
        engine.train()
        for batches in batches_of(point, vocabulary):
            (batch,) = batches.micro_batches
            inputs = batch.to(ranks.device).model_inputs()
            loss = engine(**inputs, num_items_in_batch=1.0).loss
            mark("forward")
            engine.backward(loss * (1.0 / batches.trained_tokens), scale_wrt_gas=False)
            mark("backward")
            engine.step()
            mark("update")
    return {
        "measured_gib": round(peak, 3),
        "phases": phases,
        "reserved_gib": round(torch.cuda.max_memory_reserved() / GIB, 3),
        "loss": round(float(loss.detach()) / batches.trained_tokens, 4),
    }


def run_point(name: str) -> None:
    """Measure one point in this process and print one JSON line."""
    point = next(p for p in POINTS if p.name == name)
    try:
        found = measure(point)
    except torch.OutOfMemoryError as error:
        found = {"out_of_memory": str(error).splitlines()[0][:200]}
    except ImportError as error:
        found = {"skipped": str(error)[:200]}
    print("RESULT", json.dumps(found), flush=True)


def line_of(point: Point, plan, output: str, seconds: float) -> dict:
    """One line of the results."""
    row = {"name": point.name, **asdict(point), "planned_gib": round(plan.peak_gib, 3)}
    row |= {"moment": plan.moment, "seconds": round(seconds, 1)}
    for line in reversed(output.splitlines()):
        if line.startswith("RESULT "):
            row |= json.loads(line.removeprefix("RESULT "))
            break
    else:
        row["failed"] = output[-600:]
    if "measured_gib" in row:
        row["error_percent"] = round((row["planned_gib"] / row["measured_gib"] - 1) * 100, 2)
    return row


def run_all(out: Path, points: list[Point], seconds: float, jobs: int) -> None:
    """Run points side by side while their planned memory fits, and write each line as it comes."""
    card = torch.cuda.mem_get_info()[1] / GIB
    begin = time.monotonic()
    plans = {point.name: planned(point) for point in points}
    waiting = sorted(points, key=lambda point: -plans[point.name].needed_gib)
    waiting.sort(key=lambda point: plans[point.name].needed_gib > card)
    running: list[tuple[Point, subprocess.Popen, float, Path]] = []
    while waiting or running:
        used = sum(plans[point.name].needed_gib for point, *_ in running)
        late = time.monotonic() - begin > seconds
        for point in [] if late or len(running) >= jobs else list(waiting):
            # A plan that is a tenth too low must not make its neighbour fail.
            if running and used * 1.1 + plans[point.name].needed_gib * 1.1 > card:
                continue
            waiting.remove(point)
            log = out.with_name(f"{out.stem}-{len(waiting)}.log")
            command = [sys.executable, __file__, str(out), "--point", point.name]
            with log.open("w") as sink:
                process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT)
            running.append((point, process, time.monotonic(), log))
            break
        else:
            if not running:
                break
        for item in list(running):
            point, process, started, log = item
            spent = time.monotonic() - started
            if process.poll() is None and spent < 240:
                continue
            process.kill()
            process.wait()
            running.remove(item)
            row = line_of(point, plans[point.name], log.read_text(errors="replace"), spent)
            log.unlink()
            with out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            shown = row.get("measured_gib") or next(
                (key for key in ("out_of_memory", "skipped", "failed") if key in row), ""
            )
            print(f"{point.name}: planned {row['planned_gib']}, {shown}", flush=True)
        time.sleep(0.2)
    if waiting:
        print(f"no time left for {len(waiting)} point(s): run the same command again")


def table(out: Path) -> str:
    """The results as docs/memory.md shows them."""
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    order = {point.name: number for number, point in enumerate(POINTS)}
    lines = [
        "| point | tokens | planned GiB | measured GiB | difference |",
        "|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: order.get(row["name"], 99)):
        tokens = row["rows"] * row["length"]
        if "measured_gib" in row:
            measured, difference = f"{row['measured_gib']:.2f}", f"{row['error_percent']:+.1f} %"
        else:
            kinds = {"out_of_memory": "out of memory", "skipped": "not run", "failed": "failed"}
            measured = next((text for key, text in kinds.items() if key in row), "")
            difference = ""
        lines.append(
            f"| {row['name']} | {tokens:,} | {row['planned_gib']:.2f} | {measured} | {difference} |"
        )
    errors = [row["error_percent"] for row in rows if "error_percent" in row]
    if errors:
        within = sum(abs(error) <= 5 for error in errors)
        lines.append(
            f"\n{len(errors)} points measured, {within} within 5 %, from {min(errors):+.1f} to "
            f"{max(errors):+.1f} %"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=460)
    parser.add_argument("--only", default="", help="points whose name has this word")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--point", help=argparse.SUPPRESS)
    parser.add_argument("--plan", action="store_true", help="print what is planned, run nothing")
    args = parser.parse_args()
    if args.point:
        run_point(args.point)
        return
    done = set()
    if args.out.exists():
        rows = map(json.loads, args.out.read_text().splitlines())
        done = {row["name"] for row in rows if "failed" not in row}
    points = [p for p in POINTS if args.only in p.name and p.name not in done]
    if args.plan:
        for point in points:
            found = planned(point)
            print(f"{found.peak_gib:8.2f} {found.needed_gib:8.2f}  {point.name} ({found.moment})")
        return
    run_all(args.out, points, args.seconds, args.jobs)
    print(table(args.out))


if __name__ == "__main__":
    main()
