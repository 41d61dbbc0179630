"""Where a run is, read from the call stack: load, data, forward, backward, optimizer, ...

The training step stays free of bookkeeping: an error's traceback or another thread's stack says
in which function of ours it is. Used for running out of memory and for the heartbeat.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType, TracebackType

_HERE = "glmforge.train."
_MARKS = {
    ("run", "_prepare"): "load",
    ("prepare", "plan_run"): "data",
    ("prepare", "prepare_model"): "load",
    ("engine", "build_engine"): "load",
    ("resume", "load_start"): "load",
    ("session", "step_batches"): "data",
    ("loop", "train_loop"): "records",
    ("loop", "train_step"): "forward",
    ("loop", "update"): "optimizer",
    ("session", "look"): "evaluation",
    ("evaluate", "evaluate"): "evaluation",
    ("samples", "generate_samples"): "evaluation",
    ("session", "save"): "saving",
    ("run", "_finish"): "saving",
}
_COLLECTIVES = ("torch.distributed.", "deepspeed.comm.")
_EXCHANGES = ("gather_floats", "gather_objects", "agree", "barrier", "on_main")

ORDER: tuple[str, ...] = tuple(
    "load evaluation saving records data forward backward optimizer device exchange".split()
)
"""The phases in the order in which they follow each other between two counts of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A phase, and whether it is spent in an exchange with the other ranks."""

    phase: str
    waiting: bool


def _place(calls: Iterator[tuple[str, str]]) -> Place:
    """Read calls as (module, function), the outermost first; the innermost mark decides."""
    phase, waiting = "load", False
    for module, function in calls:
        mark = _MARKS.get((module.removeprefix(_HERE), function))
        if module.startswith(_HERE) and mark is not None:
            phase = mark
        elif phase == "forward" and function == "backward":
            phase = "backward"
        elif phase == "records" and function == "gather_floats":
            phase = "exchange"  # the ranks' numbers at the end of a step
        waiting = waiting or module.startswith(_COLLECTIVES)
        waiting = waiting or (
            module == "glmforge.distributed.collectives" and function in _EXCHANGES
        )
    return Place(phase=phase, waiting=waiting)


def place_of_error(error: BaseException) -> Place:
    """Say where an error was raised."""

    def calls(trace: TracebackType | None) -> Iterator[tuple[str, str]]:
        while trace is not None:
            yield _call(trace.tb_frame)
            trace = trace.tb_next

    return _place(calls(error.__traceback__))


def place_of_thread(identity: int) -> Place:
    """Say where a thread of this process is now (``threading.Thread.ident``).

    Where the training step itself is the innermost call, it waits for the GPU to end the step, and
    so for the exchanges that the GPU is in.
    """
    frames = []
    frame: FrameType | None = sys._current_frames().get(identity)
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    calls = [_call(frame) for frame in reversed(frames)]
    if calls and calls[-1] == (f"{_HERE}loop", "train_step"):
        return Place(phase="device", waiting=True)
    return _place(iter(calls))


def _call(frame: FrameType) -> tuple[str, str]:
    return str(frame.f_globals.get("__name__", "")), frame.f_code.co_name
