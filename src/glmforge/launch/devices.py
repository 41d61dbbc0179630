"""What the driver says of the cards of this machine: names, memory, capability, links.

Asks NVIDIA's management library (NVML), which makes no CUDA context and touches no card's memory.
``gpus.py`` chooses among cards; the plan and the doctor read these facts.
"""

import ctypes
from dataclasses import dataclass
from typing import Any

from glmforge.launch.gpus import visible_gpus

GIB = 2**30
_NAME_BYTES = 96
_READ, _NVLINK = 0, 2
"""nvml.h: NVML_P2P_CAPS_INDEX_READ and NVML_P2P_CAPS_INDEX_NVLINK."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One card: its index at the driver, name, memory in bytes, compute capability."""

    index: int
    name: str
    total_bytes: int
    free_bytes: int
    capability: tuple[int, int]
    uuid: str

    @property
    def total_gib(self) -> float:
        """All its memory in GiB."""
        return self.total_bytes / GIB


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def driver_devices() -> list[Device]:
    """List all NVIDIA cards that the driver shows; empty without a driver."""
    nvml = _nvml()
    if nvml is None:
        return []
    count = ctypes.c_uint(0)
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    found = [_device(nvml, index) for index in range(count.value)]
    nvml.nvmlShutdown()
    return found


def visible_devices() -> list[Device]:
    """List the cards that this process may use (CUDA_VISIBLE_DEVICES), in its order."""
    every = driver_devices()
    chosen = []
    for entry in visible_gpus():
        chosen += [
            device
            for device in every
            if entry == str(device.index) or (not entry.isdigit() and device.uuid.startswith(entry))
        ]
    return chosen


def driver_version() -> tuple[str, str] | None:
    """Return (driver version, newest CUDA version it takes), or None without a driver."""
    nvml = _nvml()
    if nvml is None:
        return None
    text = ctypes.create_string_buffer(_NAME_BYTES)
    nvml.nvmlSystemGetDriverVersion(text, ctypes.c_uint(_NAME_BYTES))
    cuda = ctypes.c_int(0)
    nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(cuda))
    nvml.nvmlShutdown()
    return text.value.decode(), f"{cuda.value // 1000}.{cuda.value % 1000 // 10}"


def link_matrix(devices: list[Device]) -> list[list[str]]:
    """Return how each pair of cards is joined.

    "NV": NVLink; "P2P": each reads the other's memory over PCIe; "host": all goes through the
    machine's memory; "-": the card itself.
    """
    nvml = _nvml()
    if nvml is None:
        return []
    handles = [_handle(nvml, device.index) for device in devices]
    rows = []
    for one in handles:
        row = []
        for other in handles:
            if one is other:
                row.append("-")
            elif _has_path(nvml, one, other, _NVLINK):
                row.append("NV")
            else:
                row.append("P2P" if _has_path(nvml, one, other, _READ) else "host")
        rows.append(row)
    nvml.nvmlShutdown()
    return rows


def _has_path(nvml: Any, one: Any, other: Any, kind: int) -> bool:
    state = ctypes.c_int(-1)
    failed = nvml.nvmlDeviceGetP2PStatus(one, other, ctypes.c_int(kind), ctypes.byref(state))
    return failed == 0 and state.value == 0  # NVML_P2P_STATUS_OK


def _nvml() -> Any:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return nvml if nvml.nvmlInit_v2() == 0 else None


def _handle(nvml: Any, index: int) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle))
    return handle


def _device(nvml: Any, index: int) -> Device:
    handle = _handle(nvml, index)
    name, uuid = (ctypes.create_string_buffer(_NAME_BYTES) for _ in range(2))
    nvml.nvmlDeviceGetName(handle, name, ctypes.c_uint(_NAME_BYTES))
    nvml.nvmlDeviceGetUUID(handle, uuid, ctypes.c_uint(_NAME_BYTES))
    memory = _Memory()
    nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
    major, minor = ctypes.c_int(0), ctypes.c_int(0)
    nvml.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
    return Device(
        index=index,
        name=name.value.decode(),
        total_bytes=memory.total,
        free_bytes=memory.free,
        capability=(major.value, minor.value),
        uuid=uuid.value.decode(),
    )
