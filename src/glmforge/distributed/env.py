"""Which process of which run this is, read from the variables that a launcher sets.

Knows torchrun, the deepspeed launcher, Slurm's `srun` and our own launcher; without any of them
the process is alone. Reads (and, under srun, completes) the environment; starts nothing and
imports no torch. Together with `glmforge.launch` this is the only place that reads the
environment.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from glmforge.distributed.interfaces import interface_towards, is_loopback
from glmforge.errors import LaunchError

Launcher = Literal["none", "torchrun", "deepspeed", "slurm", "glmforge"]

MARK = "GLMFORGE_LAUNCHER"
"""Set to "glmforge" by our launcher and to "slurm" once srun's variables are translated."""

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
"""Names the network interface of gloo, by which CPU ranks and GPU ranks exchange small values."""

_TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_WHO = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
_LOCAL_ADDRESSES = ("localhost", "127.0.0.1", "::1")
_DEFAULT_PORT = 29500
_FIRST_SPECIAL_STEP = 0xFFFFFFF0
"""Slurm numbers the batch script's and the interactive shell's own steps from here up
(slurm.h: SLURM_BATCH_SCRIPT 0xfffffffb, SLURM_INTERACTIVE_STEP 0xfffffffa)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """This process among all processes of the run.

    `master_port` is 0 for a process alone: nobody has to find it.
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    master_addr: str = "127.0.0.1"
    master_port: int = 0
    launcher: Launcher = "none"


def read_world() -> World:
    """Find out who this process is, and complete torch's variables where srun started it.

    Raises:
        LaunchError: the variables are incomplete or contradict each other; all faults at once.
    """
    world = world_from(os.environ)
    if world.launcher == "slurm":
        os.environ.update(torch_variables(world))
    return world


def read_secret(name: str) -> str | None:
    """Return the value of an environment variable that holds a key; None where it is not set.

    Keys are never settings: those are printed, and written into run directories.
    """
    return os.environ.get(name) or None


def modelscope_caches() -> tuple[Path, ...]:
    """Return the folders that ModelScope's client may keep OWNER/NAME in, newest habit first."""
    named = os.environ.get("MODELSCOPE_CACHE")
    root = Path(named) if named else Path.home() / ".cache" / "modelscope"
    return (root / "models", root / "hub" / "models", root / "hub", root)


