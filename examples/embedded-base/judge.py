"""Judge candidates of the embedded base by what the demo makes of them, on two CPU cores.

    python judge.py OUT base-*.safetensors [--shape base] [--final] [--set section.name=value ...]

joins a candidate's shards to a model directory (OUT/model), fine-tunes it as the demo does, and
puts the selection questions and the general prompts to base and tuned model (`glmforge compare`).
Settings are chosen by these two; --final asks the held-out questions instead, once, at the end.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from glmforge.assets import asset_path
from glmforge.compare.statistics import wilson
from glmforge.train.demo import write_config

HERE = Path(__file__).resolve().parent


def assemble(shards: list[Path], shape: str, out: Path) -> Path:
    """Join shards, shape and the shipped vocabulary to a model directory; return it."""
    tensors = {name: tensor for shard in shards for name, tensor in load_file(shard).items()}
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(HERE / "shapes" / f"{shape}.json", out / "config.json")
    for name in ("tokenizer.model", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(asset_path("base") / name, out / name)
    return out


def glmforge(*arguments: str | Path) -> float:
    """Run a command of the product; return its seconds.

    Raises:
        SystemExit: the command failed; its output was shown.
    """
    began = time.monotonic()
    command = [sys.executable, "-m", "glmforge", *map(str, arguments)]
    status = subprocess.run(command, check=False).returncode
    if status:
        sys.exit(f"exit status {status}: {' '.join(command)}")
    return time.monotonic() - began


def tune(model: Path, out: Path, settings: list[str]) -> tuple[Path, float]:
    """Fine-tune a model as the demo does; return the run and its seconds."""
    config, run = write_config(out / "demo.yaml", model), out / "run"
    return run, glmforge("train", config, f"training.output_dir={run}", *settings)


def passed(model: Path, run: Path, questions: str, out: Path) -> list[dict[str, Any]]:
    """Shares of right answers of base and tuned model, with their intervals."""
    page = out / f"{questions}.html"
    glmforge("compare", "--base", model, "--tuned", run, "--prompts",
             asset_path(f"demo/{questions}.jsonl"), "--out", page, "--no-general",
             "--max-new-tokens", "64", "--batch-size", "24")  # fmt: skip
    report = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
    found = []
    for model_report in report["models"]:
        answers = model_report["answers"]["greedy"]
        right = [bool(answer["passes"]) for answer in answers]
        low, high = wilson(sum(right), len(right))
        found.append({
            "model": model_report["name"], "questions": questions, "right": sum(right),
            "of": len(right), "low": round(low, 3), "high": round(high, 3),
        })  # fmt: skip
    return found


def main(args: argparse.Namespace) -> None:
    args.out.mkdir(parents=True, exist_ok=True)
    model = assemble(args.shards, args.shape, args.out / "model")
    run, seconds = tune(model, args.out, args.set)
    rows = []
    for questions in ("questions",) if args.final else ("selection", "general_prompts"):
        rows += passed(model, run, questions, args.out)
    result = {
        "shape": args.shape,
        "tuning_seconds": round(seconds, 1),
        "settings": args.set,
        "rows": rows,
    }
    text = json.dumps(result, ensure_ascii=False, indent=1)
    (args.out / "judged.json").write_text(text + "\n", encoding="utf-8")
    print(text)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("shards", type=Path, nargs="+")
    parser.add_argument("--shape", default="base")
    parser.add_argument("--final", action="store_true", help="the held-out questions, once")
    parser.add_argument("--set", nargs="*", default=[], help="other settings of demo.yaml")
    return parser.parse_args()


if __name__ == "__main__":
    main(arguments())
