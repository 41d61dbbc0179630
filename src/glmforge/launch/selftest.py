"""An all-reduce among all ranks of this machine: is the sum right, and how fast is it.

Started by `glmforge doctor` as processes of its own, because a broken link hangs; ended after 30
seconds. Each rank runs this module; rank 0 prints one JSON line.
"""

import json
import os
import select
import subprocess
import sys
import time
from typing import Any

from glmforge.distributed.env import World, torch_variables
from glmforge.launch.ports import LOCAL, free_port
from glmforge.launch.preflight import Check, passed

LIMIT_SECONDS = 30.0
IMPORT_SECONDS = 120.0
"""How long the ranks may take to import torch before the test begins."""
_PROGRAM = "import sys; sys.argv = ['glmforge']; from glmforge.launch.selftest import run; run()"
GPU_ELEMENTS = 64 * 2**20
CPU_ELEMENTS = 2**20


def all_reduce_check(ranks: int, limit: float = LIMIT_SECONDS) -> Check:
    """Run the test with so many ranks and judge what it measured.

    Args:
        ranks: processes; on GPUs one each.
        limit: seconds until it counts as hanging, once every rank is ready.
    """
    name = "all-reduce"
    port = free_port()
    started = [_start(rank, ranks, port) for rank in range(ranks)]
    try:
        _await_ready(started)
        out, err = started[0].communicate(timeout=limit)
        for process in started[1:]:
            process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        return Check(
            name=name,
            verdict="fail",
            found=f"no answer from {ranks} ranks within {limit:.0f} s",
            fix="NCCL_DEBUG=INFO shows where it waits; NCCL_P2P_DISABLE=1 and NCCL_IB_DISABLE=1 "
            "leave out a link that does not work",
        )
    finally:
        for process in started:
            process.kill()
            process.communicate()
    if started[0].returncode != 0:
        last = (err.strip().splitlines() or ["no message"])[-1]
        return Check(name=name, verdict="fail", found=last, fix="NCCL_DEBUG=INFO says more")
    result = json.loads(out.strip().splitlines()[-1])
    words = f"{result['backend']}, {ranks} ranks, {result['gb_per_second']:.1f} GB/s"
    if not result["correct"]:
        return Check(
            name=name,
            verdict="fail",
            found=f"{words}: the sum is wrong",
            fix="do not train on this machine: a card or link returns wrong values; test without "
            "P2P (NCCL_P2P_DISABLE=1)",
        )
    return passed(name, words)


def _await_ready(started: list[subprocess.Popen[str]]) -> None:
    """Wait until every rank has said that it is ready, or has ended.

    Raises:
        subprocess.TimeoutExpired: one did not.
    """
    deadline = time.monotonic() + IMPORT_SECONDS
    for process in started:
        assert process.stdout is not None
        left = max(0.0, deadline - time.monotonic())
        if not select.select([process.stdout], [], [], left)[0]:
            raise subprocess.TimeoutExpired(process.args, IMPORT_SECONDS)
        process.stdout.readline()


def _start(rank: int, ranks: int, port: int) -> subprocess.Popen[str]:
    world = World(
        rank=rank,
        local_rank=rank,
        world_size=ranks,
        local_world_size=ranks,
        master_addr=LOCAL,
        master_port=port,
        launcher="glmforge",
    )
    variables = {**os.environ, **torch_variables(world), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def run() -> None:
    """Add up one buffer over all ranks, a few times; rank 0 prints what it saw."""
    import torch
    import torch.distributed as dist

    print("ready", flush=True)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    on_gpu = torch.cuda.is_available() and torch.cuda.device_count() >= ranks
    device: Any = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    elements = GPU_ELEMENTS if on_gpu else CPU_ELEMENTS
    buffer = torch.full((elements,), float(rank + 1), device=device)
    dist.all_reduce(buffer)
    correct = bool((buffer == ranks * (ranks + 1) / 2).all())
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        dist.all_reduce(buffer.fill_(1.0))
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    moved = buffer.nbytes * 2 * (ranks - 1) / ranks
    if rank == 0:
        result = {
            "correct": correct,
            "gb_per_second": moved / min(seconds) / 1e9,
            "backend": dist.get_backend(),
        }
        print(json.dumps(result), flush=True)
    dist.destroy_process_group()
