"""Resume on one GPU at real shapes: killed -9, gone on with, compared bit by bit; one call.

    python benchmarks/resume_on_gpu.py OUT --data DIALOGUES.jsonl --model 6B_DIR --small 1.5B_DIR

Parts: `exact` (LoRA ZeRO-2: twice undisturbed and once killed and resumed, with and without
training.deterministic, and what it costs), `lora3` (ZeRO-3), `full` (full parameters), `fp16` (loss
scale through overflow and recovery, killed and resumed, and its minimum), `qlora`, `checkpointing`
(ZeRO-3 and a frozen base under both kinds of gradient checkpointing, DeepSpeed#8130). `exact` has
the GPU for itself; then the others run in lanes beside each other. Whatever --seconds cuts off is
listed. Writes OUT/<part>.json and prints a table. Directories are made by random_checkpoint.py.
"""

import argparse
import json
import shutil
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from killed_runs import Runs, compare, outcome, rows_of, speed, tail

LANES = (("full",), ("lora3", "checkpointing"), ("fp16", "qlora"))
ALONE = "exact"
NOTES = (
    "loss_scale",
    "scales_equal",
    "skipped_steps",
    "minimum",
    "non_reentrant",
    "reentrant",
    "failed",
    "seconds",
)


class Bench:
    """The settings of all parts, and the runs of one lane."""

    def __init__(self, args: argparse.Namespace, ends: float) -> None:
        self.args = args
        self.runs = Runs(args.scratch, ends)
        self.short = {
            "data__max_length": min(512, args.max_length),
            "training__per_device_train_batch_size": 2,
        }

    def config(self, name: str, **changes: Any) -> dict[str, Any]:
        """LoRA of the large model; `changes` name settings as section__key."""
        args = self.args
        found: dict[str, Any] = {
            "model": {"model_name_or_path": str(args.model)},
            "data": {"train": str(args.data), "max_length": args.max_length},
            "training": {
                "output_dir": str(args.scratch / name),
                "max_steps": args.steps,
                "save_steps": args.steps // 2,
                "save_total_limit": 1,
                "per_device_train_batch_size": args.rows,
                "learning_rate": 1e-4,
                "logging_steps": 5,
                "precision": "fp32" if args.cpu else "bf16",
                "deterministic": True,
            },
        }
        for path, value in changes.items():
            section, _, key = path.partition("__")
            if key:
                found[section][key] = value
            else:
                found[section] = value
        return found

    def note(self, part: str, found: dict[str, Any]) -> None:
        """Write what a part has found so far."""
        (self.args.out / f"{part}.json").write_text(json.dumps(found, indent=1))

    def pair(self, name: str, **changes: Any) -> dict[str, Any]:
        """An undisturbed run, saved at its end only, and a killed one, compared."""
        once = {"training__save_steps": self.args.steps}
        one = outcome(self.runs.undisturbed(self.config(f"{name}-straight", **changes | once)))
        self.note(name, speed(one))
        other = outcome(self.runs.killed(self.config(f"{name}-killed", **changes)))
        return compare(one, other) | speed(one)


def exact(bench: Bench) -> dict[str, Any]:
    """LoRA, ZeRO-2: with deterministic bitwise; without, no further off than two runs are."""
    found: dict[str, Any] = {}
    for mode in (True, False):
        name = "deterministic" if mode else "default"

        def settings(run: str, name: str = name, mode: bool = mode) -> dict[str, Any]:
            return bench.config(f"exact-{name}-{run}", training__deterministic=mode)

        a = outcome(bench.runs.undisturbed(settings("a")))
        found[name] = {"a": speed(a)}
        bench.note("exact", found)
        b = outcome(bench.runs.undisturbed(settings("b")))
        found[name] |= {"two undisturbed": compare(a, b), "b": speed(b)}
        bench.note("exact", found)
        found[name]["and resumed"] = compare(a, outcome(bench.runs.killed(settings("killed"))))
        bench.note("exact", found)
    return found


def lora3(bench: Bench) -> dict[str, Any]:
    """LoRA, ZeRO-3."""
    return bench.pair("lora3", deepspeed={"zero_optimization": {"stage": 3}})


def full(bench: Bench) -> dict[str, Any]:
    """Full parameters of the smaller shape, ZeRO-2."""
    small = str(bench.args.small)
    changes = {"model__model_name_or_path": small, "training__learning_rate": 1e-5}
    return bench.pair("full", method="full", **bench.short, **changes)


