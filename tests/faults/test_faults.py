"""Runs that are killed -9 and resumed end bitwise as if nothing had happened (make faults: 200)."""

import json
import os
import subprocess
import sys
from pathlib import Path

HARNESS = Path(__file__).with_name("harness.py")


def test_four_kills_and_a_full_disk_lose_nothing(tmp_path):
    """LoRA under ZeRO-2 and full parameters under ZeRO-3, two ranks, dropout on; a full disk."""
    done = subprocess.run(
        [
            sys.executable,
            str(HARNESS),
            str(tmp_path),
            "--kills",
            "4",
            "--fills",
            "1",
            "--cases",
            "lora_2",
            "full_3",
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["kills"] == 4
    assert result["fills"] >= 1  # one run fills its disk one to three times
    assert (result["lost"], result["silent_restarts"], result["different"]) == (0, 0, 0)
