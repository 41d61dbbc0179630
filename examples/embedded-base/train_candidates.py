"""Train candidates of the embedded base side by side on one GPU, inside a given number of seconds.

    python train_candidates.py OUT --data DIR --shapes base wide --seconds 500

DIR holds what carry.py unpacked. A short run of all candidates at once measures their speed, from
which both stages' numbers of steps follow (the same tokens for all); then each goes through both
stages by `glmforge train`. OUT gets report.json and, for each candidate, its weights in fp16, and
stage 1's where there is one candidate: --prose-weights then tries another stage 2 alone.
"""

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROW_TOKENS = 512
WARMUP_STEPS = 150
RESERVE_SECONDS = 130  # starts, compilation, evaluations, weights out
STOP_IDS = [2, 8006, 8008]  # </s>, <|user|>, <|observation|> of an 8,000-piece vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One candidate: its name, its share of the work folder, the GPU that it runs on."""

    shape: str
    data: Path
    work: Path
    gpu: int

    @property
    def model(self) -> Path:
        return self.work / self.shape / "model"

    def make_model(self) -> None:
        """Put shape and vocabulary into one directory, as `model.from_scratch` wants them."""
        self.model.mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / "shapes" / f"{self.shape}.json", self.model / "config.json")
        for name in ("tokenizer.model", "tokenizer_config.json"):
            shutil.copy(self.data / name, self.model / name)
        values = {"do_sample": False, "eos_token_id": STOP_IDS, "pad_token_id": 0}
        (self.model / "generation_config.json").write_text(json.dumps(values), encoding="utf-8")

    def train(self, stage: str, run: str, *settings: str, init_from: Path | None = None) -> Path:
        """One run of the product; its last lines are shown where it fails."""
        directory = self.work / self.shape / run
        config = self.work / f"{stage}.yaml"
        command = [sys.executable, "-m", "glmforge", "train", str(config)]
        command += [f"model.model_name_or_path={self.model}", f"training.output_dir={directory}"]
        command += [f"data.prepared_dir={self.work / 'prepared'}", *settings]
        command += ["--init-from", str(init_from)] if init_from else []
        call(command, self.gpu, directory.with_suffix(".log"))
        return directory

    def report(self, run: Path) -> dict[str, Any]:
        """Tokens, speed, losses and perplexities of a run."""
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        steps = [row for row in rows if row["kind"] == "train"]
        every = len(steps) // 40 + 1
        evals = [(row["step"], row["eval_loss"]) for row in rows if row["kind"] == "eval"]
        return {
            "steps": len(steps),
            "tokens": sum(row["trained_tokens"] for row in steps),
            "tokens_per_second": round(speed(steps)),
            "seconds": round(sum(row["step_seconds"] for row in steps), 1),
            "data_seconds": round(sum(row["data_seconds"] for row in steps), 1),
            "loss_curve": [(row["step"], round(row["loss"], 3)) for row in steps[::every]],
            "perplexity_curve": [(step, round(math.exp(loss), 2)) for step, loss in evals],
            "peak_gib": max(row["peak_gib"] for row in steps),
        }  # fmt: skip


def environment(gpu: int) -> dict[str, str]:
    """The environment of a command on one GPU; -1 is none."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "4",
        **({"CUDA_VISIBLE_DEVICES": str(gpu)} if gpu >= 0 else {}),
    }


def call(command: list[str], gpu: int, log: Path) -> None:
    """Run a command on one GPU with its output in a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    env = environment(gpu)
    with log.open("w") as out:
        status = subprocess.run(command, stdout=out, stderr=out, env=env, check=False).returncode
    if status:
        sys.exit(f"{' '.join(command)}\nexit status {status}:\n{log.read_text()[-3000:]}")