def fp16(bench: Bench) -> dict[str, Any]:
    """The loss scale: overflow, recovery, both through a kill; then its minimum."""
    changes = bench.short | {
        "model__model_name_or_path": str(bench.args.small),
        "training__precision": "fp32" if bench.args.cpu else "fp16",
        "training__max_steps": 2 * bench.args.steps,
        "training__deterministic": not bench.args.cpu,
    }
    scale = {"initial_scale_power": 30, "loss_scale_window": 4, "hysteresis": 1}
    if not bench.args.cpu:
        changes["deepspeed"] = {"fp16": scale}
    one = bench.runs.undisturbed(bench.config("fp16-straight", **changes))
    other = bench.runs.killed(bench.config("fp16-killed", **changes))
    scales = [[row["loss_scale"] for row in rows_of(out)] for out in (one, other)]
    found: dict[str, Any] = {"loss_scale": scales[0], "scales_equal": scales[0] == scales[1]}
    found["skipped_steps"] = [row["skipped_steps"] for row in rows_of(one)]
    kept = outcome(one)
    found |= compare(kept, outcome(other)) | speed(kept)
    bench.note("fp16", found)
    if not bench.args.cpu:
        least = {"initial_scale_power": 40, "min_loss_scale": 2**38, "hysteresis": 1}
        settings = bench.config("fp16-minimum", **changes | {"deepspeed": {"fp16": least}})
        code = bench.runs.train(settings)
        words = tail(bench.args.scratch / "fp16-minimum").strip().splitlines()[-1]
        found["minimum"] = {"exit": code, "message": words[:400]}
    return found


def qlora(bench: Bench) -> dict[str, Any]:
    """A 4-bit base, killed and resumed."""
    return bench.pair("qlora", method="lora" if bench.args.cpu else "qlora", **bench.short)


def checkpointing(bench: Bench) -> dict[str, Any]:
    """Three steps of ZeRO-3 with LoRA under each kind of gradient checkpointing."""
    found: dict[str, Any] = {}
    for reentrant in (False, True):
        name = "reentrant" if reentrant else "non_reentrant"
        out = bench.args.scratch / name
        settings = bench.config(
            name,
            training__gradient_checkpointing=False,
            deepspeed={"zero_optimization": {"stage": 3}},
        )
        path = out.with_suffix(".json")
        job = {"settings": settings, "reentrant": reentrant, "result": str(path)}
        code = bench.runs.start(job, out.with_suffix(".log"))
        found[name] = json.loads(path.read_text()) if code == 0 else {"failed": tail(out)}
        bench.note("checkpointing", found)
    return found


PARTS = {part.__name__: part for part in (exact, lora3, full, fp16, qlora, checkpointing)}


def run_parts(args: argparse.Namespace, names: list[str], ends: float) -> None:
    """Run some parts one after the other and write the JSON of each, whatever happens to it."""
    bench = Bench(args, ends)
    for name in names:
        begun = time.monotonic()
        try:
            found = PARTS[name](bench)
        except Exception as error:  # noqa: BLE001  (written down; the other parts go on)
            if not isinstance(error, RuntimeError | TimeoutError):
                traceback.print_exc()
            path = args.out / f"{name}.json"
            partial = json.loads(path.read_text()) if path.exists() else {}
            found = partial | {"failed": f"{type(error).__name__}: {error}"}
            for left in args.scratch.glob(f"{name}-*/"):
                shutil.rmtree(left)
        found["seconds"] = round(time.monotonic() - begun, 1)
        bench.note(name, found)
    bench.runs.close()


def lines_of(found: dict[str, Any], name: str) -> dict[str, dict[str, Any]]:
    """The rows of the table that one part gives."""
    if name != ALONE:
        return {name: found} if "losses_equal" in found else {}
    lines = {}
    for mode in ("deterministic", "default"):
        for pair, rates in (("two undisturbed", "a"), ("and resumed", "b")):
            if pair in found.get(mode, {}):
                lines[f"{mode}: {pair}"] = found[mode][pair] | found[mode][rates]
    return lines


def table(args: argparse.Namespace) -> None:
    """Print what every part found."""
    heads = ("losses equal", "weights equal", "loss diff", "weight diff", "tokens/s", "GiB")
    print(f"{'part':32}" + "".join(f"{head:>14}" for head in heads))
    for name in args.parts:
        path = args.out / f"{name}.json"
        found = json.loads(path.read_text()) if path.exists() else {"failed": "not reached"}
        for label, row in lines_of(found, name).items():
            far = row.get("weight_difference")
            cells = [
                str(row["losses_equal"]),
                str(row["weights_equal"]),
                f"{row['largest_loss_difference']:.3g}",
                "" if far is None else f"{far:.3g}",
                f"{row['tokens_per_second']:,}",
                str(row["peak_gib"]),
            ]
            print(f"{label:32}" + "".join(f"{cell:>14}" for cell in cells))
        keys = (
            "loss_scale scales_equal skipped_steps minimum non_reentrant reentrant failed seconds"
        )
        for key in keys.split():
            if key in found:
                print(f"  {name} {key}: {str(found[key])[-600:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--small", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, help="where runs go (default: OUT/runs)")
    parser.add_argument("--seconds", type=float, default=330, help="time for all parts")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--max-length", type=int, default=2048)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--parts", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--cpu", action="store_true", help="fp32 on the CPU, to try the script")
    args = parser.parse_args()
    ends = time.monotonic() + args.seconds
    args.scratch = args.scratch or args.out / "runs"
    for directory in (args.out, args.scratch):
        directory.mkdir(parents=True, exist_ok=True)
    if ALONE in args.parts:
        run_parts(args, [ALONE], ends)
    lanes = []
    for parts in LANES:
        mine = [part for part in parts if part in args.parts]
        if mine:
            lanes.append(threading.Thread(target=run_parts, args=(args, mine, ends)))
            lanes[-1].start()
    for lane in lanes:
        lane.join()
    table(args)


if __name__ == "__main__":
    main()
