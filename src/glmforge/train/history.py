"""The records of a run that goes on: kept up to its checkpoint, and looked at for gaps.

``metrics.jsonl`` and ``samples.jsonl`` are appended to; a resumed run redoes the steps after its
checkpoint, so their rows are dropped. What is no longer there of the steps before is said: curves
that are made again from these files have the same gaps.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from glmforge.errors import CheckpointError

METRICS, SAMPLES = "metrics.jsonl", "samples.jsonl"


def cut_records(directory: Path, start: int | None) -> list[str]:
    """Drop the rows that a run will write again.

    Args:
        directory: of the run.
        start: the step that a resumed run goes on from; None for a run from its beginning, which
            keeps nothing of an attempt before it.

    Returns:
        A sentence for each file of a resumed run that has gaps.

    Raises:
        CheckpointError: one of the names is not that of a file.
    """
    rows, damaged = {}, {}
    for name in (METRICS, SAMPLES):
        path = directory / name
        if path.exists() and not path.is_file():
            raise CheckpointError(f"{path}: not a file: move it away, the run's records go there")
        rows[name], damaged[name] = _cut(path, -1 if start is None else start)
    if start is None:
        return []
    gaps = {
        METRICS: _lost_steps(rows[METRICS], start),
        SAMPLES: _lost_answers(rows[METRICS], rows[SAMPLES]),
    }
    said = []
    for name, lost in gaps.items():
        left_out = f"{damaged[name]} damaged line(s) were left out" if damaged[name] else None
        if what := "; ".join(filter(None, (lost, left_out))):
            said.append(f"{directory / name}: {what}: its curves and texts have gaps there")
    return said


def _cut(path: Path, step: int) -> tuple[list[dict[str, Any]], int]:
    """Rewrite a file without the rows of steps after `step`.

    Returns:
        The rows that stay, and how many lines could not be read, but for one without an end: that
        was being written when the run was killed.
    """
    if not path.exists():
        return [], 0
    kept, lines, damaged = [], [], 0
    for line in path.read_bytes().splitlines(keepends=True):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            keeps = row["step"] <= step
        except (ValueError, TypeError, KeyError):
            damaged += line.endswith(b"\n")
            continue
        if keeps:
            kept.append(row)
            lines.append(line if line.endswith(b"\n") else line + b"\n")
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(b"".join(lines))
    temporary.replace(path)
    return kept, damaged


def _lost_steps(metrics: list[dict[str, Any]], start: int) -> str | None:
    """Every step has a row."""
    there = {row["step"] for row in metrics if row.get("kind") == "train"}
    lost = start - len(there)
    return f"{lost} of the {start} steps before are not in it" if lost > 0 else None


def _lost_answers(metrics: list[dict[str, Any]], samples: list[dict[str, Any]]) -> str | None:
    """Every evaluation that answered has as many answers as the fullest one."""
    answered = {row["step"] for row in metrics if "eval_empty_answers" in row}
    counts = Counter(row["step"] for row in samples)
    most = max(counts.values(), default=0)
    lost = sorted(
        step for step in answered | counts.keys() if not counts[step] or counts[step] < most
    )
    return f"answers of step {', '.join(map(str, lost))} are not in it" if lost else None
