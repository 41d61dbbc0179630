"""`glmforge doctor`: every check of this machine, and of a config's model and data, in one list.

Owns the order and the checks that need torch, the driver or a config; single machine checks are
``preflight.py``'s. Nothing is changed and nothing downloaded.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from glmforge.config import RunConfig, load_config_file
from glmforge.config.overrides import read_json_map
from glmforge.errors import GlmForgeError
from glmforge.launch.devices import Device, driver_version, link_matrix, visible_devices
from glmforge.launch.preflight import (
    Check,
    compiler_check,
    environment_checks,
    lock_checks,
    machine_checks,
    passed,
    toolkit_version,
    version_checks,
)
from glmforge.launch.selftest import all_reduce_check

BUSY_SHARE = 0.9
"""A card of which less than this share is free is used by something else."""


def examine(
    config_path: Path | None, overrides: Sequence[str] = (), *, self_test: bool = True
) -> list[Check]:
    """Look at everything.

    Args:
        config_path: a run config whose model, data and directory are looked at too, or None.
        overrides: settings in place of the file's, such as ``data.max_length=1024``.
        self_test: also run the all-reduce (needs about 20 s).

    Returns:
        The findings in order. A config that cannot be read is one of them.
    """
    config, faults = _read(config_path, overrides)
    devices = visible_devices()
    ranks = _ranks(config, devices)
    directory = Path(config.training.output_dir) if config is not None else Path()
    checks = [
        *version_checks(),
        _torch_check(devices),
        compiler_check(offload=_offloads(config)),
        _toolkit_check(offload=_offloads(config)),
        *_device_checks(devices),
        *machine_checks(directory, ranks),
        *lock_checks(os.environ),
        *environment_checks(os.environ),
        *faults,
    ]
    if config is not None:
        said = "\n".join(fault.found for fault in faults if fault.verdict == "fail")
        checks += [*_disk_offload_checks(config), *_config_checks(config, said)]
    if self_test:
        checks.append(_communication(ranks, devices))
    return checks


def _read(path: Path | None, overrides: Sequence[str]) -> tuple[RunConfig | None, list[Check]]:
    if path is None:
        return None, []
    try:
        config = load_config_file(path, overrides, check_paths=True)
    except GlmForgeError as error:
        faults = [
            Check(name="config", verdict="fail", found=text, fix=_correct(text, path))
            for text in error.problems
        ]
        try:
            return load_config_file(path, overrides), faults
        except GlmForgeError:
            return None, faults  # more than a path is wrong
    return config, [passed("config", str(path))]


def _correct(problem: str, path: Path) -> str:
    return "correct " + ("it" if problem.startswith("command line") else str(path))


def _ranks(config: RunConfig | None, devices: list[Device]) -> int:
    if config is not None and config.launch.nproc is not None:
        return config.launch.nproc
    return max(1, len(devices))


def _offloads(config: RunConfig | None) -> bool:
    return _offload_device(config, "offload_optimizer") != "none"


def _offload_device(config: RunConfig | None, key: str) -> str:
    """Return where a config's DeepSpeed settings offload to: none, cpu or nvme."""
    if config is None or config.deepspeed is None:
        return "none"
    settings = config.deepspeed
    if isinstance(settings, str):
        settings, _ = read_json_map(Path(settings))
    zero = settings.get("zero_optimization") or {}
    section = zero.get(key) if isinstance(zero, Mapping) else None
    return str(section.get("device", "none")) if isinstance(section, Mapping) else "none"


def _disk_offload_checks(config: RunConfig) -> Iterator[Check]:
    """Ask whether DeepSpeed's async_io builds, where a config offloads to a disk."""
    keys = ("offload_optimizer", "offload_param")
    if all(_offload_device(config, key) != "nvme" for key in keys):
        return
    from glmforge.distributed.zero import async_io_problem

    problem = async_io_problem()
    if problem is None:
        yield passed("async_io", "can be built: offloading to a disk may work (not run here)")
        return
    yield Check(name="async_io", verdict="fail", found=problem, fix="install it, or device: cpu")


def _torch_check(devices: list[Device]) -> Check:
    """Compare torch's CUDA with the driver's."""
    import torch

    built: str | None = torch.version.cuda
    driver = driver_version()
    if built is None:
        if not devices:
            return passed("torch and driver", "torch for the CPU, and no GPU here")
        return Check(
            name="torch and driver",
            verdict="fail",
            found=f"{len(devices)} GPU(s) are here, but this torch is for the CPU only",
            fix="install torch from the CUDA index named at pytorch.org/get-started",
        )
    if driver is None:
        return Check(
            name="torch and driver",
            verdict="warn",
            found=f"torch is built for CUDA {built}, but no NVIDIA driver is here",
            fix="install the driver; in a container start with --gpus all",
        )
    newest = driver[1]
    if int(newest.split(".")[0]) < int(built.split(".")[0]):
        return Check(
            name="torch and driver",
            verdict="fail",
            found=f"torch is built for CUDA {built}, driver {driver[0]} goes to CUDA {newest}",
            fix="update the driver, or install a torch built for that CUDA",
        )
    return passed("torch and driver", f"CUDA {built}, driver {driver[0]} (CUDA {newest})")


