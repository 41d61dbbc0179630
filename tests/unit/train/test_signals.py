"""A first signal is noted, a second Ctrl-C ends the process even in native code."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from glmforge.train.signals import HANDLED, watch_signals

STUCK = """
import hashlib, sys
sys.argv = ["glmforge"]  # its own command, which loads nothing that it does not use
from glmforge.train.signals import watch_signals
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


def test_a_second_ctrl_c_ends_a_process_that_is_stuck_in_native_code():
    """Exit status 130 at once; the first one is announced."""
    with subprocess.Popen(
        [sys.executable, "-c", STUCK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        first = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        second = process.stderr.read()
    assert first.startswith("SIGINT: this step is finished, then a checkpoint is written (Ctrl-C")
    assert second.startswith("ended at once; the last checkpoint is as it was")
