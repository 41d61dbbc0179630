"""What lies in GPU memory at the peak of each phase of a step, from torch's own allocation history.

Owns `Watch`: start it before a step, `mark` the end of each phase, and `peaks` lists the largest
groups of allocations that were alive at each phase's highest moment, by the line that made them.
"""

from collections import defaultdict
from typing import Any

import torch

GIB = 2**30
MARK_BYTES = 14_000 * 512
"""Size of the first marker; the next ones are 512 bytes larger each. Nothing else has these."""

OWN = ("glmforge", "torchinductor", "deepspeed", "bitsandbytes", "peft", "checkpoint.py")


class Watch:
    """Record allocations of one step."""

    def __init__(self) -> None:
        self.names: list[str] = []
        torch.cuda.synchronize()
        self.before = torch.cuda.memory_allocated()
        torch.cuda.memory._record_memory_history(
            enabled="all", context="alloc", stacks="python", max_entries=2_000_000
        )

    def mark(self, name: str) -> None:
        """End a phase: an allocation of a size of its own shows in the history."""
        marker = torch.empty(MARK_BYTES + 512 * len(self.names), dtype=torch.uint8, device="cuda")
        self.names.append(name)
        del marker

    def peaks(self, shown: int = 24) -> dict[str, Any]:
        """Return for each phase its peak in GiB and the groups alive then, largest first."""
        trace = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
        torch.cuda.memory._record_memory_history(enabled=None)
        highest = self._highest(trace)
        wanted = {index: name for name, (index, _) in highest.items()}
        found: dict[str, Any] = {}
        live: dict[int, tuple[int, str]] = {}
        old = self.before
        for index, entry in enumerate(trace):
            if entry["action"] == "alloc":
                live[entry["addr"]] = (entry["size"], source_line(entry))
            elif entry["action"] == "free_requested" and live.pop(entry["addr"], None) is None:
                old -= entry["size"]
            if index in wanted:
                found[wanted[index]] = {
                    "gib": round(highest[wanted[index]][1] / GIB, 3),
                    "before_the_step": round(old / GIB, 3),
                    "groups": grouped(live, shown),
                }
        return found

    def _highest(self, trace: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
        """Return for each phase where its most bytes are alive, and how many."""
        marks = {MARK_BYTES + 512 * number: name for number, name in enumerate(self.names)}
        highest: dict[str, tuple[int, int]] = {}
        total, best, known = self.before, (0, 0), set()
        for index, entry in enumerate(trace):
            size = entry["size"]
            if entry["action"] == "alloc":
                if size in marks:
                    highest[marks[size]] = best
                    best = (index, 0)
                    known.add(entry["addr"])
                    total += size
                    continue
                known.add(entry["addr"])
                total += size
                best = max(best, (index, total), key=lambda pair: pair[1])
            elif entry["action"] == "free_requested":
                total -= size
                known.discard(entry["addr"])
        return highest


def source_line(entry: dict[str, Any]) -> str:
    """Name the innermost line of this program or a library of its own that allocated."""
    frames = entry.get("frames") or []
    for frame in frames:
        if any(word in frame["filename"] for word in OWN):
            name = frame["filename"].rsplit("/", 1)[-1]
            return f"{name}:{frame['line']} {frame['name']}"
    if not frames:
        return "no Python frame (autograd)"
    return f"{frames[0]['filename'].rsplit('/', 1)[-1]}:{frames[0]['line']} {frames[0]['name']}"


def grouped(live: dict[int, tuple[int, str]], shown: int) -> list[list[Any]]:
    """Return [GiB of all, how many, bytes of each, line] of the largest groups."""
    groups: dict[tuple[int, str], int] = defaultdict(int)
    for size, line in live.values():
        groups[(size, line)] += 1
    order = sorted(groups.items(), key=lambda item: -item[0][0] * item[1])
    return [
        [round(size * count / GIB, 4), count, size, line] for (size, line), count in order[:shown]
    ]
