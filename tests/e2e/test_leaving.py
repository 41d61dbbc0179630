"""How a rank ends: with the status of its work, whatever native code does afterwards."""

import subprocess
import sys

PROGRAM = """
import atexit, os, sys
import glmforge.cli.main as program
from glmforge.distributed.collectives import process_group
from glmforge.distributed.env import World

class Native:
    def __del__(self, abort=os.abort):
        abort()

def work():
    if {group}:
        with process_group(World()):
            pass
    atexit.register(print, "at exit")
    print("done")
    {end}

program.kept = Native()
program.main = work
program.run()
"""


def test_a_rank_is_not_lost_to_what_comes_after_its_work() -> None:
    """Its words are out, and so is what Python does at exit."""
    code = PROGRAM.format(group=True, end="raise SystemExit(3)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "done\nat exit\n")


def test_a_process_without_a_group_ends_as_usual() -> None:
    """So the test above can fail: its abort is real."""
    code = PROGRAM.format(group=False, end="return 0")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -6
