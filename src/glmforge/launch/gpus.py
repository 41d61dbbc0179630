"""Which GPUs the ranks get: `--gpus` indexes what CUDA_VISIBLE_DEVICES shows.

Counts devices through the driver's management library (NVML), as torch does, without importing
torch or touching a GPU. The choice is made in one place here and handed to the children as their
CUDA_VISIBLE_DEVICES.
"""

import ctypes
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from glmforge.errors import LaunchError

VISIBLE = "CUDA_VISIBLE_DEVICES"
_UUID_STARTS = ("GPU-", "MIG-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """How many processes start, and on what.

    `gpus` are the values for the children's CUDA_VISIBLE_DEVICES (indices of the driver or UUIDs),
    or None to leave the variable as it is.
    """

    nproc: int
    gpus: tuple[str, ...] | None


def visible_gpus() -> list[str]:
    """List the GPUs that this process may use, as indices of the driver or UUIDs."""
    return visible_from(os.environ, driver_gpu_count())


def driver_gpu_count() -> int:
    """Return the number of NVIDIA GPUs that the driver shows, 0 without a driver."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return 0
    if nvml.nvmlInit_v2() != 0:
        return 0
    count = ctypes.c_uint(0)
    failed = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0
    nvml.nvmlShutdown()
    return 0 if failed else count.value


def visible_from(variables: Mapping[str, str], num_devices: int) -> list[str]:
    """List the visible GPUs under these variables on a machine with `num_devices` GPUs.

    As CUDA does, the list ends at the first entry that names no device.
    """
    if num_devices == 0:
        return []
    text = variables.get(VISIBLE)
    if text is None:
        return [str(index) for index in range(num_devices)]
    visible: list[str] = []
    for entry in (part.strip() for part in text.split(",")):
        if entry.isdigit() and int(entry) < num_devices:
            visible.append(str(int(entry)))
        elif entry.startswith(_UUID_STARTS):
            visible.append(entry)
        else:
            break
    return visible


def place(nproc: int | None, gpus: str | None, visible: Sequence[str]) -> Placement:
    """Match the wanted processes and GPUs with the visible ones.

    Args:
        nproc: processes wanted; None is one, or one per GPU of `gpus`.
        gpus: what `--gpus` says: positions in `visible`, or UUIDs, separated by commas.
        visible: the visible GPUs; empty on a machine without any, where processes use the CPU.

    Raises:
        LaunchError: all that does not fit, at once.
    """
    if gpus is None:
        count = nproc or 1
        if visible and count > len(visible):
            raise LaunchError(
                f"--nproc {count}, but only {len(visible)} GPU(s) are visible "
                f"({', '.join(visible)}): each process needs its own"
            )
        return Placement(nproc=count, gpus=None)
    if not visible:
        raise LaunchError(f"--gpus {gpus}: no GPU is visible on this machine; leave --gpus out")
    chosen, problems = _choose(gpus, visible)
    if nproc is not None and not problems and nproc != len(chosen):
        problems.append(
            f"--nproc {nproc} with --gpus {gpus} ({len(chosen)} GPU(s)): each process takes one "
            "GPU; make the two agree, or leave --nproc out"
        )
    if problems:
        raise LaunchError(problems)
    return Placement(nproc=len(chosen), gpus=tuple(chosen))


def devices_in_words(placement: Placement, visible: Sequence[str]) -> str:
    """Return ", GPUs ..." with the driver's ids of the ranks' cards; empty without cards."""
    chosen = placement.gpus if placement.gpus is not None else tuple(visible[: placement.nproc])
    return f", GPUs {', '.join(chosen)}" if chosen else ""


def _choose(gpus: str, visible: Sequence[str]) -> tuple[list[str], list[str]]:
    chosen: list[str] = []
    problems: list[str] = []
    shown = f"{len(visible)} GPU(s) are visible ({', '.join(visible)})"
    for item in (part.strip() for part in gpus.split(",")):
        found = _find(item, visible)
        if found is None:
            highest = len(visible) - 1
            problems.append(f"--gpus {gpus}: {item!r} is not one of 0 to {highest}; {shown}")
        elif found in chosen:
            problems.append(f"--gpus {gpus}: {item!r} is named twice")
        else:
            chosen.append(found)
    return chosen, problems


def _find(item: str, visible: Sequence[str]) -> str | None:
    if item.isdigit():
        return visible[int(item)] if int(item) < len(visible) else None
    if not item.startswith(_UUID_STARTS):
        return None
    matching = [entry for entry in visible if entry.startswith(item) or item.startswith(entry)]
    if matching:
        return matching[0]
    # Without CUDA_VISIBLE_DEVICES the visible ones are known by index only: CUDA checks the UUID.
    return item if all(entry.isdigit() for entry in visible) else None
