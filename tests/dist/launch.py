"""Runs named cases on the ranks of one launch: `torchrun ... launch.py OUT CASE [CASE ...]`.

Many cases share a launch, because starting ranks costs more than most cases. Each case is a
function of one of the `*cases.py` here; it takes a scratch directory and returns plain values.
Rank 0 writes them to OUT/CASE.json, a failure writes its traceback to OUT/CASE.error.
"""

import importlib
import json
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))


def main(out: Path, names: list[str]) -> None:
    files = sorted(Path(__file__).parent.glob("*cases.py"))
    modules = [importlib.import_module(file.stem) for file in files]
    known = {name: value for module in modules for name, value in vars(module).items()}
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


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
