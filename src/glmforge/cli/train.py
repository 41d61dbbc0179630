"""`glmforge train CONFIG [section.key=value …]`: start a run, on one process or several.

Under torchrun, deepspeed or srun this process is one rank and trains; otherwise it starts the
ranks that the config asks for, after checking everything that can be checked without a model.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from glmforge.cli.imports import heavy_imports
from glmforge.cli.machines import (
    Hostfile,
    MachineOptions,
    NodeRank,
    NumNodes,
    Rendezvous,
    Slurm,
    leave_for_machines,
    precision_here,
    ranks_here,
)
from glmforge.cli.output import print_json
from glmforge.config import RunConfig, load_config_file
from glmforge.config.explain import explain_text
from glmforge.config.paths import source_bytes
from glmforge.distributed.env import World, read_world
from glmforge.errors import ConfigError, UsageError
from glmforge.launch import launch_local, run_without_gpus
from glmforge.plan.early import check_map_early

RANK_LAUNCHERS = ("torchrun", "deepspeed", "slurm")
"""Launchers of others: they have decided about processes and GPUs before this program starts."""

BYTES_PREPARED_FIRST = 16 << 20
"""Size of the data from which it is prepared before the ranks start and hold GPUs."""


def _print_settings(wanted: bool) -> None:
    if wanted:
        print(explain_text(), end="")
        raise typer.Exit


Config = Annotated[Path, typer.Argument(help="The run config (YAML).", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SECTION.KEY=VALUE]...",
        help="Settings in place of the file's, such as training.learning_rate=1e-4; null takes "
        "one back.",
        show_default=False,
    ),
]
NumProcesses = Annotated[
    int | None, typer.Option(min=1, help="Processes on this machine (launch.nproc).")
]
Gpus = Annotated[
    str | None, typer.Option(help="GPUs such as 0,2: indices into CUDA_VISIBLE_DEVICES, or UUIDs.")
]
MasterAddress = Annotated[
    str | None, typer.Option(help="Address where the processes meet (launch.master_addr).")
]
MasterPort = Annotated[
    int | None,
    typer.Option(min=1, max=65535, help="Port where they meet; without it a free one."),
]
DeepSpeedFile = Annotated[
    Path | None, typer.Option(help="DeepSpeed settings (JSON file), as deepspeed=FILE.")
]
Resume = Annotated[str | None, typer.Option(help="Go on with a run: auto, or its directory.")]
Preflight = Annotated[
    bool,
    typer.Option(
        "--preflight",
        help="Only try: two real steps at the longest batch on every rank, planned against "
        "measured memory; nothing is written.",
    ),
]
AllowChanges = Annotated[
    bool,
    typer.Option(
        "--allow-changes",
        help="With --resume: go on although settings, data or base model have changed; shows and "
        "records what.",
    ),
]
InitFrom = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="Begin a new run with the weights of a run, checkpoint, adapter or model.",
    ),
]
IgnorePlan = Annotated[
    bool, typer.Option("--ignore-plan", help="Start although the plan says that it does not fit.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
HelpConfig = Annotated[
    bool,
    typer.Option(
        "--help-config",
        callback=_print_settings,
        is_eager=True,
        help="Explain every setting of the config.",
    ),
]
LocalRank = Annotated[int | None, typer.Option("--local_rank", "--local-rank", hidden=True)]


def train(
    config: Config,
    overrides: Overrides = None,
    nproc: NumProcesses = None,
    gpus: Gpus = None,
    master_addr: MasterAddress = None,
    master_port: MasterPort = None,
    deepspeed: DeepSpeedFile = None,
    nnodes: NumNodes = None,
    node_rank: NodeRank = None,
    rdzv: Rendezvous = None,
    hostfile: Hostfile = None,
    slurm: Slurm = False,
    resume: Resume = None,
    allow_changes: AllowChanges = False,
    init_from: InitFrom = None,
    preflight: Preflight = False,
    ignore_plan: IgnorePlan = False,
    as_json: AsJson = False,
    help_config: HelpConfig = False,
    local_rank: LocalRank = None,
) -> None:
    """Fine-tune a model as CONFIG says."""
    del help_config, local_rank  # the first has ended the program; LOCAL_RANK says the second
    world = read_world()
    given = {
        "launch.nproc": nproc,
        "launch.gpus": gpus,
        "launch.master_addr": master_addr,
        "launch.master_port": master_port,
        "deepspeed": None if deepspeed is None else str(deepspeed),
    }
    _refuse_launch_options(given, world)
    settings = _as_settings(given, overrides or [])
    run = load_config_file(config, settings, check_paths=True, resume=resume)
    _refuse_launch_settings(run, world)
    launch = run.launch
    argv = ["train", str(config), *settings]
    start = Start(resume, allow_changes, init_from, ignore_plan)
    argv += start.options() + ["--json"] * as_json + ["--preflight"] * preflight
    machines = MachineOptions(nnodes, node_rank, rdzv, hostfile, slurm)
    alike = {**start.named(), "--preflight": preflight}
    if (status := leave_for_machines(machines, run, argv, world, alike)) is not None:
        raise typer.Exit(status)
    if world.launcher == "none" and ((launch.nproc or 1) > 1 or launch.gpus is not None):
        check_map_early(run, world_size=ranks_here(run), precision=precision_here(run))
        _prepare_first(run, config, settings)
        code = launch_local(
            argv,
            nproc=launch.nproc,
            gpus=launch.gpus,
            master_addr=launch.master_addr,
            master_port=launch.master_port,
            record=None if preflight else Path(run.training.output_dir),
        )
        raise typer.Exit(code)
    result = _run_here(run, start, preflight=preflight)
    if as_json and world.rank == 0:
        print_json(result)


class Start(NamedTuple):
    """How the run begins: its options on the command line, and in Python."""

    resume: str | None
    allow_changes: bool
    init_from: str | None
    ignore_plan: bool

    def named(self) -> dict[str, str | bool | None]:
        """Return them by their names on the command line."""
        return {f"--{name.replace('_', '-')}": value for name, value in self._asdict().items()}

    def options(self) -> list[str]:
        """Return them as a rank's command has them.

        Raises:
            UsageError: they contradict each other.
        """
        if self.resume is not None and self.init_from is not None:
            raise UsageError(
                "--resume goes on with a run, --init-from begins a new one with another's weights: "
                "give one of them"
            )
        if self.allow_changes and self.resume is None:
            raise UsageError("--allow-changes belongs to --resume: a new run has nothing to keep")
        words = {"--resume": self.resume, "--init-from": self.init_from}
        found = [part for name, value in words.items() if value for part in (name, value)]
        switches = {"--allow-changes": self.allow_changes, "--ignore-plan": self.ignore_plan}
        return found + [name for name, wanted in switches.items() if wanted]


def _run_here(run: RunConfig, start: Start, *, preflight: bool) -> object:
    """Train, or only try, as a rank in this process."""
    with heavy_imports():
        import glmforge.train.run  # noqa: F401  what the function would import itself
        from glmforge.train import train as run_train
        from glmforge.train.preflight import preflight as run_preflight

    if preflight:
        return run_preflight(run, start.resume, ignore_plan=start.ignore_plan)
    return run_train(
        run,
        start.resume,
        ignore_plan=start.ignore_plan,
        allow_changes=start.allow_changes,
        init_from=start.init_from,
    )


def _as_settings(given: Mapping[str, object], overrides: Sequence[str]) -> list[str]:
    """Return options and overrides as SECTION.KEY=VALUE, in the order in which they are merged."""
    written = {
        name: f"{name}={json.dumps(value, ensure_ascii=False)}"
        for name, value in given.items()
        if value is not None
    }
    # The DeepSpeed file comes first: deepspeed.zero_optimization.stage=1 changes what is in it.
    file = [written.pop("deepspeed")] if "deepspeed" in written else []
    return [*file, *overrides, *written.values()]


def _prepare_first(run: RunConfig, config: Path, settings: Sequence[str]) -> None:
    """Make the prepared sets of large data in a process without GPUs, before any rank starts.

    Raises:
        typer.Exit: the data is refused; that process has said why.
    """
    if source_bytes(run.data) >= BYTES_PREPARED_FIRST:
        code = run_without_gpus(
            ["data", "prepare", str(config), *settings, "--quiet", "--no-rebuild"]
        )
        if code:
            raise typer.Exit(code)


def _refuse_launch_options(given: Mapping[str, object], world: World) -> None:
    """Refuse options about processes where a launcher has already started them.

    Raises:
        UsageError: names the options and the launcher.
    """
    written = [name for name in given if name.startswith("launch.") and given[name] is not None]
    if written and world.launcher in RANK_LAUNCHERS:
        options = ", ".join("--" + name.split(".")[1].replace("_", "-") for name in written)
        raise UsageError(
            f"{options}: {world.launcher} has started this program with {world.world_size} "
            f"process(es) and decides about processes and GPUs; leave {options} out, or start "
            f"glmforge train without {world.launcher}"
        )


def _refuse_launch_settings(run: RunConfig, world: World) -> None:
    """Refuse a config whose launch section says another thing than the launcher did.

    Raises:
        ConfigError: every setting that differs.
    """
    if world.launcher not in RANK_LAUNCHERS:
        return
    decided = {
        "nproc": world.local_world_size,
        "gpus": None,
        "master_addr": world.master_addr,
        "master_port": world.master_port,
    }
    wanted = run.launch.model_dump()
    problems = [
        f"launch.{name} is {wanted[name]!r}, but {world.launcher} has started the processes and "
        f"decides ({decided[name] or 'CUDA_VISIBLE_DEVICES'}); remove it from the config "
        f"(on the command line: launch.{name}=null)"
        for name in decided
        if wanted[name] not in (None, decided[name])
    ]
    if problems:
        raise ConfigError(problems)
