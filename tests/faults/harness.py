"""Kills, damages and starves small runs at random moments, and goes on with --resume auto.

    python tests/faults/harness.py OUT --kills 200 --fills 12 [--seed 1]

Each case (ZeRO stage x method, with and without background writes) first runs undisturbed. Then
runs are killed -9 and resumed, again and again, until they end by themselves. Half of the kills
wait for a save to be under way; after each a random file of the newest checkpoint is flipped, cut,
emptied, torn or deleted, where an older one is whole. Other runs have a small disk
that is filled at a random moment (tmpfs; without the right to mount, a limit on file sizes).
Losses, samples and final weights must be bitwise those of the undisturbed run, and none may begin
again once a whole checkpoint exists. The ranks are forked from a process that has imported
everything, so that an attempt costs little more than its training. Prints one JSON line.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "dist"))
sys.path.insert(0, str(Path(__file__).parent))

from damage import damage_newest, fill, last_words, limit_files, small_disk

CASES = {
    "lora_2": {"method": "lora", "stage": 2},
    "full_2": {"method": "full", "stage": 2},
    "full_3": {"method": "full", "stage": 3},
    "full_1": {"method": "full", "stage": 1},
    "lora_3_background": {"method": "lora", "stage": 3, "background": True},
    "full_2_background": {"method": "full", "stage": 2, "background": True},
}
STEPS = 12
RANKS = 2
DISK_MIB = 200
"""Room for three checkpoints as the program plans them (64 MiB of slack each)."""


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
    if chosen.get("background"):
        found["training"]["async_save"] = True
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


def start(settings: dict[str, object], log: Path, file_limit: int | None = None) -> list[int]:
    """Fork the ranks of one attempt and return their process ids."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = []
    for rank in range(RANKS):
        child = os.fork()
        if child == 0:
            if file_limit is not None:
                limit_files(file_limit)
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


def half_made(out: Path) -> set[tuple[str, int]]:
    """The saves that are under way, or never ended: by name and time."""
    found = set()
    for path in (out / "checkpoints").glob(".tmp-step-*"):
        with contextlib.suppress(FileNotFoundError):
            found.add((path.name, path.stat().st_mtime_ns))
    return found


def kill_one(children: list[int], out: Path, draw: random.Random, longest: float) -> str | None:
    """Kill a rank at a random moment; None when the run ended before it came."""
    deadline = time.monotonic() + draw.uniform(0.0, longest)
    in_save = draw.random() < 0.5
    left = half_made(out)  # by an earlier kill: no save of this attempt
    while True:
        if any(map(has_ended, children)):
            return None
        saving = half_made(out) - left
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
    """Step of the newest whole checkpoint, 0 for none."""
    from glmforge.train.checkpoint import is_whole, step_of

    whole = [p.name for p in out.glob("checkpoints/step-*") if is_whole(p)]
    return max(map(step_of, whole), default=0)


def resumed_at(log: Path) -> int:
    """The step that the last attempt in a log went on from, 0 where it began."""
    lines = Path(f"{log}.0").read_text().splitlines()
    said = [line for line in lines if line.startswith("resumed ")]
    return int(said[-1].rsplit(" ", 1)[1]) if said else 0


@dataclass
class Case:
    """One kind of run: its undisturbed outcome and how long that took."""

    name: str
    expected: dict[str, object]
    seconds: float


