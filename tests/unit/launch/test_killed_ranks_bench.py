"""The benchmark of killed ranks leaves no process behind when its time is over."""

import importlib
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

RUN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
rank = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
ranks = [
    subprocess.Popen([sys.executable, "-c", rank], start_new_session=own) for own in (True, False)
]
print(*(one.pid for one in ranks), flush=True)
time.sleep(60)
"""


@pytest.fixture
def killed_ranks(root: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    return importlib.import_module("killed_ranks")


def is_running(pid: str) -> bool:
    """Whether it exists and is no zombie, which nobody may have waited for here."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_run_that_hangs_is_ended_with_its_ranks_in_sessions_of_their_own(
    killed_ranks: ModuleType, tmp_path: Path
) -> None:
    """The launcher's process group alone would leave them on the cards."""
    with subprocess.Popen(
        [sys.executable, "-c", RUN], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        ranks = process.stdout.readline().split()
        assert all(is_running(pid) for pid in ranks)
        with pytest.raises(subprocess.TimeoutExpired):
            killed_ranks.finish(process, tmp_path / "run", time.monotonic())
    end = time.monotonic() + 10
    while any(is_running(pid) for pid in ranks):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_run_that_ends_badly_is_told_with_its_last_words(
    killed_ranks: ModuleType, tmp_path: Path
) -> None:
    """And nothing is killed that has ended."""
    (tmp_path / "run.log").write_text("out of cards")
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(RuntimeError, match="run ended with 3: out of cards"):
        killed_ranks.finish(process, tmp_path / "run", time.monotonic() + 20)
