"""What a run's own files say of the weights that came out of it, for the model card.

Reads config.yaml, deepspeed.json, data.json, final.json and metrics.jsonl of the run directory that
a run, checkpoint or adapter lies in, or what an earlier export or consolidation noted of it;
weights from elsewhere have no such facts.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmforge.config import load_config_file

REPORTS = ("export.json", "consolidate.json")
"""Files that `glmforge export` and `consolidate` leave beside what they wrote."""

_SHOWN = (
    "seed precision num_train_epochs max_steps per_device_train_batch_size "
    "gradient_accumulation_steps learning_rate lr_scheduler_type weight_decay"
).split()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The run that made some weights."""

    base: str
    """``model.model_name_or_path`` of the run."""
    method: str
    data_hash: str
    """Of every id and label (data.json)."""
    data_files: tuple[str, ...]
    """Name, rows and sha256 of each file."""
    settings: dict[str, Any]
    """What was used: "auto" as it was resolved, and nothing that another setting overruled."""
    step: int | None
    """Of the checkpoint, or the last of the run."""
    metrics: dict[str, float]
    """The evaluation at that step."""


def run_facts(source: Path) -> RunFacts | None:
    """Return the facts of the run that `source` is of, or None where it is of no run.

    The run is the one that `source` is or lies in, else the one that its own report names.
    """
    return _noted_facts(source) or _facts_of_run(source)


def _noted_facts(source: Path) -> RunFacts | None:
    for name in REPORTS:
        if noted := _json(source / name).get("run"):
            return RunFacts(**noted | {"data_files": tuple(noted["data_files"])})
    return None


def _facts_of_run(source: Path) -> RunFacts | None:
    step = None
    if source.name.startswith("step-") and source.name.removeprefix("step-").isdigit():
        step = int(source.name.removeprefix("step-"))
    if step is None and source.name.startswith("global_step"):  # a checkpoint's folder of shards
        return _facts_of_run(source.resolve().parent)
    places = [source, *list(source.resolve().parents)[:2]]
    run = next((p for p in places if (p / "config.yaml").is_file() and _has_data(p)), None)
    if run is None:
        return None
    config = load_config_file(run / "config.yaml")
    values = config.model_dump(mode="json")
    data = _json(run / "data.json")
    if step is None:
        step = _json(run / "final.json").get("step")
    training = values["training"] | _used(_json(run / "deepspeed.json"))
    if training["max_steps"] is not None:
        training["num_train_epochs"] = None  # max_steps has decided
    settings = {f"training.{name}": training[name] for name in _SHOWN}
    if config.trains_adapter:
        targets = _targets((source, source / "adapter", run / "adapter"))
        settings |= {f"lora.{name}": value for name, value in (values["lora"] | targets).items()}
    settings["data.max_length"] = values["data"]["max_length"]
    return RunFacts(
        base=config.model.model_name_or_path,
        method=config.method,
        data_hash=data.get("hash", ""),
        data_files=tuple(_file_line(file) for part in data["files"].values() for file in part),
        settings={name: value for name, value in settings.items() if value is not None},
        step=step,
        metrics=_metrics(run / "metrics.jsonl", step),
    )


def _used(engine: dict[str, Any]) -> dict[str, Any]:
    """Return what the run resolved of settings that may be "auto" or come from elsewhere."""
    found = {
        "per_device_train_batch_size": engine.get("train_micro_batch_size_per_gpu"),
        "gradient_accumulation_steps": engine.get("gradient_accumulation_steps"),
    }
    if "bf16" in engine or "fp16" in engine:
        enabled = [key for key in ("bf16", "fp16") if engine.get(key, {}).get("enabled")]
        found["precision"] = enabled[0] if enabled else "fp32"
    return {name: value for name, value in found.items() if value is not None}


def _targets(places: Sequence[Path]) -> dict[str, Any]:
    """Return the modules that were trained, as the first adapter_config.json there has them."""
    for place in places:
        targets = _json(place / "adapter_config.json").get("target_modules")
        if targets:
            return {"target_modules": targets if isinstance(targets, str) else sorted(targets)}
    return {}


def _has_data(directory: Path) -> bool:
    return (directory / "data.json").is_file()


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _file_line(file: dict[str, Any]) -> str:
    name = Path(str(file.get("path") or file.get("name") or "")).name
    return f"{name} (sha256 {file.get('sha256', '')})"


def _metrics(path: Path, step: int | None) -> dict[str, float]:
    found: dict[str, float] = {}
    if not path.is_file():
        return found
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row.get("kind") == "eval" and row.get("step") == step:
            found = {
                name: value
                for name, value in row.items()
                if name.startswith("eval_") and isinstance(value, int | float)
            }
    return found
