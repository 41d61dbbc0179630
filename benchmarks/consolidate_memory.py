"""Memory of `glmforge consolidate` against the size of what it joins.

``python benchmarks/consolidate_memory.py DIR [GIB] [--ranks 2] [--stage 3]`` writes shards as
DeepSpeed lays them out (fp32 weights of GIB in all, random), joins them in a process of its own and
prints one JSON line: seconds, the peak of the process's own memory (RssAnon, sampled) above what it
had before the first shard, and the same for DeepSpeed's own script. Pages mapped from files are not
counted: the kernel takes them back.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from collections import OrderedDict
from pathlib import Path

import torch

CHILD = """
import json, sys, threading, time
from pathlib import Path

def own_bytes():
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024

kind, source, out = sys.argv[1:]
if kind == "glmforge":
    from glmforge.export.shards import find_tag, open_shards
    from glmforge.export.tensor_files import Planned, check_written, write_tensors
else:
    from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_fp32_state_dict as stock
before, peak, ended = own_bytes(), [0], threading.Event()

def watch():
    while not ended.wait(0.002):
        peak[0] = max(peak[0], own_bytes())

thread = threading.Thread(target=watch)
thread.start()
began = time.perf_counter()
if kind == "glmforge":
    shards = open_shards(find_tag(Path(source)))
    Path(out).mkdir()
    planned = {
        name: Planned(dtype=place.dtype, shape=place.shape, read=lambda p=place: shards.tensor(p))
        for name, place in shards.places().items()
    }
    check_written(Path(out), write_tensors(Path(out), planned, max_shard_size="5GB"))
else:
    stock(source, out, safe_serialization=True)
seconds = time.perf_counter() - began
ended.set()
thread.join()
print(json.dumps({"seconds": round(seconds, 1), "own_peak_mib": (peak[0] - before) // 2**20}))
"""


def write_shards(directory: Path, gib: float, ranks: int, stage: int) -> int:
    """Write a checkpoint of square matrices of 64 MiB; return the bytes of one."""
    side = 4096
    shape = torch.Size([side, side])
    shapes = OrderedDict((f"layers.{n}.weight", shape) for n in range(max(1, int(gib * 16))))
    folder = directory / "global_step1"
    folder.mkdir(parents=True)
    (directory / "latest").write_text("global_step1", encoding="utf-8")
    part = math.ceil(shape.numel() / ranks) if stage == 3 else shape.numel() // ranks
    for rank in range(ranks):
        state = {
            "module": {},
            "buffer_names": [],
            "param_shapes": [shapes],
            "shared_params": {},
            "frozen_param_shapes": None,
            "frozen_param_fragments": None,
            "ds_version": "0.19.8",
        }
        flat = torch.cat([torch.randn(part) for _ in shapes])
        optimizer = {"zero_stage": stage, "partition_count": ranks if stage == 3 else [ranks]}
        key = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"
        optimizer[key] = [flat]
        name = f"zero_pp_rank_{rank}_mp_rank_00"
        torch.save({"optimizer_state_dict": optimizer}, folder / f"{name}_optim_states.pt")
        if stage == 3:
            torch.save(state, folder / f"{name}_model_states.pt")
        elif rank == 0:
            torch.save(state, folder / "mp_rank_00_model_states.pt")
    return side * side * 4


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("gib", type=float, nargs="?", default=1.0)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--stage", type=int, choices=(2, 3), default=3)
    arguments = parser.parse_args()
    source = arguments.directory / f"shards-{time.time_ns()}"
    one = write_shards(source, arguments.gib, arguments.ranks, arguments.stage)
    found = {"benchmark": "consolidate", "gib": arguments.gib, "largest_tensor_mib": one // 2**20}
    found |= {"ranks": arguments.ranks, "stage": arguments.stage}
    for kind in ("glmforge", "deepspeed"):
        out = arguments.directory / f"{kind}-{time.time_ns()}"
        command = [sys.executable, "-W", "ignore", "-c", CHILD, kind, str(source), str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(done.stderr[-3000:])
        found[kind] = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
