"""Several GPUs: one rank killed -9, the run resumed, compared bit by bit with one left alone.

    python benchmarks/killed_ranks.py OUT.jsonl --data DIALOGUES.jsonl --model DIR [--nproc 2]
        [--parts lora2,full3,unequal] [--seconds 400] [--scratch DIR]

Parts: `lora2` (LoRA, ZeRO-2), `full3` (full parameters, ZeRO-3: two checkpoints of 14 bytes a
parameter must fit in --scratch), `unequal` (ZeRO-3, answers to prompts of very unequal length in
evaluation, as many on each rank as divide badly). Each run is `glmforge train` as a user types it;
`training.deterministic` is on. Exits 1 where something is not equal.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from killed_runs import compare, outcome, rows_of, speed

STEPS, SAVE = 20, 10
KILL_AFTER = SAVE + 2


def config_of(args: argparse.Namespace, out: Path, part: str) -> dict[str, Any]:
    """The run config of a part."""
    found: dict[str, Any] = {
        "model": {"model_name_or_path": str(args.model)},
        "method": "full" if part == "full3" else "lora",
        "data": {"train": str(args.data), "max_length": args.max_length},
        "training": {
            "output_dir": str(out),
            "max_steps": STEPS,
            "save_steps": SAVE,
            "save_total_limit": 1,
            "per_device_train_batch_size": 2,
            "learning_rate": 1e-5 if part == "full3" else 1e-4,
            "logging_steps": 5,
            "deterministic": True,
        },
    }
    if part != "lora2":
        found["deepspeed"] = {"zero_optimization": {"stage": 3}}
    if part == "unequal":
        long = "请把下面的话重复一遍：" + "今天天气很好。" * 40
        prompts = ["你好", long, "Name three rivers.", "1+1=?", long[:60]]
        found["generation"] = {"prompts": prompts, "max_new_tokens": 24}
        found["training"] |= {"max_steps": 4, "save_steps": 4}
        held_out = Path(found["training"]["output_dir"]).with_suffix(".validation.jsonl")
        held_out.parent.mkdir(parents=True, exist_ok=True)
        held_out.write_bytes(Path(args.data).read_bytes() + b"\n")  # the same file is refused
        found["data"]["validation"] = str(held_out)
        found["data"] |= {"max_length": 512}
    return found


def start(config: dict[str, Any], nproc: int, *more: str) -> subprocess.Popen:
    """Begin `glmforge train`; its words go to a file beside the run."""
    out = Path(config["training"]["output_dir"])
    path = out.with_suffix(".yaml")
    path.write_text(json.dumps(config), encoding="utf-8")
    command = [sys.executable, "-m", "glmforge", "train", str(path), "--nproc", str(nproc), *more]
    with out.with_suffix(".log").open("a") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def descendants(process: int) -> Iterator[int]:
    """Its children, theirs, and so on."""
    waiting = [process]
    while waiting:
        pid = waiting.pop()
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            continue
        found = [int(child) for child in children]
        yield from found
        waiting += found


def pid_of_rank(launcher: int, rank: int) -> int | None:
    """The process of a rank, among the launcher's descendants."""
    for pid in descendants(launcher):
        with contextlib.suppress(OSError):
            if f"RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                return pid
    return None


def end(process: subprocess.Popen) -> None:
    """Kill what is left of a run: the launcher's process group, and the ranks' (each has one)."""
    if process.poll() is None:
        for pid in [process.pid, *descendants(process.pid)]:
            for kill in (os.killpg, os.kill):  # a process that leads no group is killed alone
                with contextlib.suppress(ProcessLookupError):
                    kill(pid, signal.SIGKILL)
        process.wait()


def kill_rank(process: subprocess.Popen, out: Path, rank: int, ends: float) -> int:
    """Kill a rank -9 two steps after the first save; return the launcher's exit status."""
    try:
        while time.monotonic() < ends and process.poll() is None:
            if len(rows_of(out)) >= KILL_AFTER:
                pid = pid_of_rank(process.pid, rank)
                if pid is not None:
                    os.kill(pid, signal.SIGKILL)
                    return process.wait(timeout=60)
            time.sleep(0.02)
    finally:
        end(process)
    raise RuntimeError(f"{out.name}: ended before it was killed: {last_words(out)}")


def finish(process: subprocess.Popen, out: Path, ends: float) -> None:
    """Wait for a run to end well; one that does not in time leaves no process behind."""
    try:
        code = process.wait(timeout=max(1.0, ends - time.monotonic()))
    finally:
        end(process)
    if code:
        raise RuntimeError(f"{out.name} ended with {code}: {last_words(out)}")


def last_words(out: Path) -> str:
    return out.with_suffix(".log").read_text(errors="replace")[-1500:]


def measure(args: argparse.Namespace, part: str, ends: float) -> dict[str, Any]:
    """Do one part and say what came out."""
    straight, killed = args.scratch / f"{part}-straight", args.scratch / f"{part}-killed"
    begun = time.monotonic()
    config = config_of(args, straight, part)
    config["training"]["save_steps"] = config["training"]["max_steps"]
    finish(start(config, args.nproc), straight, ends)
    found: dict[str, Any] = {"straight_seconds": round(time.monotonic() - begun, 1)}
    if part == "unequal":
        lines = (straight / "samples.jsonl").read_text(encoding="utf-8").splitlines()
        found["samples"] = len(lines)
        found["steps_with_samples"] = len({json.loads(line)["step"] for line in lines})
        return found | speed(outcome(straight))
    one = outcome(straight)
    config = config_of(args, killed, part)
    found["exit_status"] = kill_rank(start(config, args.nproc), killed, args.nproc - 1, ends)
    found["report"] = last_words(killed)[-700:]
    begun = time.monotonic()
    finish(start(config, args.nproc, "--resume", "auto"), killed, ends)
    found["resume_seconds"] = round(time.monotonic() - begun, 1)
    found["resumed"] = "resumed " in killed.with_suffix(".log").read_text(errors="replace")
    return found | compare(one, outcome(killed)) | speed(one)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--parts", type=lambda text: text.split(","), default=["lora2", "unequal"])
    parser.add_argument("--max-length", type=int, default=2048)
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--scratch", type=Path, default=Path("killed-ranks"))
    args = parser.parse_args()
    args.scratch.mkdir(parents=True, exist_ok=True)
    ends, good = time.monotonic() + args.seconds, True
    for part in args.parts:
        try:
            found = measure(args, part, ends)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            found = {"failed": str(error)}
        for left in args.scratch.glob(f"{part}-*/"):
            shutil.rmtree(left)
        good &= found.get("losses_equal", True) and found.get("weights_equal", True)
        good &= "failed" not in found
        with args.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"part": part, "nproc": args.nproc} | found) + "\n")
        print(part, json.dumps(found, ensure_ascii=False), flush=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
