"""Planned against measured peak memory, one fresh process a point, on one GPU.

    python benchmarks/memory_points.py OUT.jsonl [--seconds 460] [--only WORD] [--jobs 4]
        [--explain] [--table]

Real shapes with random weights made on the GPU; two optimizer steps each; the measured peak is
torch's max_memory_allocated. Points run side by side as long as their planned memory fits, the
large ones alone. A line is written when a point ends; points that OUT.jsonl has are not run again,
so that a call that ran out of time goes on where it stopped. Prints the table of docs/memory.md
(--table: only that). --explain adds what lies in memory at the peak of each phase.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch
from memory_cases import POINTS, Point, engine_config, model_config, planned

GIB = 2**30


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


def measure(point: Point, *, explain: bool) -> dict:
    """Do two steps and return the peak, and the peaks of building and of each step's phases."""
    from memory_trace import Watch

    from glmforge.distributed.collectives import process_group
    from glmforge.distributed.env import read_world
    from glmforge.distributed.zero import deepspeed_running
    from glmforge.plan.request import kernel_repeats_heads
    from glmforge.train.engine import OptimizerSettings, build_engine

    phases, first, peak, watch = {}, {}, 0.0, None

    def mark(name: str) -> None:
        nonlocal peak
        torch.cuda.synchronize()
        found = torch.cuda.max_memory_allocated() / GIB
        if name in phases:
            first[name] = phases[name]
        phases[name] = round(found, 3)
        peak = max(peak, found)
        if watch is not None:
            watch.mark(name)
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
        for step, batches in enumerate(batches_of(point, vocabulary)):
            if explain and step == 1:
                watch = Watch()
            (batch,) = batches.micro_batches
            inputs = batch.to(ranks.device).model_inputs()
            loss = engine(**inputs, num_items_in_batch=1.0).loss
            mark("forward")
            engine.backward(loss * (1.0 / batches.trained_tokens), scale_wrt_gas=False)
            mark("backward")
            engine.step()
            mark("update")
            value = float(loss.detach())
            del loss  # as in training: its graph holds the first layer's input
    if watch is not None:
        print("PEAKS", json.dumps(watch.peaks()), flush=True)
    return {
        "measured_gib": round(peak, 3),
        "phases": phases,
        "first_step": first,
        "repeats_heads": point.packed and kernel_repeats_heads(),
        "reserved_gib": round(torch.cuda.max_memory_reserved() / GIB, 3),
        "loss": round(value / batches.trained_tokens, 4),
    }


def run_point(name: str, *, explain: bool) -> None:
    """Measure one point in this process and print one JSON line."""
    point = next(p for p in POINTS if p.name == name)
    try:
        found = measure(point, explain=explain)
    except torch.OutOfMemoryError as error:
        found = {"out_of_memory": str(error).splitlines()[0][:200]}
    except ImportError as error:
        found = {"skipped": str(error)[:200]}
    print("RESULT", json.dumps(found), flush=True)


def line_of(point: Point, plan, output: str, seconds: float) -> dict:
    """One line of the results."""
    row = {"name": point.name, **asdict(point), "planned_gib": round(plan.peak_gib, 3)}
    row |= {"moment": plan.moment, "seconds": round(seconds, 1)}
    for line in output.splitlines():
        if line.startswith("RESULT "):
            row |= json.loads(line.removeprefix("RESULT "))
        elif line.startswith("PEAKS "):
            row["at_peaks"] = json.loads(line.removeprefix("PEAKS "))
    if not {"measured_gib", "out_of_memory", "skipped"} & set(row):
        row["failed"] = output[-1500:]
    if "measured_gib" in row:
        row["error_percent"] = round((row["planned_gib"] / row["measured_gib"] - 1) * 100, 2)
    return row


def run_all(out: Path, points: list[Point], seconds: float, jobs: int, *, explain: bool) -> None:
    """Run points side by side while their planned memory fits, and write each line as it comes."""
    card = torch.cuda.mem_get_info()[1] / GIB
    begin = time.monotonic()
    plans = {point.name: planned(point) for point in points}
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    # The large ones first, of the card's memory or the host's.
    waiting = sorted(
        points, key=lambda point: -max(plans[point.name].needed_gib, plans[point.name].host_gib)
    )
    waiting.sort(key=lambda point: plans[point.name].needed_gib > card)
    running: list[tuple[Point, subprocess.Popen, float, Path]] = []
    while waiting or running:
        used = sum(plans[point.name].needed_gib for point, *_ in running)
        host_used = sum(plans[point.name].host_gib for point, *_ in running)
        late = time.monotonic() - begin > seconds
        for point in [] if late or len(running) >= jobs else list(waiting):
            # A plan that is a tenth too low must not make its neighbour fail.
            if running and used * 1.1 + plans[point.name].needed_gib * 1.1 > card:
                continue
            if running and host_used + plans[point.name].host_gib > 0.92 * host:
                continue
            waiting.remove(point)
            log = out.with_name(f"{out.stem}-{len(waiting)}.log")
            command = [sys.executable, __file__, str(out), "--point", point.name]
            command += ["--explain"] if explain else []
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
    """The results as docs/memory.md shows them; what is planned comes from the code of today."""
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    points = {point.name: point for point in POINTS}
    order = {name: number for number, name in enumerate(points)}
    errors: list[float] = []
    lines = [
        "| point | tokens | planned GiB | measured GiB | difference |",
        "|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: order.get(row["name"], 99)):
        tokens = row["rows"] * row["length"]
        plan = planned(points[row["name"]], row.get("repeats_heads", row["packed"])).peak_gib
        if "measured_gib" in row:
            errors.append((plan / row["measured_gib"] - 1) * 100)
            measured, difference = f"{row['measured_gib']:.2f}", f"{errors[-1]:+.1f} %"
        else:
            kinds = {"out_of_memory": "out of memory", "skipped": "not run", "failed": "failed"}
            measured = next((text for key, text in kinds.items() if key in row), "")
            difference = ""
        lines.append(f"| {row['name']} | {tokens:,} | {plan:.2f} | {measured} | {difference} |")
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
    parser.add_argument("--table", action="store_true", help="print the table of OUT, run nothing")
    parser.add_argument("--explain", action="store_true", help="what lies in memory at the peaks")
    args = parser.parse_args()
    if args.point:
        run_point(args.point, explain=args.explain)
        return
    if args.table:
        print(table(args.out))
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
    run_all(args.out, points, args.seconds, args.jobs, explain=args.explain)
    print(table(args.out))


if __name__ == "__main__":
    main()
