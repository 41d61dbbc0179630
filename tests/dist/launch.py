"""Runs named cases on several gloo ranks, which are forked from one process that is loaded.

Many cases share a launch, and all launches share the seven seconds in which torch, DeepSpeed and
glmforge are imported. A request is a line of JSON on standard input: ``{"ranks": 2, "out": DIR,
"names": [CASE, ...]}``; the answer is ``0`` or ``1`` on a line of standard output. Each case is a
function of one of the `*cases.py` here, or a row of its CASES; it takes a scratch directory and
returns plain values. Rank 0 writes them to OUT/CASE.json, a failure its traceback to
OUT/CASE.rankN.error.
"""

import functools
import gc
import importlib
import json
import operator
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

SECONDS = 540
"""How long a launch may take."""


def cases() -> dict[str, object]:
    """Every case by its name."""
    files = sorted(Path(__file__).parent.glob("*cases.py"))
    modules = [importlib.import_module(file.stem) for file in files]
    functions = {name: value for module in modules for name, value in vars(module).items()}
    tables = (getattr(module, "CASES", {}) for module in modules)
    return functools.reduce(operator.or_, tables, functions)


def run_cases(known: dict[str, object], out: Path, names: list[str]) -> None:
    """What one rank does."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for name in names:
        scratch = out / name
        if rank == 0:
            scratch.mkdir(parents=True, exist_ok=True)
        dist.barrier()
        try:
            result = known[name](scratch)
        except BaseException:
            (out / f"{name}.rank{rank}.error").write_text(traceback.format_exc())
            raise
        if rank == 0:
            (out / f"{name}.json").write_text(json.dumps(result))
        dist.barrier()
    dist.destroy_process_group()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(ranks: int, rank: int, port: int, work: Callable[[], None]) -> int:
    """Fork a rank and return its process."""
    process = os.fork()
    if process:
        return process
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()})
    work()  # an exception ends the rank as it ends any program
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def finished(processes: set[int]) -> bool:
    """Wait for all ranks; where one fails or time is over, end the others."""
    end, good = time.monotonic() + SECONDS, True
    while processes:
        for process in list(processes):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                processes.discard(process)
                good = good and status == 0
        if not good or time.monotonic() > end:
            for process in processes:
                os.kill(process, signal.SIGKILL)
            good = False
        time.sleep(0.02)
    return good


def serve() -> None:
    requests, answers = os.dup(0), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what a library prints is no answer
    gc.disable()
    for name in ("deepspeed", "glmforge.train.run"):
        importlib.import_module(name)
    known = cases()
    gc.freeze()  # what is loaded stays shared with the ranks
    gc.enable()
    for line in os.fdopen(requests):
        asked = json.loads(line)
        Path(asked["out"]).mkdir(exist_ok=True)
        work = functools.partial(run_cases, known, Path(asked["out"]), asked["names"])
        port = free_port()
        ranks = {start(asked["ranks"], rank, port, work) for rank in range(asked["ranks"])}
        print(0 if finished(ranks) else 1, file=answers, flush=True)


if __name__ == "__main__":
    serve()
