"""`glmforge plan CONFIG`: what a run needs and how long it takes, before anything starts.

Arithmetic on config.json, the run config and counts of the data: no weight is read, DeepSpeed is
not imported, no card is touched. Exit status 1 where the run cannot be or does not fit.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from glmforge.cli.arguments import Settings
from glmforge.cli.output import print_json
from glmforge.config import load_config_file

ASSUMED_CARD_GIB = 80.0
"""Planned for where no card is here and none was named: a common data-centre card."""


def plan(
    config: Annotated[Path, typer.Argument(help="The run config (YAML).", show_default=False)],
    overrides: Settings = None,
    gpus: Annotated[
        int | None, typer.Option(min=1, help="Cards of the run, over all machines.")
    ] = None,
    gpu_memory: Annotated[
        float | None, typer.Option(min=1, help="Memory of one card (GiB).")
    ] = None,
    host_memory: Annotated[
        float | None, typer.Option(min=1, help="Memory of one machine (GiB).")
    ] = None,
    cards_per_host: Annotated[
        int | None, typer.Option(min=1, help="Cards in one machine; all of them by default.")
    ] = None,
    links: Annotated[str, typer.Option(help="What joins the cards: nvlink or pcie.")] = "nvlink",
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Say whether CONFIG fits, what it takes, and what would be faster."""
    from glmforge.plan.report import make_plan
    from glmforge.plan.text import plan_json, plan_lines

    run = load_config_file(config, overrides or [])
    machine, world_size, card = _cards(run, gpus, gpu_memory, host_memory, cards_per_host, links)
    model_config, facts, problems = _inputs(run)
    found = make_plan(
        run,
        model_config,
        machine,
        world_size=world_size,
        card=card,
        facts=facts,
        problems=problems,
    )
    if as_json:
        print_json(plan_json(found))
    else:
        if card is None and gpu_memory is None:
            typer.echo(
                f"no GPU is here: planned for cards of {machine.card_gib:g} GiB (--gpu-memory)",
                err=True,
            )
        print("\n".join(plan_lines(found)))
    if not found.fits:
        raise typer.Exit(1)


def _cards(
    run: Any,
    gpus: int | None,
    gpu_memory: float | None,
    host_memory: float | None,
    cards_per_host: int | None,
    links: str,
) -> tuple[Any, int, Any]:
    """Return the machine, the number of ranks and the kind of card that are planned for.

    Raises:
        UsageError: --links is neither nvlink nor pcie, or the cards fill no whole machines.
    """
    import math

    from glmforge.errors import UsageError
    from glmforge.launch.devices import visible_devices
    from glmforge.launch.preflight import host_memory_gib
    from glmforge.plan.advisor import Machine
    from glmforge.plan.request import Card

    if links not in ("nvlink", "pcie"):
        raise UsageError(f"--links {links}: nvlink or pcie is possible")
    devices = visible_devices()
    listed = len(run.launch.gpus.split(",")) if run.launch.gpus else None
    world_size = gpus or run.launch.nproc or listed or max(1, len(devices))
    if cards_per_host and world_size > cards_per_host and world_size % cards_per_host:
        raise UsageError(
            f"--cards-per-host {cards_per_host}: {world_size} cards are no whole number of such "
            "machines; every machine has the same number"
        )
    card = None
    if devices and gpu_memory is None:
        smallest = min(devices, key=lambda device: device.total_bytes)
        gpu_memory = smallest.total_gib
        card = Card(name=smallest.name, capability=smallest.capability)
        host_memory = host_memory or host_memory_gib()
    machine = Machine(
        card_gib=round(gpu_memory or ASSUMED_CARD_GIB, 1),
        host_gib=host_memory or math.inf,
        cards_per_host=min(cards_per_host or world_size, world_size),
        links="pcie" if links == "pcie" else "nvlink",
    )
    return machine, world_size, card


def _inputs(run: Any) -> tuple[Any, Any, tuple[str, ...]]:
    """Return the model's configuration, the counts of the data, and what is wrong with the data.

    Raises:
        ModelError: there is no such directory, or its config.json cannot be read or is of no model
            that can be trained.
    """
    from glmforge.errors import GlmForgeError, ModelError
    from glmforge.models import load_config, load_tokenizer
    from glmforge.plan.data_facts import count_data
    from glmforge.plan.request import is_packed
    from glmforge.plan.shape import shape_of

    directory = run.model.model_name_or_path
    if not Path(directory).is_dir():
        what = "is a file" if Path(directory).exists() else "no such directory"
        raise ModelError(
            f"model.model_name_or_path {directory!r}: {what}; it must be a local model directory "
            "(config.json and the tokenizer's files are enough for a plan): nothing is downloaded"
        )
    model_config = load_config(directory)
    try:
        tokenizer = load_tokenizer(directory)
        packed = is_packed(run, shape_of(model_config))
        return model_config, count_data(run, tokenizer, packed=packed), ()
    except GlmForgeError as error:
        return model_config, None, error.problems
