"""Two short runs side by side: which settings differ, and each step's numbers paired by step.

Reads run directories only (config.yaml, deepspeed.json, data.json, versions.json, metrics.jsonl);
no model, no training code. Change one thing at a time: more than one difference gets a warning.
"""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmforge.config import load_config_file
from glmforge.errors import CheckpointError, ConfigError

MEASURES = ("loss", "grad_norm", "tokens_per_second", "peak_gib")
"""What is paired, by the names of metrics.jsonl."""
_HOW: dict[str, Callable[[Sequence[float]], float]] = {
    "loss": statistics.mean,
    "grad_norm": statistics.mean,
    "tokens_per_second": statistics.median,
    "peak_gib": max,
}

# Where a run lies, what it shows and what it keeps: none of it changes the numbers compared.
_WITHOUT_EFFECT = frozenset(
    """training.output_dir training.logging_steps training.save_steps training.save_total_limit
    training.report_to launch.nproc launch.gpus launch.master_addr launch.master_port
    data.prepared_dir data.preprocessing_num_workers""".split()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A setting (or fact) that the two runs do not share. ``matters``: it may change numbers."""

    name: str
    values: tuple[Any, Any]
    matters: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedStep:
    """One step as both runs recorded it: (A, B) of each measure; None is a number not finite."""

    step: int
    loss: tuple[float | None, float | None]
    grad_norm: tuple[float | None, float | None]
    tokens_per_second: tuple[float | None, float | None]
    peak_gib: tuple[float | None, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """Two runs side by side.

    ``summary`` has for each measure the (A, B) values that sum the run up: the mean loss and
    gradient norm of the steps that both have, the median speed of those after the first, the
    highest peak; and ``loss_difference``, the mean of B - A with twice its standard error.
    """

    runs: tuple[Path, Path]
    differences: tuple[Difference, ...]
    steps: tuple[PairedStep, ...]
    recorded_steps: tuple[int, int]
    summary: dict[str, tuple[float | None, float | None]]
    warnings: tuple[str, ...]


def compare_runs(one: Path, other: Path) -> RunComparison:
    """Compare two run directories.

    Raises:
        CheckpointError: one of them holds no run, has recorded no step, or both share no step.
    """
    facts = [_facts(directory) for directory in (one, other)]
    records = [_steps(directory) for directory in (one, other)]
    shared = sorted(records[0].keys() & records[1].keys())
    if not shared:
        raise CheckpointError(f"{one} and {other} have no step in common: nothing can be paired")
    differences = _differences(facts[0], facts[1])
    steps = tuple(_paired(step, records[0][step], records[1][step]) for step in shared)
    return RunComparison(
        runs=(one, other),
        differences=differences,
        steps=steps,
        recorded_steps=(len(records[0]), len(records[1])),
        summary=_summary(steps),
        warnings=tuple(_warnings(differences, records, len(shared))),
    )


def _facts(directory: Path) -> dict[str, Any]:
    """Return every resolved setting of a run by its dotted name, and what else it ran with."""
    missing = [name for name in ("config.yaml", "metrics.jsonl") if not (directory / name).exists()]
    if missing:
        raise CheckpointError(
            f"{directory}: not a run directory: {' and '.join(missing)} not found in it"
        )
    try:
        config = load_config_file(directory / "config.yaml")
    except ConfigError as error:
        raise CheckpointError(f"{directory}: its config cannot be read: {error}") from error
    facts = _flat(config.model_dump(mode="json"))
    engine = _json(directory / "deepspeed.json")
    rows = engine.get("train_micro_batch_size_per_gpu", 0)
    rows *= engine.get("gradient_accumulation_steps", 0)
    if rows:
        facts["processes"] = engine["train_batch_size"] // rows
    facts["data (hash of every id and label)"] = _json(directory / "data.json").get("hash")
    versions = _json(directory / "versions.json")
    return facts | {f"version of {name}": version for name, version in versions.items()}


def _steps(directory: Path) -> dict[int, dict[str, Any]]:
    """Return the train lines of metrics.jsonl by step."""
    found: dict[int, dict[str, Any]] = {}
    lines = (directory / "metrics.jsonl").read_text(encoding="utf-8").split("\n")
    for line in filter(None, map(str.strip, lines)):
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue  # the line that is being written, or was when the run was killed
        if row.get("kind") == "train":
            found[row["step"]] = row
    if not found:
        raise CheckpointError(f"{directory}/metrics.jsonl: the run has recorded no step yet")
    return found


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[Difference, ...]:
    names = [*one, *(name for name in other if name not in one)]
    return tuple(
        Difference(
            name=name,
            values=(one.get(name), other.get(name)),
            matters=name not in _WITHOUT_EFFECT,
        )
        for name in names
        if one.get(name) != other.get(name)
    )


def _paired(step: int, one: Mapping[str, Any], other: Mapping[str, Any]) -> PairedStep:
    pairs: dict[str, Any] = {name: (one.get(name), other.get(name)) for name in MEASURES}
    return PairedStep(step=step, **pairs)


def _summary(steps: Sequence[PairedStep]) -> dict[str, tuple[float | None, float | None]]:
    """Sum the paired steps up; see `RunComparison`."""
    found: dict[str, tuple[float | None, float | None]] = {}
    for name in MEASURES:
        kept = steps[1:] if name == "tokens_per_second" and len(steps) > 1 else steps
        pairs = [pair for step in kept if None not in (pair := getattr(step, name))]
        found[name] = (None, None)
        if pairs:
            one, other = zip(*pairs)
            found[name] = (_HOW[name](one), _HOW[name](other))
    gaps = [step.loss[1] - step.loss[0] for step in steps if None not in step.loss]  # type: ignore[operator]
    if gaps:
        error = 2 * statistics.stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else None
        found["loss_difference"] = (statistics.mean(gaps), error)
    return found


def _warnings(
    differences: Sequence[Difference], records: Sequence[Mapping[int, Any]], shared: int
) -> list[str]:
    said = []
    mattering = [difference.name for difference in differences if difference.matters]
    if len(mattering) > 1:
        said.append(
            f"{len(mattering)} differences may each explain what follows ({', '.join(mattering)}): "
            "change one thing at a time"
        )
    if not mattering:
        said.append("no setting that matters differs: what follows is the noise between two runs")
    longest = max(map(len, records))
    if shared < longest:
        lengths = " and ".join(str(len(found)) for found in records)
        said.append(f"the runs have {lengths} steps; the {shared} that both have are compared")
    return said


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _json(path: Path) -> dict[str, Any]:
    """Read a file of the run, {} where an older run has none.

    Raises:
        CheckpointError: it is torn.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError(f"{type(values).__name__} where a map should be")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        copies = path.parent / "checkpoints" / "step-*" / "state" / path.name
        raise CheckpointError(
            f"{path}: cannot be read ({error}); every checkpoint has a copy: {copies}"
        ) from error
    return values


def comparison_lines(found: RunComparison, *, most_steps: int) -> list[str]:
    """Write a comparison as a table for people, of at most `most_steps` steps, evenly chosen."""
    lines = [f"A  {found.runs[0]}", f"B  {found.runs[1]}", ""]
    lines += [
        f"{'differs' if difference.matters else 'no effect':9}  {difference.name}: "
        f"{_shown(difference.values[0])} -> {_shown(difference.values[1])}"
        for difference in sorted(found.differences, key=lambda one: not one.matters)
    ] or ["no setting differs"]
    lines += [f"warning    {text}" for text in found.warnings]
    lines += ["", f"{'':>6}  {'loss':^26}  {'grad_norm':^18}  {'tokens/s':^18}  {'peak GiB':^14}"]
    lines += [f"{'step':>6}  {'A':>8} {'B':>8} {'B-A':>8}" + "  {:>8} {:>9}".format("A", "B") * 2]
    lines[-1] += f"  {'A':>6} {'B':>7}"
    last = len(found.steps) - 1
    count = min(most_steps, len(found.steps))
    chosen = sorted({round(last * place / max(1, count - 1)) for place in range(count)})
    lines += [_row(str(found.steps[place].step), found.steps[place]) for place in chosen]
    lines.append(_row("all", found.summary))
    mean, error = found.summary.get("loss_difference", (None, None))
    if mean is not None:
        range_words = "" if error is None else f" ± {error:.4f} (twice the standard error)"
        lines += ["", f"mean of loss B - A over {len(found.steps)} steps: {mean:+.4f}{range_words}"]
    speeds = found.summary["tokens_per_second"]
    if speeds[0] and speeds[1]:
        lines.append(f"B runs at {speeds[1] / speeds[0]:.2f} times the speed of A (median step)")
    return lines


def _row(name: str, values: PairedStep | Mapping[str, Any]) -> str:
    pairs = [
        values[measure] if isinstance(values, Mapping) else getattr(values, measure)
        for measure in MEASURES
    ]
    (loss, norm, speed, peak) = pairs
    gap = None if None in loss else loss[1] - loss[0]
    return (
        f"{name:>6}  {_number(loss[0], '8.4f')} {_number(loss[1], '8.4f')} "
        f"{_number(gap, '+8.4f')}  {_number(norm[0], '8.3f')} {_number(norm[1], '9.3f')}  "
        f"{_number(speed[0], '8,.0f')} {_number(speed[1], '9,.0f')}  "
        f"{_number(peak[0], '6.2f')} {_number(peak[1], '7.2f')}"
    )


def _number(value: float | None, form: str) -> str:
    """Write a number, or a dash of the same width where it was not finite."""
    width = int("".join(c for c in form.split(".")[0] if c.isdigit()))
    return f"{'-':>{width}}" if value is None else format(value, form)


def _shown(value: Any) -> str:
    text = "not set" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
