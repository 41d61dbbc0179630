"""Runs whose evaluations are looked at: few rows, references, early stopping, plain text."""

import json
from functools import partial
from pathlib import Path

import torch.distributed as dist
from cases import held_out
from method_cases import shortened, train

import glmforge

VALIDATION_PROMPTS = {"prompts": None, "num_prompts": 3, "max_new_tokens": 4}


def evaluations(scratch: Path) -> list[dict[str, object]]:
    lines = (scratch / "run" / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == "eval"]


def _rows(scratch: Path, count: int, stage: int, **data: object) -> object:
    validation = shortened(scratch, "held_out.jsonl", count) if count else None
    generation = VALIDATION_PROMPTS if count else {"prompts": ["你好"], "max_new_tokens": 4}
    sections = {"data": {"validation": validation, **data}, "generation": generation}
    if not count:
        sections["training"] = {"per_device_eval_batch_size": None}
    try:
        found = train(scratch, stage=stage, method="full", **sections)
    except KeyError:  # `outcome` of a run without a validation loss
        found = {}
    return {**found, "evaluations": evaluations(scratch)}


def early_stop(scratch: Path) -> object:
    """Nothing is learned at this rate: the second evaluation without gain is the last."""
    training = {
        "learning_rate": 1e-12,
        "eval_steps": 1,
        "early_stopping_patience": 2,
        "metric_for_best_model": "eval_exact_match",
        "max_steps": 20,
        "save_steps": 100,
    }
    generation = {"prompts": ["你好", "再见"], "references": ["好", "见"], "max_new_tokens": 4}
    found = train(scratch, training=training, generation=generation)
    final = json.loads((scratch / "run" / "final.json").read_text())
    best = (scratch / "run" / "checkpoints" / "best").read_text().strip()
    latest = (scratch / "run" / "checkpoints" / "latest").read_text().strip()
    config = scratch / "run" / "config.yaml"
    again = glmforge.train(str(config), resume="auto")
    dist.barrier()
    said = {"final": final, "best": best, "latest": latest, "again": again.step}
    return {**found, **said, "evaluations": evaluations(scratch)}


def plain_text(scratch: Path) -> object:
    """Continued pretraining: every token of the texts is trained, no prompt can be taken."""
    path = scratch / "texts.jsonl"
    if dist.get_rank() == 0:
        texts = [
            "今天天气很好，我们去公园散步。",
            "订单已经发货，明天送到。",
            "hello world 12 元",
        ] * 4
        rows = (json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
        path.write_text("".join(rows), encoding="utf-8")
    dist.barrier()
    data = {"train": str(path), "validation": held_out(path)}
    found = train(scratch, method="full", data=data, generation=VALIDATION_PROMPTS)
    return {**found, "evaluations": evaluations(scratch)}


CASES = {
    **{f"held_out_{count}": partial(_rows, count=count, stage=3) for count in (0, 1, 3)},
    "held_out_3_single": partial(_rows, count=3, stage=2, packing=False),
}
"""Cases that differ by their arguments; the others are the functions without an underscore."""