@contextmanager
def torch_variables_set(world: World) -> Iterator[None]:
    """Hold torch's variables in the environment for the time of a run, and take them back.

    DeepSpeed reads LOCAL_RANK also for a process that no launcher started.
    """
    missing = {k: v for k, v in torch_variables(world).items() if k not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            del os.environ[name]


def fix_cublas_workspace() -> None:
    """Let cuBLAS add up in one order: torch's deterministic mode refuses its products without.

    docs.nvidia.com/cuda/cublas, "Results reproducibility"; a value that the user has set stays.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def let_segments_grow() -> None:
    """Let torch's CUDA allocator grow its segments, so that freed blocks of every size serve.

    An update of ZeRO-1 or 2 takes and frees blocks as large as all gradients, of two sizes; without
    this a card needs room for both at once. A value that the user has set stays.
    """
    if not (os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF")):
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"


def choose_interface(world: World) -> None:
    """Name the network interface by which gloo's peers reach this machine, in a run of several.

    Without it they are told the address of this machine's own name, which is often a loopback
    address. A value that the user has set stays. NCCL chooses by itself, and well.

    Raises:
        LaunchError: no interface leads to rank 0's machine.
    """
    alone = world.local_world_size == world.world_size
    if alone or is_loopback(world.master_addr) or os.environ.get(GLOO_INTERFACE):
        return
    interface = interface_towards(world.master_addr)
    if interface is None:
        raise LaunchError(
            f"rank {world.rank}: no network interface of this machine was found that leads to "
            f"{world.master_addr}, where rank 0 is; see that the name is known and the address "
            f"reachable, or set {GLOO_INTERFACE} to the interface between the machines, such as "
            f"eth0 (`ip addr` lists them)"
        )
    os.environ[GLOO_INTERFACE] = interface


def torch_variables(world: World) -> dict[str, str]:
    """Return the variables by which torch, DeepSpeed and `read_world` know this process."""
    return {
        "RANK": str(world.rank),
        "LOCAL_RANK": str(world.local_rank),
        "WORLD_SIZE": str(world.world_size),
        "LOCAL_WORLD_SIZE": str(world.local_world_size),
        "MASTER_ADDR": world.master_addr,
        "MASTER_PORT": str(world.master_port),
        MARK: world.launcher,
    }


def world_from(variables: Mapping[str, str]) -> World:
    """Find out who a process with these environment variables is.

    Raises:
        LaunchError: the variables are incomplete or contradict each other; all faults at once.
    """
    complete = all(variables.get(name) for name in _TORCH)
    if not complete and _in_slurm_step(variables):
        return _slurm_world(variables)
    given = [name for name in _WHO if variables.get(name)]
    if not given:
        return World()
    missing = [name for name in _TORCH if not variables.get(name)]
    if missing:
        raise LaunchError(
            f"the environment says {_shown(variables, given)}, but {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not set: a launcher sets all of them. Start "
            f"with torchrun, deepspeed, srun or `glmforge train --nproc N`, or unset "
            f"{', '.join(given)}"
        )
    return _torch_world(variables)


def _torch_world(variables: Mapping[str, str]) -> World:
    reader = _Numbers(variables)
    world_size = reader.number("WORLD_SIZE", low=1)
    rank = reader.number("RANK", below=("WORLD_SIZE", world_size))
    launcher = _torch_launcher(variables)
    size_name = "LOCAL_WORLD_SIZE" if variables.get("LOCAL_WORLD_SIZE") else "LOCAL_SIZE"
    if variables.get(size_name):
        local_size = reader.number(size_name, low=1, high=world_size)
    elif variables["MASTER_ADDR"] in _LOCAL_ADDRESSES:
        local_size = world_size
    else:
        local_size = 1
        reader.problems.append(
            "LOCAL_WORLD_SIZE (processes on this machine) is not set, and MASTER_ADDR "
            f"{variables['MASTER_ADDR']!r} is another machine; set it, or start with torchrun"
        )
    local_rank = reader.number("LOCAL_RANK", below=(size_name, local_size))
    port = reader.number("MASTER_PORT", low=1, high=65535)
    reader.finish()
    return World(
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        local_world_size=local_size,
        master_addr=variables["MASTER_ADDR"],
        master_port=port,
        launcher=launcher,
    )


def _torch_launcher(variables: Mapping[str, str]) -> Launcher:
    mark = variables.get(MARK)
    if mark == "glmforge":
        return "glmforge"
    if mark == "slurm":
        return "slurm"
    # deepspeed/launcher/launch.py sets CROSS_* and LOCAL_SIZE; torchrun sets TORCHELASTIC_*.
    elastic = "TORCHELASTIC_RUN_ID" in variables
    return "deepspeed" if "CROSS_SIZE" in variables and not elastic else "torchrun"


def _in_slurm_step(variables: Mapping[str, str]) -> bool:
    """Say whether srun started this process as one of several.

    An sbatch script and a salloc shell see SLURM_NTASKS too, but are not a step of tasks; a step
    of one task (`srun --pty bash`) is a process alone.
    """
    step = variables.get("SLURM_STEP_ID") or variables.get("SLURM_STEPID")
    if not step or (step.isdigit() and int(step) >= _FIRST_SPECIAL_STEP):
        return False
    return variables.get(_tasks_name(variables)) not in (None, "", "1")


def _tasks_name(variables: Mapping[str, str]) -> str:
    return "SLURM_STEP_NUM_TASKS" if variables.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"


def _slurm_world(variables: Mapping[str, str]) -> World:
    reader = _Numbers(variables)
    tasks_name = _tasks_name(variables)
    world_size = reader.number(tasks_name, low=1)
    rank = reader.number("SLURM_PROCID", below=(tasks_name, world_size))
    for name, value in (("WORLD_SIZE", world_size), ("RANK", rank)):
        if variables.get(name, str(value)) != str(value):
            reader.problems.append(
                f"{name} is {variables[name]}, but srun started {world_size} tasks and this is "
                f"number {rank}; unset {name}"
            )
    names = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    list_name = next((name for name in names if variables.get(name)), None)
    hosts = expand_hosts(variables[list_name]) if list_name else []
    if not hosts:
        reader.problems.append("SLURM_JOB_NODELIST (the hosts of the job) is not set or empty")
    local_size = _slurm_local_size(variables, len(hosts) or 1, world_size)
    local_rank = reader.number("SLURM_LOCALID", below=("tasks on this node", local_size))
    port = _slurm_port(variables)
    if variables.get("MASTER_PORT"):
        port = reader.number("MASTER_PORT", low=1, high=65535)
    reader.finish("the environment of a Slurm step is not whole")
    address = "127.0.0.1" if len(hosts) == 1 else hosts[0]
    return World(
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        local_world_size=local_size,
        master_addr=variables.get("MASTER_ADDR") or address,
        master_port=port,
        launcher="slurm",
    )


def _slurm_port(variables: Mapping[str, str]) -> int:
    """Choose a port that all tasks of a step compute alike and other jobs of a node hardly meet."""
    job = variables.get("SLURM_JOB_ID") or variables.get("SLURM_JOBID") or ""
    step = variables.get("SLURM_STEP_ID") or variables.get("SLURM_STEPID") or ""
    if not job.isdigit():
        return _DEFAULT_PORT
    # Below 32768, where Linux's range for outgoing connections begins.
    return 12000 + (int(job) * 7 + (int(step) if step.isdigit() else 0)) % 20000


def _slurm_local_size(variables: Mapping[str, str], num_hosts: int, tasks: int) -> int:
    """Read "2(x3),1" (tasks of each node in turn) at this node's place."""
    counts: list[int] = []
    text = variables.get("SLURM_STEP_TASKS_PER_NODE") or variables.get("SLURM_TASKS_PER_NODE", "")
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(times or 1)
    node = variables.get("SLURM_NODEID", "0")
    if num_hosts == 1:
        return tasks
    if node.isdigit() and int(node) < len(counts):
        return counts[int(node)]
    return -(-tasks // num_hosts)


def expand_hosts(text: str) -> list[str]:
    """Expand Slurm's short form: "node[01-03,7],gpu1" to node01 node02 node03 node7 gpu1."""
    hosts: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        hosts += _expand_brackets(part.strip())
    return hosts


def _expand_brackets(text: str) -> list[str]:
    match = re.search(r"\[([^\]]*)\]", text)
    if match is None:
        return [text] if text else []
    before, after = text[: match.start()], _expand_brackets(text[match.end() :]) or [""]
    middle: list[str] = []
    for item in match[1].split(","):
        low, dash, high = item.strip().partition("-")
        if dash and low.isdigit() and high.isdigit():
            middle += [str(i).zfill(len(low)) for i in range(int(low), int(high) + 1)]
        else:
            middle.append(item.strip())
    return [f"{before}{inner}{rest}" for inner in middle for rest in after]


def _shown(variables: Mapping[str, str], names: list[str]) -> str:
    return ", ".join(f"{name}={variables[name]}" for name in names)


class _Numbers:
    """Reads whole numbers from variables and gathers what is wrong with them."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.variables = variables
        self.problems: list[str] = []

    def number(
        self,
        name: str,
        *,
        low: int = 0,
        high: int | None = None,
        below: tuple[str, int] | None = None,
    ) -> int:
        """Return the number in `name`, or `low` after noting a problem."""
        text = self.variables.get(name, "").strip()
        if not text:
            self.problems.append(f"{name} is not set")
            return low
        if not re.fullmatch(r"\d+", text):
            self.problems.append(f"{name} is {text!r}, expected a whole number")
            return low
        value = int(text)
        if below is not None and value >= below[1]:
            self.problems.append(f"{name} is {value}, expected less than {below[0]} = {below[1]}")
        elif value < low or (high is not None and value > high):
            upper = f" and at most {high}" if high is not None else ""
            self.problems.append(f"{name} is {value}, expected at least {low}{upper}")
        return value

    def finish(self, what: str = "the launcher's variables are wrong") -> None:
        """Raise what was gathered."""
        if self.problems:
            raise LaunchError([f"{what}: {problem}" for problem in self.problems])
