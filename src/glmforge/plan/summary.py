"""The plan in five lines at the start of a run, and beside its measured peak.

Owns `summary_lines` and `peak_line`, which training prints; they take plain facts, so that a run
that has counted its data and knows its card need not look twice.
"""

import math
from typing import Any

from glmforge.config import RunConfig
from glmforge.plan.advisor import Machine
from glmforge.plan.choice import settings_of
from glmforge.plan.data_facts import DataFacts
from glmforge.plan.report import Plan, make_plan
from glmforge.plan.request import Card
from glmforge.plan.text import duration
from glmforge.plan.workload import Precision, beside

DIFFERENCE_SHARE = 0.05
"""Planned and measured peaks further apart than this are called different."""


def plan_for_run(
    config: RunConfig,
    model_config: Any,
    *,
    world_size: int,
    local_world_size: int = 1,
    precision: Precision | None = None,
    card: Card | None = None,
    card_gib: float | None = None,
    host_gib: float | None = None,
    facts: DataFacts | None = None,
) -> Plan:
    """Plan a run that is about to start.

    Args:
        config: the run config.
        model_config: the model's own configuration.
        world_size: ranks of all machines.
        local_world_size: ranks of this machine.
        precision: what the run computes in, None for what the config and the card say.
        card: the kind of card; None on the CPU.
        card_gib: memory of one card in GiB; None on the CPU.
        host_gib: memory of this machine in GiB, None where it is not known.
        facts: counts of the data, which the run has made.
    """
    machine = Machine(
        card_gib=card_gib or math.inf,
        host_gib=host_gib or math.inf,
        cards_per_host=local_world_size,
    )
    return make_plan(
        config,
        model_config,
        machine,
        world_size=world_size,
        card=card,
        precision=precision,
        facts=facts,
    )


def refusal(plan: Plan, free_gib: float = math.inf) -> list[str]:
    """Return why a run must not start, with what would fit; empty where it may.

    A run whose tensors and CUDA context fit, and only the allocator's usual slack does not, may
    start: `summary_lines` says that it is tight.

    Args:
        plan: of the run, on the cards that it has.
        free_gib: memory of the fullest card that nobody uses, this process's context left out.
    """
    found, machine = plan.written.account, plan.machine
    reasons = list(plan.contradictions)
    least = found.peak_gib + found.context.gib
    too_large = least > machine.card_gib
    if too_large or found.host_gib * machine.cards_per_host > machine.host_gib:
        reasons += plan.misfit
    if not too_large and machine.card_gib != math.inf and found.peak_gib > free_gib:
        reasons.append(
            f"{found.peak_gib:.1f} GiB are needed on a card and {free_gib:.1f} of its "
            f"{machine.card_gib:.1f} GiB are free: another process uses it (nvidia-smi names it); "
            "end that one, or choose other cards with --gpus"
        )
    return reasons


def summary_lines(plan: Plan) -> list[str]:
    """Return the five lines that a run prints before any weight is read."""
    found, speed = plan.written.account, plan.written.speed
    on_card = plan.machine.card_gib != math.inf
    largest = sorted(found.terms, key=lambda term: -term.bytes)[:3]
    terms = ", ".join(f"{term.name} {term.gib:.1f}" for term in largest)
    if on_card:
        memory = (
            f"peak {found.peak_gib:.1f} GiB a card ({terms}), "
            f"{beside(found.needed_gib, plan.machine.card_gib)} of {plan.card_words()} with slack "
            f"and context: {plan.verdict()}"
        )
        pace = f"about {speed.tokens_per_second:,.0f} tokens/s on H200-class cards"
        pace += f", {duration(plan.hours)}" if plan.hours is not None else ""
    else:
        memory = f"no card: about {found.peak_gib:.1f} GiB of host memory a process ({terms})"
        memory += f" and {found.host_gib:.0f} GiB for the process itself"
        pace = "on the CPU: no speed is predicted"
        if found.workload.precision == "bf16":
            pace += ", and bf16 is for trying out only (many times slower than fp32 there)"
    return [
        f"plan: {found.workload.sentence()}, {found.workload.world_size} process(es)",
        f"plan: {memory}",
        "plan: " + (plan.length.sentence() if plan.length else "the data was not counted"),
        f"plan: {pace}; disk {plan.disk_gib:.1f} GiB for checkpoints",
        f"plan: {_last_line(plan, on_card=on_card)}",
    ]


def _last_line(plan: Plan, *, on_card: bool) -> str:
    """Name what matters most: a problem, a warning, something faster, or where to read more."""
    if on_card and plan.problems:
        return plan.problems[0]
    found, machine = plan.written.account, plan.machine
    if not on_card:
        gib = (found.peak_gib + found.host_gib) * machine.cards_per_host
        if gib > machine.host_gib:
            return (
                f"{machine.cards_per_host} process(es) need about {gib:.0f} GiB of this machine's "
                f"{machine.host_gib:g} GiB: the system may kill one (signal 9)"
            )
    if plan.warnings:
        return plan.warnings[0]
    best = plan.advice.best
    if on_card and best is not None:
        gain = best.speed.tokens_per_second / plan.written.speed.tokens_per_second
        if gain > 1.05:
            settings = settings_of(best.workload, plan.user_map)
            return f"{gain:.2f} times as fast and fits: {' '.join(settings)}"
    return "`glmforge plan` shows the whole account"


def host_peak_line(planned_gib: float, measured_gib: float) -> str:
    """Put the resident memory of a process on the CPU beside the tensors that were planned."""
    return (
        f"peak {measured_gib:.2f} GiB resident in the largest process, libraries included; "
        f"{planned_gib:.2f} planned for its tensors"
    )


def peak_line(planned_gib: float, measured_gib: float) -> str:
    """Put a measured peak beside the planned one, in one line for the log."""
    share = planned_gib / measured_gib - 1
    text = f"peak {measured_gib:.2f} GiB measured, {planned_gib:.2f} planned ({share:+.1%})"
    if abs(share) > DIFFERENCE_SHARE:
        text += (
            ": longer rows or generated answers may still raise it"
            if share > 0
            else (": more than planned; `glmforge plan` names the terms")
        )
    return text
