"""A real rank that freezes is named by the others, and the run goes on when it comes back."""

import json
import os
import signal
import time

import pytest

NAMED_WITHIN_SECONDS = 60


@pytest.mark.slow
def test_a_frozen_rank_is_named_within_a_minute(project, wait_for):
    """Two ranks, one stopped by SIGSTOP; then Ctrl-C ends the run with a checkpoint."""
    project.settings["training"] |= {"max_steps": 100_000, "logging_steps": 1}
    project.write()
    process = project.start("glmforge", "train", "c.yaml", "--nproc", "2")
    beats = project.directory / "run" / "heartbeats"
    frozen = None
    try:
        wait_for(lambda: len(list(beats.glob("*.json"))) == 2 and project.steps(), 120)
        frozen = json.loads((beats / "rank-00001.json").read_text())["pid"]
        os.kill(frozen, signal.SIGSTOP)
        stopped = time.monotonic()
        line = ""
        while "heartbeat: rank 1 " not in line:
            line = process.stderr.readline()
            assert line, "the run ended"
        assert time.monotonic() - stopped < NAMED_WITHIN_SECONDS
        assert "gives no sign of life" in line
        os.kill(frozen, signal.SIGCONT)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    finally:
        if frozen is not None and process.poll() is None:
            os.kill(frozen, signal.SIGCONT)
        process.kill()
    assert process.returncode == 75
    assert "glmforge consolidate run/checkpoints/step-" in err
