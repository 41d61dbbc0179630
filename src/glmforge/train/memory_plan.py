"""The plan of a run that starts: printed before any weight is read, kept to by refusing what cannot
be, and put beside the measured peak after step 2.

Owns what training adds to ``glmforge.plan``: the counts of its data, the memory of its own cards,
and the decision to start. The arithmetic is the plan's.
"""

import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from glmforge.config import RunConfig
from glmforge.data.selection import RowFacts
from glmforge.distributed.collectives import Ranks
from glmforge.errors import TrainingError
from glmforge.launch.preflight import host_memory_gib
from glmforge.plan.data_facts import DataFacts
from glmforge.plan.report import Plan
from glmforge.plan.request import Card
from glmforge.plan.summary import host_peak_line, peak_line, plan_for_run, refusal, summary_lines
from glmforge.plan.workload import Precision
from glmforge.train.metrics import StepRecord
from glmforge.train.prepare import RunPlan
from glmforge.train.session import Session
from glmforge.train.training_data import TrainingData

GIB = 2**30
MEASURED_STEP = 2
"""The first step with optimizer states; a run that ends before it is measured at its last step."""


def facts_of(data: TrainingData) -> DataFacts:
    """Return the counts of a run's training data, from the lengths that it keeps anyway."""
    found: RowFacts = data.train.facts  # type: ignore[attr-defined]
    return DataFacts(
        dialogues=int(found.starts.sum()),
        rows=len(data.train_rows),
        tokens=int(found.lengths.sum()),
        trained_tokens=int(found.trained_counts.sum()),
        longest=int(found.lengths.max(initial=0)),
        packed=data.packed,
    )


def plan_start(
    config: RunConfig,
    planned: RunPlan,
    ranks: Ranks,
    say: Callable[[str], None],
    *,
    ignore_plan: bool,
) -> Plan:
    """Plan a run on the cards that it has, print it on every node, and refuse what cannot fit.

    Args:
        config: of the run.
        planned: what was found out about it.
        ranks: all ranks; the smallest of their cards counts.
        say: prints a line on rank 0.
        ignore_plan: start although the plan says that it does not fit.

    Raises:
        TrainingError: it does not fit the card or the host; says what would. On every rank.
    """
    card, total, free = _card(ranks.device)
    local_rank = float(ranks.world.local_rank)
    gathered = ranks.gather_floats([total, free, host_memory_gib(), local_rank])
    say = node_sayer(ranks, say, [int(row[3]) for row in gathered])
    found = plan_for_run(
        config,
        planned.model.config,
        world_size=ranks.world_size,
        local_world_size=ranks.world.local_world_size,
        precision=cast(Precision, planned.precision),
        card=card,
        card_gib=min(row[0] for row in gathered) or None,
        host_gib=min(row[2] for row in gathered),
        facts=facts_of(planned.data),
    )
    for line in summary_lines(found):
        say(line)
    problems = refusal(found, min(row[1] for row in gathered))
    if problems and not ignore_plan:
        raise TrainingError([*problems, "to start all the same: --ignore-plan"])
    for text in problems:
        say(f"plan: {text}")
    return found


def node_sayer(
    ranks: Ranks, say: Callable[[str], None], local_ranks: Sequence[int]
) -> Callable[[str], None]:
    """Return what prints a line once on every node, under its number and host: each has a log.

    Args:
        ranks: all ranks.
        say: prints a line on rank 0; a run on one node goes on with it.
        local_ranks: of all ranks, in their order; a node begins at each 0.
    """
    firsts = [rank for rank, local in enumerate(local_ranks) if local == 0]
    if len(firsts) == 1:
        return say
    if ranks.rank not in firsts:
        return lambda line: None
    node = f"node {firsts.index(ranks.rank)} of {len(firsts)} ({socket.gethostname()})"

    def say_here(line: str) -> None:
        print(f"{node}: {line}", file=sys.stderr, flush=True)

    return say_here


def _card(device: torch.device) -> tuple[Card | None, float, float]:
    """Return the kind of this rank's card, its memory and what of it is free in GiB."""
    if device.type != "cuda":
        return None, 0.0, 0.0
    facts = torch.cuda.get_device_properties(device)
    free, total = torch.cuda.mem_get_info(device)
    card = Card(name=facts.name, capability=(facts.major, facts.minor))
    return card, total / GIB, free / GIB


def note_peak(session: Session, record: StepRecord) -> None:
    """Say the measured peak beside the planned one, once, after step 2 of this start."""
    done = record.step - session.begun_at
    if session.memory_plan is None or done > MEASURED_STEP:
        return
    if done == MEASURED_STEP or session.finished:
        session.recorder.say(peak_words(session.memory_plan, record.peak_gib, session.ranks.device))


def peak_words(plan: Plan, measured_gib: float, device: Any) -> str:
    """Put a measured peak beside the plan, in one line."""
    planned = plan.written.account.peak_gib
    if device.type == "cuda":
        return peak_line(planned, measured_gib)
    return host_peak_line(planned, measured_gib)
