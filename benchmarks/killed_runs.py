"""Runs in processes of their own, killed -9 and resumed, and how far two runs are apart.

For resume_on_gpu.py. A worker has imported everything before its run is known (the next one gets
ready while this one trains), so that a run costs little more than its training:
`python killed_runs.py` waits for one JSON line on its standard input.
"""

import hashlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


class Runs:
    """One run after the other, until `ends` (time.monotonic())."""

    def __init__(self, scratch: Path, ends: float) -> None:
        self.scratch = scratch
        self.ends = ends
        self._spare: subprocess.Popen[str] | None = None

    def _worker(self) -> "subprocess.Popen[str]":
        command = [sys.executable, str(Path(__file__).resolve())]
        return subprocess.Popen(command, stdin=subprocess.PIPE, text=True)

    def close(self) -> None:
        """End the worker that is waiting."""
        if self._spare is not None:
            self._spare.kill()
            self._spare.wait()

    def start(self, job: dict[str, Any], log: Path) -> int:
        """Give a job to the waiting worker, and do it to the end.

        Raises:
            TimeoutError: the time of the whole call is over.
        """
        worker = self._spare or self._worker()
        assert worker.stdin is not None
        worker.stdin.write(json.dumps(job | {"log": str(log)}) + "\n")
        worker.stdin.close()
        self._spare = self._worker()
        metrics, kill_after = Path(job.get("out", ".")), job.get("kill_after")
        while True:
            code = worker.poll()
            if code is not None:
                return code
            due = kill_after is not None and len(rows_of(metrics)) >= kill_after
            late = time.monotonic() > self.ends
            if due or late:
                worker.kill()
                worker.wait()
                if late:
                    raise TimeoutError("the call's time was over")
                return -signal.SIGKILL
            time.sleep(0.01)

    def train(self, settings: dict[str, Any], *, kill_after: int | None = None) -> int:
        """Run a training to its end, or kill it once `kill_after` steps are recorded."""
        out = settings["training"]["output_dir"]
        job = {"settings": settings, "out": out, "kill_after": kill_after}
        return self.start(job, Path(out).with_suffix(".log"))

    def undisturbed(self, settings: dict[str, Any]) -> Path:
        """Let a run end by itself.

        Raises:
            RuntimeError: it failed.
        """
        out = Path(settings["training"]["output_dir"])
        if code := self.train(settings):
            raise RuntimeError(f"{out.name} ended with {code}: {tail(out)}")
        return out

    def killed(self, settings: dict[str, Any]) -> Path:
        """Kill a run -9 two steps after its first save, and resume it.

        Raises:
            RuntimeError: it ended before the kill, began again, or failed.
        """
        out = Path(settings["training"]["output_dir"])
        code = self.train(settings, kill_after=settings["training"]["save_steps"] + 2)
        if code != -signal.SIGKILL:
            raise RuntimeError(f"{out.name} was to be killed, ended with {code}: {tail(out)}")
        code = self.train(settings)
        if code or "resumed " not in out.with_suffix(".log").read_text(errors="replace"):
            raise RuntimeError(f"{out.name}: the resumed run ended with {code}: {tail(out)}")
        return out


def tail(out: Path) -> str:
    """Return the last words that a run printed."""
    log = out.with_suffix(".log")
    return log.read_text(errors="replace")[-1500:] if log.exists() else "no log"


def rows_of(out: Path) -> list[dict[str, float]]:
    """Return the recorded steps; a line that is being written is left out."""
    path = out / "metrics.jsonl"
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    rows = [json.loads(line) for line in lines if line.endswith("\n")]
    return [row for row in rows if row["kind"] == "train"]


def outcome(out: Path, *, delete: bool = True) -> dict[str, Any]:
    """Take a finished run's steps and final weights (a hash; small ones whole), and delete it."""
    import torch
    from safetensors.torch import load_file

    files = sorted([*out.glob("model/*.safetensors"), *out.glob("adapter/*.safetensors")])
    assert files, f"{out} has no final weights"
    digest = hashlib.sha256()
    for file in files:
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    flat = None
    if sum(file.stat().st_size for file in files) < 2**28:
        weights = {k: v for file in files for k, v in load_file(file).items()}
        flat = torch.cat([v.float().flatten() for _, v in sorted(weights.items())])
    found = {"rows": rows_of(out), "hash": digest.hexdigest(), "weights": flat}
    if delete:
        shutil.rmtree(out)
    return found


def compare(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Say how far two outcomes are apart: steps, losses and weights."""
    left, right = ([row["loss"] for row in run["rows"]] for run in (one, other))
    steps = [[row["step"] for row in run["rows"]] for run in (one, other)]
    found: dict[str, Any] = {
        "steps_equal": steps[0] == steps[1],
        "losses_equal": left == right,
        "weights_equal": one["hash"] == other["hash"],
        "largest_loss_difference": max((abs(a - b) for a, b in zip(left, right)), default=None),
    }
    if one["weights"] is not None:
        norm = one["weights"].norm()
        found["weight_difference"] = float((one["weights"] - other["weights"]).norm() / norm)
    return found


def speed(run: dict[str, Any]) -> dict[str, Any]:
    """Return the median tokens/s of the later half (nothing is compiled there) and the peak."""
    rows = run["rows"]
    late = [row["tokens_per_second"] for row in rows[len(rows) // 2 + 1 :]]
    return {
        "tokens_per_second": round(statistics.median(late)),
        "peak_gib": round(max(row["peak_gib"] for row in rows), 2),
    }


def three_steps(settings: dict[str, Any], reentrant: bool, path: Path) -> None:
    """Train three steps under one kind of gradient checkpointing; write losses and norms."""
    from glmforge.distributed.collectives import process_group
    from glmforge.distributed.env import read_world
    from glmforge.distributed.zero import deepspeed_running
    from glmforge.train.engine import OptimizerSettings, build_engine
    from glmforge.train.loop import train_step
    from glmforge.train.prepare import plan_run, prepare_model
    from glmforge.train.run import as_config
    from glmforge.train.state import seed_everything

    config = as_config(settings, None)
    adam = OptimizerSettings(
        learning_rate=1e-4, betas=(0.9, 0.999), epsilon=1e-8, weight_decay=0.01
    )
    found = []
    seed_everything(0)
    with process_group(read_world()) as ranks, deepspeed_running():
        plan = plan_run(config, ranks, print)
        model = prepare_model(config, plan.model, plan.precision, ranks, print, plan.engine_config)
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        if reentrant:
            model.enable_input_require_grads()
        engine = build_engine(model, plan.engine_config, adam)
        sizes = {"micro_batch": plan.sizes.micro_batch, "accumulation": plan.sizes.accumulation}
        for step in range(3):
            batches = plan.order.rank_batches(
                0, step, rank=0, world_size=1, **sizes, pad_to=config.data.max_length
            )
            found.append(train_step(engine, batches, 1e-4, ranks))
    path.write_text(json.dumps({"losses": [f[0] for f in found], "norms": [f[1] for f in found]}))


def work() -> None:
    """Import everything, wait for a job, do it."""
    import deepspeed  # noqa: F401
    import peft  # noqa: F401

    import glmforge.train.run

    line = sys.stdin.readline()
    if not line:
        return
    job = json.loads(line)
    output = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if "reentrant" in job:
        three_steps(job["settings"], job["reentrant"], Path(job["result"]))
    else:
        glmforge.train.run.train(job["settings"], resume="auto")


if __name__ == "__main__":
    work()