class Harness:
    """Disturbs runs and counts what came of it."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.out: Path = args.out
        self.inputs = args.out / "inputs"
        self.draw = random.Random(args.seed)
        self.counts = dict.fromkeys(
            "runs attempts kills kills_in_saves damages fills stopped_by_full_disk lost "
            "silent_restarts different".split(),
            0,
        )
        self.seen: list[str] = []

    def undisturbed(self, name: str) -> Case:
        """Run a case to its end."""
        begun = time.monotonic()
        straight = self.out / name / "straight"
        straight.parent.mkdir()
        codes = reap(start(config(self.inputs, straight, name), straight.with_suffix(".log")))
        assert not any(codes), f"{name}: the undisturbed run ended with {codes}"
        return Case(name, outcome(straight), time.monotonic() - begun)

    def killed_run(self, case: Case, most: int) -> None:
        """Kill a run up to six times, damage its checkpoints, let it end, and compare it."""
        self.counts["runs"] += 1
        out = self.out / case.name / f"run{self.counts['runs']:03d}"
        left = self.draw.randint(1, 6)
        settings, log = config(self.inputs, out, case.name), out.with_suffix(".log")
        while True:
            had = newest_step(out)
            children = self.attempt(settings, log)
            killed = None
            if left and self.counts["kills"] < most:
                killed = kill_one(children, out, self.draw, case.seconds)
            codes = reap(children)
            self.check_start(out, log, had)
            if killed is None:
                break
            left -= 1
            self.counts["kills"] += 1
            self.counts["kills_in_saves"] += killed == "in a save"
            self.damage(out)
        self.check_end(out, log, case, codes)

    def damage(self, out: Path) -> None:
        """Damage a file of the newest checkpoint where an older one is whole."""
        what = damage_newest(out / "checkpoints", self.draw)
        if what is not None:
            self.counts["damages"] += 1
            self.seen.append(what.split("/", 1)[1])

    def starved_run(self, case: Case) -> str:
        """Fill a run's disk at a random moment, free it, go on; return the kind of disk."""
        self.counts["runs"] += 1
        name = f"fill{self.counts['runs']:03d}"
        place = self.out / case.name / name
        log = self.out / case.name / f"{name}.log"
        with small_disk(place, DISK_MIB) as mounted:
            out = place / "run"
            settings = config(self.inputs, out, case.name)
            for round_ in range(self.draw.randint(1, 3)):
                had = newest_step(out)
                if mounted:
                    children = self.attempt(settings, log)
                    if not self.fill_at_some_moment(children, out, case.seconds):
                        break
                else:
                    biggest = max((p.stat().st_size for p in self.out.rglob("*.pt")), default=10)
                    children = self.attempt(settings, log, file_limit=biggest // 2)
                self.counts["fills"] += 1
                codes = reap_failed(children)
                (place / "balloon").unlink(missing_ok=True)
                self.counts["stopped_by_full_disk"] += any(codes)
                if round_ == 0:
                    self.seen.append(f"full disk: {last_words(log, RANKS)}")
                self.check_start(out, log, had)
            had = newest_step(out)
            codes = reap(self.attempt(settings, log))
            self.check_start(out, log, had)
            self.check_end(out, log, case, codes)
        return f"tmpfs of {DISK_MIB} MiB" if mounted else "a limit on file sizes (RLIMIT_FSIZE)"

    def fill_at_some_moment(self, children: list[int], out: Path, longest: float) -> bool:
        """Fill the disk; False when the run ended before the moment came."""
        deadline = time.monotonic() + self.draw.uniform(0.3 * longest, longest)
        in_save, left = self.draw.random() < 0.5, half_made(out)
        while not all(map(has_ended, children)):
            saving = half_made(out) - left
            if out.exists() and time.monotonic() > deadline and (saving or not in_save):
                fill(out.parent)
                return True
            time.sleep(0.002)
        reap(children)
        return False

    def attempt(self, settings: dict[str, object], log: Path, **limits: int) -> list[int]:
        """Start the ranks once more."""
        self.counts["attempts"] += 1
        Path(f"{log}.0").unlink(missing_ok=True)
        return start(settings, log, **limits)

    def check_start(self, out: Path, log: Path, had: int) -> None:
        """A run that has a whole checkpoint may not begin again or go back behind it."""
        path = Path(f"{log}.0")
        text = path.read_text() if path.exists() else ""
        if had and "eval_loss" in text and resumed_at(log) < had:
            self.counts["silent_restarts"] += 1
            print(f"{out}: began again or went back although step {had} was saved", file=sys.stderr)

    def check_end(self, out: Path, log: Path, case: Case, codes: list[int]) -> None:
        """Compare the end with the undisturbed run's."""
        if codes != [0] * RANKS:
            self.counts["lost"] += 1
            text = Path(f"{log}.0").read_text()
            print(f"{out}: ended with {codes}\n{text[-2000:]}", file=sys.stderr)
            return
        found = outcome(out)
        wrong = [key for key, value in case.expected.items() if found[key] != value]
        if wrong:
            self.counts["different"] += 1
            print(f"{out}: {', '.join(wrong)} differ from the undisturbed run", file=sys.stderr)
        else:
            shutil.rmtree(out)
        (self.out / "result.json").write_text(json.dumps(self.counts))


def has_ended(child: int) -> bool:
    """Whether a rank has ended; it can still be reaped."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def reap_failed(children: list[int]) -> list[int]:
    """Wait for all ranks; once one has failed the others are ended, as the launcher does."""
    codes: dict[int, int] = {}
    while len(codes) < len(children):
        for child in set(children) - codes.keys():
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                codes[child] = os.waitstatus_to_exitcode(status)
        if any(codes.values()):
            time.sleep(0.5)
            for child in set(children) - codes.keys():
                os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    return [codes[child] for child in children]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--fills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    args = parser.parse_args()
    torch.set_num_threads(1)
    import deepspeed  # noqa: F401  (imported before the ranks are forked)
    import peft  # noqa: F401
    import tensorboard  # noqa: F401

    import glmforge.train.run  # noqa: F401

    harness = Harness(args)
    make_inputs(harness.inputs)
    cases = [harness.undisturbed(name) for name in args.cases]
    counts, turn = harness.counts, 0
    while counts["kills"] < args.kills:
        harness.killed_run(cases[turn % len(cases)], args.kills)
        turn += 1
    disk = "none"
    while counts["fills"] < args.fills and not counts["lost"]:
        disk = harness.starved_run(cases[turn % len(cases)])
        turn += 1
    print("\n".join(sorted(set(harness.seen))), file=sys.stderr)
    print(json.dumps(counts | {"disk": disk, "seed": args.seed, "cases": args.cases}))
    sys.exit(bool(counts["lost"] or counts["silent_restarts"] or counts["different"]))


if __name__ == "__main__":
    main()
