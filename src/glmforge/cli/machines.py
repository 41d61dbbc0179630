"""Options of `glmforge train` about several machines and Slurm, and what they start.

Owns the options' types and the two ways in which a run leaves this process for other machines;
the work is in `glmforge.launch`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Annotated

import typer

from glmforge.config import RunConfig
from glmforge.distributed.env import World
from glmforge.errors import ConfigError, UsageError
from glmforge.launch.devices import visible_devices
from glmforge.launch.local import program, run_without_gpus
from glmforge.launch.nodes import launch_nodes, node_settings
from glmforge.launch.outcome import say
from glmforge.launch.sameness import compared_settings
from glmforge.launch.slurm import SlurmJob, refuse_changed, submit, write_job
from glmforge.plan.early import check_map_early

NumNodes = Annotated[
    int | None,
    typer.Option(min=1, help="Machines of the run; the same command is started on each."),
]
NodeRank = Annotated[
    int | None, typer.Option(min=0, help="Which machine this is, 0 to --nnodes - 1.")
]
Rendezvous = Annotated[
    str | None, typer.Option("--rdzv", help="Where machine 0 listens: HOST[:PORT].")
]
Hostfile = Annotated[
    Path | None,
    typer.Option(help="The machines, one a line (worker-1 slots=8), in place of --nnodes."),
]
Slurm = Annotated[
    bool, typer.Option("--slurm", help="Write a Slurm job script, and submit it where sbatch is.")
]


@dataclass(frozen=True, slots=True)
class MachineOptions:
    """What the command line says about machines."""

    nnodes: int | None
    node_rank: int | None
    rdzv: str | None
    hostfile: Path | None
    slurm: bool

    def given(self) -> list[str]:
        """Name the options that were written."""
        values = {
            "--nnodes": self.nnodes,
            "--node-rank": self.node_rank,
            "--rdzv": self.rdzv,
            "--hostfile": self.hostfile,
            "--slurm": self.slurm or None,
        }
        return [name for name, value in values.items() if value is not None]


def leave_for_machines(
    options: MachineOptions,
    run: RunConfig,
    argv: Sequence[str],
    world: World,
    start: Mapping[str, str | bool | None],
) -> int | None:
    """Start this machine's part, or write the Slurm job; None for a run on this machine alone.

    Args:
        options: what the command line says.
        run: the checked config.
        argv: arguments of the program for each rank, "train" first.
        world: who this process is.
        start: the options of the start that change the run; alike on all machines.

    Returns:
        The exit status, or None where there is nothing of the kind to do.

    Raises:
        UsageError: options about machines under a launcher that has decided already.
        LaunchError: machines, hostfile or script do not work out.
        RankFailed: a rank or a machine died.
    """
    written = options.given()
    if written and world.launcher not in ("none", "glmforge"):
        raise UsageError(
            f"{', '.join(written)}: {world.launcher} has started this program and decides about "
            f"machines; leave {', '.join(written)} out"
        )
    if world.launcher != "none":
        return None
    launch, directory = run.launch, Path(run.training.output_dir)
    if options.slurm:
        check_map_early(run, world_size=(options.nnodes or 1) * ranks_here(run))
        return _slurm(options, run, argv)
    machines = node_settings(
        nnodes=options.nnodes,
        node_rank=options.node_rank,
        rdzv=options.rdzv,
        hostfile=options.hostfile,
        nproc=launch.nproc,
    )
    if machines is None:
        return None
    check_map_early(run, world_size=machines.world_size)
    if machines.world_size is None:
        _warn_of_even_machines(run, machines.num_nodes)
    alike = compared_settings(run, start)
    return launch_nodes(
        argv,
        machines,
        gpus=launch.gpus,
        alike=alike,
        judge=lambda world_size: check_map_early(run, world_size=world_size),
        record=directory,
    )


def _warn_of_even_machines(run: RunConfig, num_nodes: int) -> None:
    """Say before the wait what would be refused after it, if all machines start as many ranks."""
    ranks = ranks_here(run)
    try:
        check_map_early(run, world_size=num_nodes * ranks)
    except ConfigError as error:
        say(f"launch: if each of the {num_nodes} machines starts {ranks} process(es): {error}")


def ranks_here(run: RunConfig) -> int:
    """Return how many processes a config asks for on one machine."""
    launch = run.launch
    return launch.nproc or (len(launch.gpus.split(",")) if launch.gpus is not None else 1)


def precision_here(run: RunConfig) -> str:
    """Return the number format that the ranks of this machine will choose, without asking torch."""
    devices = visible_devices()
    if run.training.precision != "auto":
        return run.training.precision
    if not devices:
        return "fp32"
    return "bf16" if min(device.capability for device in devices) >= (8, 0) else "fp16"


def _slurm(options: MachineOptions, run: RunConfig, argv: Sequence[str]) -> int:
    """Write and submit the job, once what can be refused here has been; return the exit status."""
    _refuse_for_slurm(options, run)
    # srun decides about processes and cards: what the config says of them is for this script only.
    words = [word for word in argv[1:] if not word.startswith("launch.")]
    settings = list(takewhile(lambda word: not word.startswith("--"), words))
    for name, value in run.launch.model_dump().items():
        words += [f"launch.{name}=null"] * (value is not None)
    job = SlurmJob(
        nodes=options.nnodes or 1,
        tasks_per_node=ranks_here(run),
        arguments=tuple(words),
        directory=Path.cwd(),
        run_dir=Path(run.training.output_dir),
    )
    refuse_changed(job.script)
    # As the ranks would, but before the job waits in a queue and holds GPUs.
    if status := run_without_gpus(["data", "prepare", *settings, "--quiet", "--no-rebuild"]):
        return status
    script = write_job(job, program([]))
    said = submit(script)
    print(
        f"{script}: {said}" if said else f"{script}: written; sbatch is not here, submit it there"
    )
    return 0


def _refuse_for_slurm(options: MachineOptions, run: RunConfig) -> None:
    """Refuse what a Slurm job cannot follow, or what contradicts itself.

    Raises:
        UsageError: all of it at once.
    """
    launch, problems = run.launch, []
    if others := [name for name in options.given() if name not in ("--slurm", "--nnodes")]:
        problems.append(f"--slurm with {', '.join(others)}: Slurm chooses the machines")
    chosen = None if launch.gpus is None else len(launch.gpus.split(","))
    if chosen is not None and launch.nproc not in (None, chosen):
        problems.append(
            f"--nproc {launch.nproc} with --gpus {launch.gpus} ({chosen} GPU(s)): each process "
            "takes one GPU; make the two agree, or leave --gpus out: Slurm chooses the cards"
        )
    for name in ("master_addr", "master_port"):
        if (value := getattr(launch, name)) is not None:
            option = f"--{name.replace('_', '-')}"
            problems.append(
                f"--slurm with {option} {value}: the tasks meet on the job's first machine, at a "
                f"port of the job's own; leave {option} out (of the config too: launch.{name}=null)"
            )
    if problems:
        raise UsageError(problems)