def _device_checks(devices: list[Device]) -> Iterator[Check]:
    if not devices:
        yield Check(
            name="GPUs",
            verdict="warn",
            found="none is visible: training runs on the CPU, for small models only",
            fix="check the driver and CUDA_VISIBLE_DEVICES",
        )
        return
    for device in devices:
        name = f"GPU {device.index}"
        free = device.free_bytes / 2**30
        words = f"{device.name}, {free:.1f} of {device.total_gib:.1f} GiB free"
        if device.free_bytes < BUSY_SHARE * device.total_bytes:
            yield Check(
                name=name,
                verdict="warn",
                found=f"{words}: another process uses it",
                fix="nvidia-smi names it; choose other cards with --gpus",
            )
        else:
            yield passed(name, words)
    if len(devices) > 1:
        rows = link_matrix(devices)
        words = "; ".join(f"{d.index}: {' '.join(row)}" for d, row in zip(devices, rows))
        yield _link_check({cell for row in rows for cell in row}, words)


def _link_check(kinds: set[str], words: str) -> Check:
    """Judge how the cards of a machine are joined."""
    if kinds <= {"-", "NV"}:
        return passed("links", f"NVLink between all ({words})")
    if "host" in kinds:
        return Check(
            name="links",
            verdict="warn",
            found=f"some pairs cannot read each other's memory ({words})",
            fix="NCCL goes through the host; in a virtual machine or container ask for peer access "
            "(ACS off). LoRA under ZeRO-2 hardly communicates",
        )
    return Check(
        name="links",
        verdict="warn",
        found=f"not all pairs have NVLink ({words})",
        fix="LoRA under ZeRO-2 hardly communicates; avoid ZeRO-3 over PCIe",
    )


def _toolkit_check(*, offload: bool) -> Check:
    """Compare the CUDA toolkit (nvcc), which DeepSpeed's own operations are compiled with."""
    import torch

    name, built, found = "CUDA toolkit", torch.version.cuda, toolkit_version(os.environ)
    if built is None:
        return passed(name, "not needed: torch is for the CPU")
    if not offload:
        words = "none" if found is None else found
        return passed(name, f"{words}; nothing of a run without offloading is compiled with it")
    if found is None:
        return Check(
            name=name,
            verdict="warn",
            found="no nvcc: DeepSpeed may want it to compile its CPU Adam (offload_optimizer)",
            fix=f"install the toolkit of CUDA {built} and set CUDA_HOME, or do without offloading",
        )
    if found.split(".")[0] != built.split(".")[0]:
        return Check(
            name=name,
            verdict="fail",
            found=f"nvcc is of CUDA {found}, torch is built for {built}: DeepSpeed refuses to "
            "compile its CPU Adam (offload_optimizer)",
            fix=f"install the toolkit of CUDA {built} and set CUDA_HOME to it",
        )
    return passed(name, f"{found}, torch is built for {built}")


def _config_checks(config: RunConfig, said: str) -> Iterator[Check]:
    """Look at the model directory and the data files, but those that `said` is about already."""
    if "model.model_name_or_path" not in said:
        yield from _model_checks(config)
    if "data.train" not in said:
        yield from _data_checks(config)


def _model_checks(config: RunConfig) -> Iterator[Check]:
    from glmforge.models.families import family_named
    from glmforge.models.inspection import inspect_model

    directory = config.model.model_name_or_path
    try:
        facts: Any = inspect_model(directory)
    except GlmForgeError as error:
        yield from (
            Check(name="model", verdict="fail", found=text, fix="see the text")
            for text in error.problems
        )
    else:
        if facts.problems and not config.model.from_scratch:
            yield from (
                Check(name="model", verdict="fail", found=text, fix="download it again")
                for text in facts.problems
            )
        else:
            title = family_named(facts.family).title_for(facts.parameters.total)
            yield passed("model", f"{title} in {directory}")
            yield from _positions_check(config)


def _positions_check(config: RunConfig) -> Iterator[Check]:
    """Fail where rows may be longer than the model's positions, as training would."""
    from glmforge.models import load_config

    shape = load_config(config.model.model_name_or_path)
    positions = getattr(shape, "max_position_embeddings", None)
    if positions is not None and config.data.max_length > positions:
        yield Check(
            name="model",
            verdict="fail",
            found=f"data.max_length is {config.data.max_length} tokens, and the model has "
            f"{positions} positions",
            fix=f"write data.max_length={positions} or less",
        )


def _data_checks(config: RunConfig) -> Iterator[Check]:
    from glmforge.data import read_conversations

    value: Any = config.data.train
    for item in value if isinstance(value, list) else [value]:
        path = item if isinstance(item, str) else item.path
        try:
            found = read_conversations(
                path, columns=config.data.columns, repairs=config.data.repair, on_error="stop"
            )
        except GlmForgeError as error:
            yield Check(
                name="data",
                verdict="fail",
                found=f"{len(error.problems)} fault(s), first: {error.problems[0]}",
                fix=f"glmforge data check {path} lists all of them",
            )
        else:
            yield passed("data", f"{len(found):,} dialogues in {path}")


def _communication(ranks: int, devices: list[Device]) -> Check:
    if devices and len(devices) < 2:
        return passed("all-reduce", "one GPU: nothing to communicate")
    return all_reduce_check(max(2, min(ranks, len(devices)) if devices else 2))
