"""A first signal is noted, a second Ctrl-C or SIGTERM ends the process even in native code."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from glmforge.distributed.collectives import Ranks
from glmforge.distributed.env import World
from glmforge.errors import CheckpointError
from glmforge.launch import requests
from glmforge.train.checkpoint import newest_complete
from glmforge.train.saving import Saver
from glmforge.train.signals import HANDLED, watch_signals
from glmforge.train.state import Progress

STUCK = """
import hashlib, sys
sys.argv = ["glmforge"]  # its own command, which loads nothing that it does not use
from glmforge.launch import requests
from glmforge.train.signals import watch_signals
requests.AGAIN_SECONDS = 1.0
with watch_signals(announce=True):
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"a", b"b", 2**31 - 1)  # minutes in native code
"""


@pytest.mark.parametrize("number", HANDLED)
def test_the_first_signal_is_noted_and_the_old_handlers_come_back(number):
    """The loop asks for it after the step."""
    before = [signal.getsignal(one) for one in HANDLED]
    with watch_signals() as flag:
        assert flag.received is None
        os.kill(os.getpid(), number)
        assert flag.received == number
        if number != signal.SIGINT:
            os.kill(os.getpid(), signal.SIGUSR1)  # a second signal of the scheduler changes nothing
            assert flag.received == number
    assert [signal.getsignal(one) for one in HANDLED] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_other_threads_train_without_handlers():
    """Python allows handlers in the main thread only."""
    found = []

    def train():
        with watch_signals() as flag:
            found.append(flag.received)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert found == [None]


def started(code: str, *arguments: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_second_ctrl_c_ends_a_process_that_is_stuck_in_native_code():
    """Exit status 130 at once; the first one is announced."""
    with started(STUCK) as process:
        process.send_signal(signal.SIGINT)
        first = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        second = process.stderr.read()
    assert first.startswith("SIGINT: this step is finished, then a checkpoint is written (Ctrl-C")
    assert second.startswith(
        "ended at once, at the second Ctrl-C; the last checkpoint is as it was"
    )


def test_a_second_sigterm_does_too_but_not_the_same_one_sent_twice():
    """A sender may signal a process and then its group; the two count as one."""
    with started(STUCK) as process:
        process.send_signal(signal.SIGTERM)
        first = process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        time.sleep(1.2)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 130
        second = process.stderr.read()
    assert "then a checkpoint is written (SIGTERM once more, later: end at once)" in first
    assert second.startswith("ended at once, at the second SIGTERM; the last checkpoint")


def test_ended_at_once_while_a_checkpoint_is_written_the_latest_is_the_one_before(
    tmp_path, monkeypatch
):
    """Nothing torn has a checkpoint's name; seen at the moment at which the process ends."""
    found, ended = {}, threading.Event()

    def end(status):
        names = sorted(path.name for path in tmp_path.glob("step-*"))
        found.update(status=status, names=names, latest=(tmp_path / "latest").read_text().strip())
        ended.set()

    class Engine:
        module = None

        def save_checkpoint(self, place, *, tag, **more):
            Path(place, tag).mkdir(parents=True)
            Path(place, tag, "shard.pt").write_bytes(b"x" * 1000)
            if tag == "global_step2":
                os.kill(os.getpid(), signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGTERM)
                assert ended.wait(20)
                raise InterruptedError

    monkeypatch.setattr(requests, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(os, "_exit", end)
    saver = Saver(
        engine=Engine(),
        directory=tmp_path,
        ranks=Ranks(world=World(), device=torch.device("cpu")),
        exclude_frozen=False,
        keep_last=2,
        write_extras=lambda place: None,
        next_bytes=1000,
    )
    with watch_signals():
        saver.save(Progress(step=1), is_best=False, wait=True)
        with pytest.raises(CheckpointError):
            saver.save(Progress(step=2), is_best=False, wait=True)
    assert found == {"status": 130, "names": ["step-000001"], "latest": "step-000001"}
    assert newest_complete(tmp_path).path.name == "step-000001"
