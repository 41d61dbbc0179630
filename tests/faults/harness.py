"""Kills ranks of small runs with -9 at random moments and goes on with --resume auto.

    python tests/faults/harness.py OUT --kills 200 [--seed 1]

Each case (ZeRO stage x method) first runs undisturbed. Then runs are killed and resumed, again and
again, until they end by themselves: their losses, samples and final weights must be bitwise those
of the undisturbed run, and none may begin again once a checkpoint exists. Half of the kills wait
for a save to be under way. The ranks are forked from a process that has imported everything, so
that an attempt costs little more than its training. Prints one JSON line.
"""

import argparse
import json
import os
import random
import shutil
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "dist"))

CASES = {
    "lora_2": {"method": "lora", "stage": 2},
    "full_2": {"method": "full", "stage": 2},
    "full_3": {"method": "full", "stage": 3},
    "full_1": {"method": "full", "stage": 1},
}
STEPS = 12
RANKS = 2


def config(root: Path, out: Path, case: str) -> dict[str, object]:
    """A run of a few seconds: checkpoints every 2 steps, evaluations in between, dropout on."""
    chosen = CASES[case]
    found: dict[str, object] = {
        "model": {"model_name_or_path": str(root / "tiny")},
        "method": chosen["method"],
        "data": {
            "train": str(root / "train.jsonl"),
            "validation": str(root / "validation.jsonl"),
            "max_length": 128,
        },
        "training": {
            "output_dir": str(out),
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 2,
            "learning_rate": 5e-3,
            "max_steps": STEPS,
            "save_steps": 2,
            "eval_steps": 3,
            "save_total_limit": 2,
        },
        "generation": {"max_new_tokens": 4, "num_prompts": 1},
        "deepspeed": {"zero_optimization": {"stage": chosen["stage"]}},
    }
    return found


def make_inputs(root: Path) -> None:
    """The tiny model and the dialogues of tests/dist, written once."""
    import torch.distributed as dist
    from cases import dialogues, tiny_model

    root.mkdir(parents=True)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    tiny_model(root)
    lines = dialogues(root).read_text(encoding="utf-8").splitlines(keepends=True)
    (root / "validation.jsonl").write_text("".join(lines[:3]), encoding="utf-8")
    dist.destroy_process_group()