def speed(steps: list[dict[str, Any]]) -> float:
    """Median tokens a second of the steps after compilation."""
    return statistics.median(row["tokens_per_second"] for row in steps[len(steps) // 2 :])


def write_configs(data: Path, work: Path) -> None:
    """Both stages' configs with the data's place in them."""
    work.mkdir(parents=True, exist_ok=True)
    for stage in ("prose", "chat"):
        text = (HERE / f"{stage}.yaml").read_text(encoding="utf-8")
        (work / f"{stage}.yaml").write_text(text.replace("DATA/", f"{data}/"), encoding="utf-8")


def planned_steps(tokens: float, rows: list[int], chat_share: float) -> tuple[int, int]:
    """Steps of both stages for so many tokens, with so many rows a step of each."""
    prose, chat = tokens * (1 - chat_share), tokens * chat_share
    return (
        max(20, int(prose / (rows[0] * ROW_TOKENS))),
        max(20, int(chat / (rows[1] * ROW_TOKENS))),
    )


def stage_settings(steps: int, rows: int, looks: int) -> list[str]:
    """What the measured speed decides about a stage."""
    return [
        f"training.max_steps={steps}",
        f"training.eval_steps={math.ceil(steps / looks)}",
        f"training.warmup_steps={min(WARMUP_STEPS, steps // 10)}",
        f"training.per_device_train_batch_size={rows}",
    ]


def both_stages(job: Job, steps: tuple[int, int], args: argparse.Namespace) -> dict[str, Any]:
    """Train one candidate and write its weights; stage 1's too where there is one candidate."""
    found: dict[str, Any] = {}
    start = args.prose_weights
    if start is None:
        first = job.train("prose", "prose", *stage_settings(steps[0], args.rows[0], 5), *args.set)
        start = newest(first)
        found["prose"] = job.report(first)
        if len(args.shapes) == 1:
            write_weights(job, start, f"{job.shape}-prose", args.out)
    settings = [*stage_settings(steps[1], args.rows[1], looks=3), *args.set]
    second = job.train("chat", "chat", *settings, init_from=start)
    kept = write_weights(job, newest(second), job.shape, args.out)
    found |= {"chat": job.report(second), "samples": samples(second)}
    (args.out / f"{job.shape}.json").write_text(json.dumps(found, ensure_ascii=False, indent=1))
    found["prose_after_chat"] = prose_perplexity(job, kept)
    return found


def write_weights(job: Job, checkpoint: Path, name: str, out: Path) -> Path:
    """Write a checkpoint's weights in fp16, in files below 15 MiB; return the model directory."""
    kept = job.work / job.shape / f"{name}-fp16"
    command = [sys.executable, "-m", "glmforge", "consolidate", str(checkpoint), str(kept)]
    command += ["--dtype", "fp16", "--max-shard-size", "14MB"]
    call(command, job.gpu, kept.with_suffix(".log"))
    shards = sorted(kept.glob("*.safetensors"))
    for number, shard in enumerate(shards, 1):
        shutil.copy(shard, out / f"{name}-{number}-of-{len(shards)}.safetensors")
    return kept


def prose_perplexity(job: Job, model: Path) -> float | None:
    """Perplexity of held-out prose; None where it cannot be measured (the log says why)."""
    command = [sys.executable, "-m", "glmforge", "evaluate", str(model), "--data"]
    command += [str(job.data / "prose_held_out.jsonl"), "--max-length", "512"]
    command += ["--num-prompts", "0", "--batch-size", "64", "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment(job.gpu), check=False
    )
    if done.returncode:
        print(done.stderr[-1000:], file=sys.stderr)
        return None
    return round(math.exp(json.loads(done.stdout)["loss"]), 2)


def newest(run: Path) -> Path:
    """The last checkpoint of a run: its weights in fp32."""
    return max((run / "checkpoints").glob("step-*"), key=lambda path: int(path.name[5:]))


def samples(run: Path) -> list[dict[str, Any]]:
    """The answers of the last evaluation."""
    rows = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    last = max(row["step"] for row in rows)
    return [{"prompt": r["prompt"], "answer": r["answer"]} for r in rows if r["step"] == last]


def main(args: argparse.Namespace) -> None:
    began = time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    work = args.work.resolve()
    data = args.data.resolve()
    write_configs(data, work)
    gpus = [number % args.gpus if args.gpus else -1 for number in range(len(args.shapes))]
    jobs = [Job(shape=s, data=data, work=work, gpu=g) for s, g in zip(args.shapes, gpus)]
    for job in jobs:
        job.make_model()
    kept = f"data.prepared_dir={work / 'prepared'}"
    for stage in ("prose", "chat"):
        call([sys.executable, "-m", "glmforge", "data", "prepare", str(work / f"{stage}.yaml"),
              f"model.model_name_or_path={jobs[0].model}", kept],
             gpus[0], work / f"prepare-{stage}.log")  # fmt: skip
    print(f"prepared at {time.monotonic() - began:.0f} s", flush=True)
    with ThreadPoolExecutor(len(jobs)) as pool:
        probe = [*stage_settings(args.probe_steps, args.rows[0], looks=1), *args.set]
        probe = [line for line in probe if "eval_steps" not in line] + ["data.validation=null"]
        runs = list(pool.map(lambda job: job.train("prose", "probe", *probe), jobs))
        speeds = [job.report(run)["tokens_per_second"] for job, run in zip(jobs, runs)]
        share = args.chat_share if args.prose_weights is None else 1.0
        left = max(0, args.seconds - (time.monotonic() - began) - args.reserve)
        steps = planned_steps(min(args.tokens, min(speeds) * left), args.rows, share)
        print(f"probed at {time.monotonic() - began:.0f} s: {speeds} tokens/s; "
              f"{steps} steps in {left:.0f} s", flush=True)  # fmt: skip
        running = [pool.submit(both_stages, job, steps, args) for job in jobs]
        found = {job.shape: done.result() for job, done in zip(jobs, running)}
    report = {"seconds": round(time.monotonic() - began), "probe": speeds, "candidates": found}
    text = json.dumps(report, ensure_ascii=False, indent=1)
    (args.out / "report.json").write_text(text + "\n", encoding="utf-8")
    print(text)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("build/embedded-base"))
    parser.add_argument("--shapes", nargs="+", default=["base"])
    parser.add_argument("--seconds", type=float, default=500, help="for everything")
    parser.add_argument("--reserve", type=float, default=RESERVE_SECONDS)
    parser.add_argument("--tokens", type=float, default=400e6, help="at most, both stages")
    parser.add_argument("--rows", type=int, nargs=2, default=[128, 64], help="a step, each stage")
    parser.add_argument("--probe-steps", type=int, default=30)
    parser.add_argument("--chat-share", type=float, default=0.2, help="of the tokens")
    parser.add_argument("--prose-weights", type=Path, help="stage 1 is done: its model directory")
    parser.add_argument("--gpus", type=int, default=1, help="0 is the CPU")
    parser.add_argument("--set", nargs="*", default=[], help="further settings, section.name=value")
    return parser.parse_args()


if __name__ == "__main__":
    main(arguments())
