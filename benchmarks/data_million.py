"""Preparing a million dialogues: memory, and going on after a kill in the middle.

``python benchmarks/data_million.py MODEL_DIR dialogues.jsonl [DIALOGUES] [WORKERS]`` writes
distinct copies of the dialogues, starts ``prepare`` in a process, kills that with SIGKILL when half
of the parts are there, starts it again, and then splits and packs the set. Prints one JSON line
with the highest memory of any process and of all together (resident, GiB).
"""

import argparse
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from data_throughput import write_copies

KIB_A_GIB = 2**20
RUN = "import sys; from data_million import prepare_here; prepare_here(*sys.argv[1:])"


def prepare_here(path: str, model: str, root: str, workers: str) -> None:
    """Prepare in this process, then do with the set what a run does before training."""
    from glmforge.data import BatchPlan, pack
    from glmforge.data.preparing import PrepareSettings, prepare
    from glmforge.data.splitting import hold_out
    from glmforge.models import load_tokenizer

    make = functools.partial(load_tokenizer, model)
    found = prepare(path, make, root, PrepareSettings(max_length=2048), workers=int(workers))
    prepared = time.time()
    split = hold_out([found], 500)
    rows = pack(split.train[0].lengths, 2048, 42)
    plan = BatchPlan(split.train[0], rows, global_batch=16, seed=42)
    plan.rank_batches(0, 0, rank=0, world_size=1, micro_batch=16, accumulation=1)
    values = {
        "records": found.counts.records,
        "tokens": found.counts.total_tokens,
        "rows": len(rows),
        "seconds_to_first_batch": round(time.time() - prepared, 1),
    }
    print(json.dumps(values))


def processes_under(pid: int) -> set[int]:
    """A process and all its descendants."""
    found = {pid}
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            if int(child) not in found:
                found |= processes_under(int(child))
    return found


def memory_of(pid: int) -> list[float]:
    """Resident memory of a process and of its descendants, GiB each; file pages excluded."""
    found = []
    try:
        for process in processes_under(pid):
            lines = Path(f"/proc/{process}/status").read_text().splitlines()
            kib = next((line.split()[1] for line in lines if line.startswith("RssAnon")), "0")
            found.append(int(kib) / KIB_A_GIB)
    except OSError:
        return found  # one has just ended
    return found


def watch(command: list[str], stop: Path | None, parts: int) -> tuple[int, float, float, str]:
    """Run a command; kill it when ``parts`` parts are in ``stop``. Code, memories, output."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    largest = together = 0.0
    while process.poll() is None:
        memories = memory_of(process.pid) or [0.0]
        largest, together = max(largest, *memories), max(together, sum(memories))
        if stop is not None and len(list(stop.rglob("part-*.json"))) >= parts:
            process.send_signal(signal.SIGKILL)
        time.sleep(0.2)
    assert process.stdout is not None
    return process.returncode, largest, together, process.stdout.read()


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("source", type=Path)
    parser.add_argument("dialogues", type=int, nargs="?", default=1_000_000)
    parser.add_argument("workers", nargs="?", default="2")
    args = parser.parse_args()
    model, source, workers = args.model, args.source, args.workers
    copies = args.dialogues // len(source.read_text(encoding="utf-8").splitlines())
    os.chdir(Path(__file__).parent)
    with tempfile.TemporaryDirectory() as folder:
        path, root = Path(folder) / "dialogues.jsonl", Path(folder) / "sets"
        write_copies(source, path, copies)
        size = path.stat().st_size
        command = [sys.executable, "-c", RUN, str(path), model, str(root), workers]
        start = time.perf_counter()
        killed, *_ = watch(command, root, size // (8 << 20))
        middle = time.perf_counter()
        made = {part.name: part.stat().st_mtime_ns for part in root.rglob("part-*.arrow")}
        code, largest, together, out = watch(command, None, 0)
        end = time.perf_counter()
        kept = [p for p in root.rglob("part-*.arrow") if made.get(p.name) == p.stat().st_mtime_ns]
        values = {
            "file_gib": round(size / 2**30, 2),
            "killed_with": killed,
            "parts_at_the_kill": len(made),
            "parts_kept": len(kept),
            "parts": len(list(root.rglob("part-*.arrow"))),
            "exit": code,
            "seconds": [round(middle - start, 1), round(end - middle, 1)],
            "largest_process_gib": round(largest, 2),
            "all_processes_gib": round(together, 2),
            "load_average": os.getloadavg()[0],
            **json.loads(out or "{}"),
        }
        print(json.dumps(values))


if __name__ == "__main__":
    main()
