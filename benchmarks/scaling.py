"""One job on 1, 2, 4, 8 GPUs in one call: speed, memory, communication, checkpoints, losses.

    python benchmarks/scaling.py OUT.jsonl [--jobs 6b-lora,9b-lora,6b-full,9b-full]
        [--gpus 1,2,4,8] [--largest 8] [--elastic] [--seconds 480] [--table] [--cpu]

The rows of a step are the same whatever the number of GPUs (more accumulation on fewer), so the
losses must be too. Every point is a fresh set of processes under torchrun, and a line of OUT when
it ends; points that OUT has are not run again. A point that does not fit is written as such.

--elastic: save at the largest number of GPUs, go on with half of them, save, go on with all, and
compare with the run that never stopped. --cpu: a tiny model on gloo processes, for the tests.
Prints the tables of docs/performance.md (--table: only those, with a forecast for 16 to 64 GPUs).
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from scaling_model import check_table, forecast_table
from scaling_worker import JOBS

DEFAULT = "6b-lora,9b-lora,6b-full,9b-full"
STEPS = 6


def launch(job: str, gpus: int, global_batch: int, *options: str, limit: float) -> dict:
    """Run one point and return its line."""
    worker = str(Path(__file__).with_name("scaling_worker.py"))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(gpus), worker, job, "--global-batch", str(global_batch)]
    row: dict = {"job": job, "world_size": gpus, "options": [o for o in options if "/" not in o]}
    try:
        done = subprocess.run(
            [*command, *options], capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return row | {"failed": f"not done in {limit:.0f} s"}
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return row | json.loads(line.removeprefix("RESULT "))
    if "OutOfMemoryError" in done.stderr:
        return row | {"out_of_memory": True}
    return row | {"failed": (done.stdout + done.stderr)[-1500:]}


def plain_points(args: argparse.Namespace, note, left) -> None:
    """Every job on every number of GPUs, the rows of a step the same."""
    done = {(row["job"], row["world_size"]) for row in read(args.out) if is_plain(row)}
    for job in args.jobs:
        for gpus in args.gpus:
            if (job, gpus) in done:
                continue
            if left() < 60:
                print("no time left: run the same command again")
                return
            batch = JOBS[job].rows * args.largest
            options = ["--steps", str(STEPS)] + (["--profile"] if gpus > 1 else [])
            note(launch(job, gpus, batch, *options, limit=left()) | {"kind": "plain"})


def elastic_points(args: argparse.Namespace, note, left) -> None:
    """Save on all GPUs, go on with half, go on with all; beside one run that never stopped."""
    whole, half = max(args.gpus), max(args.gpus) // 2
    for job in args.jobs:
        batch = JOBS[job].rows * whole
        folder = Path(tempfile.mkdtemp(dir=args.folder))
        legs = [
            ("undisturbed", whole, 9, False),
            ("first", whole, 3, False),
            ("fewer", half, 3, True),
            ("all again", whole, 3, True),
        ]
        for kind, gpus, steps, resumes in legs:
            options = ["--steps", str(steps)]
            if kind != "undisturbed":
                options += ["--save", str(folder)]
            if resumes:
                options += ["--resume", str(folder)]
            if left() < 60:
                print("no time left: run the same command again")
                break
            row = launch(job, gpus, batch, *options, limit=left()) | {"kind": f"elastic {kind}"}
            note(row)
            if "losses" not in row:
                break
        shutil.rmtree(folder)


def is_plain(row: dict) -> bool:
    return row.get("kind") == "plain" and "failed" not in row


def read(out: Path) -> list[dict]:
    """The lines of OUT."""
    if not out.exists():
        return []
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def largest_difference(losses: list[float], others: list[float]) -> float:
    """The largest relative difference of two runs' losses."""
    return max(abs(a / b - 1) for a, b in zip(losses, others, strict=False))