def start(settings: dict[str, object], log: Path) -> list[int]:
    """Fork the ranks of one attempt and return their process ids."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = []
    for rank in range(RANKS):
        child = os.fork()
        if child == 0:
            _be_rank(rank, port, settings, log)
        children.append(child)
    return children


def _be_rank(rank: int, port: int, settings: dict[str, object], log: Path) -> None:
    os.setsid()
    output = os.open(f"{log}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(RANKS),
        "LOCAL_WORLD_SIZE": str(RANKS),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    code = 1
    try:
        import glmforge

        glmforge.train(settings, resume="auto")
        code = 0
    except BaseException:  # noqa: BLE001  (the log is read by the parent)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def reap(children: list[int]) -> list[int]:
    """Wait for all ranks and return their exit codes (negative: signal)."""
    codes = []
    for child in children:
        _, status = os.waitpid(child, 0)
        codes.append(os.waitstatus_to_exitcode(status))
    return codes


def kill_one(children: list[int], out: Path, draw: random.Random, longest: float) -> str | None:
    """Kill a rank at a random moment; None when the run ended before it came."""
    deadline = time.monotonic() + draw.uniform(0.0, longest)
    in_save = draw.random() < 0.5
    while True:
        if any(os.waitid(os.P_PID, c, os.WEXITED | os.WNOHANG | os.WNOWAIT) for c in children):
            return None
        saving = any((out / "checkpoints").glob(".tmp-step-*"))
        if time.monotonic() > deadline and (saving or not in_save):
            break
        time.sleep(0.002)
    os.kill(draw.choice(children), signal.SIGKILL)
    time.sleep(0.05)
    for child in children:  # what the launcher does once a rank is gone
        os.kill(child, signal.SIGKILL)
    return "in a save" if saving else "elsewhere"


def outcome(out: Path) -> dict[str, object]:
    """Everything that must not depend on how often a run was killed."""
    from safetensors.torch import load_file

    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    files = [*out.glob("model/*.safetensors"), *out.glob("adapter/*.safetensors")]
    weights = {key: value for file in files for key, value in load_file(file).items()}
    return {
        "steps": [row["step"] for row in rows if row["kind"] == "train"],
        "losses": [row["loss"] for row in rows if row["kind"] == "train"],
        "evals": [(row["step"], row["eval_loss"]) for row in rows if row["kind"] == "eval"],
        "samples": (out / "samples.jsonl").read_text(),
        "weights": {key: value.tolist() for key, value in sorted(weights.items())},
    }


def newest_step(out: Path) -> int:
    """Step of the newest committed checkpoint, 0 for none."""
    steps = [int(p.parent.name[5:]) for p in out.glob("checkpoints/step-*/manifest.json")]
    return max(steps, default=0)


def resumed_at(log: Path) -> int:
    """The step that the last attempt in a log went on from, 0 where it began."""
    lines = Path(f"{log}.0").read_text().splitlines()
    said = [line for line in lines if line.startswith("resumed ")]
    return int(said[-1].rsplit(" ", 1)[1]) if said else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    args = parser.parse_args()
    torch.set_num_threads(1)
    import deepspeed  # noqa: F401  (imported before the ranks are forked)
    import peft  # noqa: F401
    import tensorboard  # noqa: F401

    import glmforge.train.run  # noqa: F401

    root = args.out / "inputs"
    make_inputs(root)
    draw = random.Random(args.seed)
    expected, seconds = {}, {}
    for case in args.cases:
        begun = time.monotonic()
        straight = args.out / case / "straight"
        straight.parent.mkdir()
        codes = reap(start(config(root, straight, case), straight.with_suffix(".log")))
        assert codes == [0] * RANKS, f"{case}: the undisturbed run ended with {codes}"
        expected[case], seconds[case] = outcome(straight), time.monotonic() - begun
    result = {"kills": 0, "kills_in_saves": 0, "runs": 0, "attempts": 0, "lost": 0}
    result |= {"silent_restarts": 0, "different": 0, "seed": args.seed}
    while result["kills"] < args.kills:
        case = args.cases[result["runs"] % len(args.cases)]
        result["runs"] += 1
        one_run(args.out / case / f"run{result['runs']:03d}", root, case, draw, result,
                longest=seconds[case], expected=expected[case], most=args.kills)  # fmt: skip
    print(json.dumps(result))
    sys.exit(bool(result["lost"] or result["silent_restarts"] or result["different"]))


def one_run(
    out: Path,
    root: Path,
    case: str,
    draw: random.Random,
    result: dict[str, int],
    *,
    longest: float,
    expected: dict[str, object],
    most: int,
) -> None:
    """Kill a run up to six times, let it end, and compare it with the undisturbed one."""
    left = draw.randint(1, 6)
    settings, log = config(root, out, case), out.with_suffix(".log")
    while True:
        had = newest_step(out)
        Path(f"{log}.0").unlink(missing_ok=True)
        children = start(settings, log)
        result["attempts"] += 1
        killed = None
        if left and result["kills"] < most:
            killed = kill_one(children, out, draw, longest)
        codes = reap(children)
        if killed is not None:
            left -= 1
            result["kills"] += 1
            result["kills_in_saves"] += killed == "in a save"
        text = Path(f"{log}.0").read_text()
        if had and "eval_loss" in text and resumed_at(log) < had:
            result["silent_restarts"] += 1
            print(f"{out}: began again or went back although step {had} was saved", file=sys.stderr)
        if killed is None:
            break
    if codes != [0] * RANKS:
        result["lost"] += 1
        print(f"{out}: ended with {codes}\n{text[-2000:]}", file=sys.stderr)
        return
    found = outcome(out)
    wrong = [key for key, value in expected.items() if found[key] != value]
    if wrong:
        result["different"] += 1
        print(f"{out}: {', '.join(wrong)} differ from the undisturbed run", file=sys.stderr)
    else:
        shutil.rmtree(out)


if __name__ == "__main__":
    main()
