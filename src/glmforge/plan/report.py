"""A plan: everything about a run that arithmetic knows before it starts.

Owns `make_plan`, which asks the account, the advisor and the run's length, and gathers problems
(the run cannot be), warnings (it can, but) and notes. ``plan/text.py`` prints it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glmforge.config import RunConfig
from glmforge.config.from_deepspeed import read_map
from glmforge.errors import ConfigError
from glmforge.plan.advisor import Advice, Candidate, Machine, advise, judge, ways_out
from glmforge.plan.batch import BatchSizes
from glmforge.plan.data_facts import DataFacts
from glmforge.plan.deepspeed_config import bucket_warnings, write_config, write_sound_part
from glmforge.plan.length import RunLength, length_warnings, most_checkpoints, run_length
from glmforge.plan.memory import why_cards_do_not_help
from glmforge.plan.request import (
    Card,
    is_packed,
    planned_precision,
    precision_verdict,
    request_problems,
    stage_3_notes,
    workload_of,
)
from glmforge.plan.settings import engine_settings, filled_notes, run_sizes
from glmforge.plan.shape import ModelShape, shape_of
from glmforge.plan.unaccounted import unaccounted
from glmforge.plan.usual import unusual_settings
from glmforge.plan.weights import trained_parameters
from glmforge.plan.workload import GIB, Precision, beside

ALTERNATIVES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is known of a run. ``written`` is the config as it stands, judged; ``user_map`` its
    `deepspeed:` map, {} where there is none or it cannot be read.

    ``disk_gib`` is what ``checkpoints`` of them, the most at a time, and the last weights take;
    ``length`` is None without data.
    ``contradictions`` make the run impossible anywhere; ``too_large`` says what is so for these
    cards, and ``ways_out`` what would fit.
    """

    shape: ModelShape
    machine: Machine
    sizes: BatchSizes
    user_map: Mapping[str, Any]
    engine: dict[str, Any]
    written: Candidate
    advice: Advice
    length: RunLength | None
    disk_gib: float
    checkpoints: int
    contradictions: tuple[str, ...]
    too_large: tuple[str, ...]
    ways_out: tuple[str, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def misfit(self) -> tuple[str, ...]:
        """What does not fit, then what would."""
        return (*self.too_large, *self.ways_out)

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong: what contradicts itself, what does not fit, and the ways out of that."""
        return (*self.contradictions, *self.misfit)

    @property
    def fits(self) -> bool:
        """Whether the run as written can be and fits."""
        return self.written.fits and not self.problems

    def verdict(self) -> str:
        """Say whether it fits."""
        if self.machine.card_gib == math.inf:
            return "the size of the card is not known"
        return self.written.verdict(self.machine)

    def card_words(self) -> str:
        """Name the memory of a card."""
        gib = self.machine.card_gib
        return "unknown size" if gib == math.inf else f"{gib:g} GiB"

    def machine_words(self) -> str:
        """Name the cards planned for."""
        return f"{self.sizes.world_size} card(s) of {self.card_words()}"

    @property
    def hours(self) -> float | None:
        """Expected hours on cards like the H200, None without data."""
        if self.length is None:
            return None
        return self.length.total_steps * self.written.speed.step_seconds / 3600


def make_plan(
    config: RunConfig,
    model_config: Any,
    machine: Machine,
    *,
    world_size: int,
    card: Card | None = None,
    precision: Precision | None = None,
    facts: DataFacts | None = None,
    problems: tuple[str, ...] = (),
) -> Plan:
    """Plan a run.

    Args:
        config: the run config.
        model_config: the model's own configuration.
        machine: the cards it is planned for.
        world_size: ranks of all machines.
        card: the kind of card, where it is known.
        precision: what the run computes in, where that is decided; None asks config and card.
        facts: counts of the data, None where they could not be had.
        problems: what was found wrong before (files, data).
    """
    shape = shape_of(model_config)
    precision = precision or planned_precision(config, card)
    user_map = _user_map(config)
    sizes = run_sizes(config, world_size, packing=is_packed(config, shape), user_map=user_map)
    engine, conflicts, planned = _engine(config, sizes, precision)
    work = workload_of(config, engine, sizes, shape, precision, _longest_row(config, facts))
    written = judge(shape, work, machine)
    bad, doubtful = precision_verdict(precision, card, shape.family.name)
    found = [
        *problems,
        *conflicts,
        *request_problems(config, shape, work),
        *_position_problems(config, model_config),
        *filter(None, [bad]),
    ]
    warnings = [*planned, *filter(None, [doubtful]), *unaccounted(engine, work)]
    warnings += bucket_warnings(engine, machine.card_gib)
    length = run_length(config, facts, sizes) if facts is not None else None
    if facts is not None and length is not None:
        warnings += length_warnings(config, facts, sizes, length, user_map)
    return Plan(
        shape=shape,
        machine=machine,
        sizes=sizes,
        user_map=user_map,
        engine=engine,
        written=written,
        advice=advise(shape, work, machine),
        length=length,
        disk_gib=disk_bytes(config, shape, written, length) / GIB,
        checkpoints=most_checkpoints(config, length),
        contradictions=tuple(found),
        too_large=tuple(_misfit(shape, written, machine)),
        ways_out=() if written.fits else tuple(ways_out(shape, work, machine)),
        warnings=tuple(warnings),
        notes=tuple(_notes(config, shape, written, engine)),
    )


def _longest_row(config: RunConfig, facts: DataFacts | None) -> int:
    """Return the tokens of the longest row: less than max_length where all examples are shorter."""
    data = config.data
    if facts is None or facts.packed or facts.estimated or not facts.longest:
        return data.max_length
    multiple = data.pad_to_multiple_of
    return min(data.max_length, -(-facts.longest // multiple) * multiple)


def _user_map(config: RunConfig) -> Mapping[str, Any]:
    try:
        return read_map(config.deepspeed) or {}
    except ConfigError:
        return {}  # a file that cannot be read is a problem of `_engine`


def _engine(
    config: RunConfig, sizes: BatchSizes, precision: str
) -> tuple[dict[str, Any], tuple[str, ...], list[str]]:
    """Return the DeepSpeed config, what is wrong with the user's map, and what is planned then.

    Where something is wrong, the config keeps the right parts, for the plan to go on with.
    """
    settings = engine_settings(config, sizes, precision)
    user_map = None
    try:
        user_map = read_map(config.deepspeed)
        return write_config(settings, user_map), (), []
    except ConfigError as error:
        engine, words = write_sound_part(settings, user_map)
        return engine, error.problems, [words]


def _notes(
    config: RunConfig, shape: ModelShape, written: Candidate, engine: dict[str, Any]
) -> list[str]:
    work = written.workload
    notes = [*filled_notes(config), *unusual_settings(config)]
    notes += [*stage_3_notes(config, work, engine)]
    if work.is_low_rank and work.world_size > 1 and work.zero_stage < 3:
        notes.append(why_cards_do_not_help(shape, work))
    return notes


def _position_problems(config: RunConfig, model_config: Any) -> list[str]:
    positions = getattr(model_config, "max_position_embeddings", None)
    if positions is None or config.data.max_length <= positions:
        return []
    return [
        f"data.max_length is {config.data.max_length} tokens, but the model has {positions} "
        f"positions: write data.max_length={positions} or less"
    ]


def _misfit(shape: ModelShape, written: Candidate, machine: Machine) -> list[str]:
    """Say what does not fit."""
    found, said = written.account, []
    if found.needed_gib > machine.card_gib:
        said.append(
            f"does not fit: {found.workload.sentence()} needs about "
            f"{beside(found.needed_gib, machine.card_gib)} GiB a card, "
            f"{machine.card_gib:g} GiB are there"
        )
    host = found.host_gib * machine.cards_per_host
    if host > machine.host_gib:
        remedies = [
            *(["fewer offloads"] if found.workload.offload != "none" else []),
            *(["training.async_save: false"] if found.workload.async_save else []),
            "more machines",
        ]
        parts = ", ".join(f"{term.name} {term.gib:.1f}" for term in found.host)
        if found.workload.offload_optimizer:
            states = 12 * trained_parameters(shape, found.workload) / 1e9
            parts += (
                f"; {states:.1f} GB are fp32 masters and two moments, 12 bytes a trained parameter"
            )
        said.append(
            f"host memory: {beside(host, machine.host_gib)} GiB are needed on a machine (a rank: "
            f"{parts}), {machine.host_gib:g} GiB are there: the system would kill the run "
            f"(signal 9); use {' or '.join(remedies)}"
        )
    return said


def disk_bytes(
    config: RunConfig, shape: ModelShape, written: Candidate, length: RunLength | None
) -> int:
    """Return what the checkpoints and the last weights of a run take.

    Weights that are trained in their own format, masters and moments in fp32; as many checkpoints
    as are kept, the best one, and the one being written, or fewer in a short run.
    """
    work = written.workload
    trained = trained_parameters(shape, work)
    states = 4 + (2 if work.eight_bit else 8)
    weights = work.element * (shape.parameters if work.method == "full" else trained)
    one = weights + states * trained + (work.element * trained if work.is_low_rank else 0)
    return most_checkpoints(config, length) * one + weights