def speed_table(rows: list[dict]) -> str:
    """Speed and memory of each job, against its smallest number of GPUs."""
    lines = [
        "| job | GPUs | tokens/s | efficiency | step s | in collectives s | peak GiB | planned "
        "| losses differ by |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    plain = [row for row in rows if row.get("kind") == "plain"]
    for name in dict.fromkeys(row["job"] for row in plain):
        points = sorted((r for r in plain if r["job"] == name), key=lambda r: r["world_size"])
        first = next((row for row in points if "losses" in row), None)
        for row in points:
            if "losses" not in row or first is None:
                why = "out of memory" if row.get("out_of_memory") else "failed"
                lines.append(f"| {name} | {row['world_size']} | {why} | | | | | | |")
                continue
            share = row["tokens_per_second"] / row["world_size"]
            share /= first["tokens_per_second"] / first["world_size"]
            spent = row.get("communication_seconds")
            apart = largest_difference(row["losses"], first["losses"])
            error = row["planned_gib"] / row["peak_gib"] - 1
            lines.append(
                f"| {name} | {row['world_size']} | {row['tokens_per_second']:,.0f} | {share:.3f} "
                f"| {row['step_seconds']:.3f} | {'' if spent is None else format(spent, '.3f')} "
                f"| {row['peak_gib']:.2f} | {row['planned_gib']:.2f} ({error:+.1%}) "
                f"| {apart:.1e} |"
            )
    return "\n".join(lines)


def elastic_table(rows: list[dict]) -> str:
    """Losses of runs carried on with another number of GPUs, beside the undisturbed run."""
    lines = ["| job | leg | GPUs | checkpoint GiB | save s | resume s | losses differ by |"]
    lines.append("|---|---|---|---|---|---|---|")
    begins = {"first": 0, "fewer": 3, "all again": 6}
    whole = {row["job"]: row for row in rows if row.get("kind") == "elastic undisturbed"}
    for row in rows:
        leg = str(row.get("kind", "")).removeprefix("elastic ")
        if leg not in begins or "losses" not in row or "losses" not in whole.get(row["job"], {}):
            continue
        expected = whole[row["job"]]["losses"][begins[leg] :]
        cells = [row["job"], leg, str(row["world_size"])]
        for key, form in (("checkpoint_gib", ".2f"), ("save_seconds", ".1f")):
            cells.append(format(row[key], form) if key in row else "")
        spent = row.get("resume_seconds")
        cells.append("" if spent is None else f"{spent:.1f}")
        cells.append(f"{largest_difference(row['losses'], expected):.1e}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) if len(lines) > 2 else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", type=lambda text: text.split(","), default=DEFAULT.split(","))
    parser.add_argument(
        "--gpus", type=lambda text: [int(n) for n in text.split(",")], help="numbers of GPUs"
    )
    parser.add_argument(
        "--largest", type=int, help="GPUs that the rows of a step are for (default: most of --gpus)"
    )
    parser.add_argument("--elastic", action="store_true")
    parser.add_argument("--folder", help="where --elastic keeps its checkpoints (default: /tmp)")
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--cpu", action="store_true", help="run on gloo processes")
    args = parser.parse_args()
    there = max(args.gpus or [1]) if args.cpu else torch.cuda.device_count()
    args.gpus = args.gpus or [n for n in (1, 2, 4, 8) if n <= max(1, there)]
    args.largest = args.largest or max(args.gpus)
    unknown = [name for name in args.jobs if name not in JOBS]
    if unknown:
        parser.error(f"no job {', '.join(unknown)}; there are {', '.join(JOBS)}")
    begin = time.monotonic()

    def note(row: dict) -> None:
        with args.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        words = {key: row[key] for key in ("kind", "job", "world_size")}
        keys = ("tokens_per_second", "peak_gib", "planned_gib", "out_of_memory", "failed")
        print(json.dumps(words | {key: row[key] for key in keys if key in row}), flush=True)

    def left() -> float:
        return args.seconds - (time.monotonic() - begin)

    if not args.table:
        if max(args.gpus) > there:
            parser.error(f"--gpus {max(args.gpus)}, and this machine has {there}")
        (elastic_points if args.elastic else plain_points)(args, note, left)
    rows = read(args.out)
    tables = [table(rows) for table in (speed_table, elastic_table, check_table, forecast_table)]
    print("\n\n".join(filter(None, tables)))


if __name__ == "__main__":
    main()
