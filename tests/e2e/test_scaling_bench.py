"""The several-GPU benchmark on gloo processes and a tiny model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "scaling.py"


def measured(out: Path, *options: str) -> list[dict]:
    """Run the script and return its lines."""
    command = [sys.executable, str(SCRIPT), str(out), "--cpu", "--seconds", "500", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=540, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert all("losses" in row for row in rows), rows
    return rows


def test_one_and_two_processes_have_the_same_losses(tmp_path):
    """The same rows a step: accumulation makes up for the missing process."""
    one, two = measured(tmp_path / "out.jsonl", "--gpus", "1,2", "--jobs", "tiny-lora")
    assert (one["accumulation"], two["accumulation"]) == (2, 1)
    assert one["losses"] == pytest.approx(two["losses"], rel=1e-5)
    assert two["communication_seconds"] > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_four_processes_are_carried_on_by_two_and_back(tmp_path):
    """ZeRO-3, optimizer states carried over: the curve is that of four processes throughout."""
    rows = measured(tmp_path / "out.jsonl", "--gpus", "4", "--jobs", "tiny-full", "--elastic")
    whole, first, fewer, again = (row["losses"] for row in rows)
    assert [row["world_size"] for row in rows] == [4, 4, 2, 4]
    assert [*first, *fewer, *again] == pytest.approx(whole, rel=1e-5)
