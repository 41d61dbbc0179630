"""A plan in words: the table for people, the five lines at the start of a run, the JSON.

Owns the wording only; every number comes from `Plan`.
"""

import json
from typing import Any

from glmforge.plan.activations import layer_items
from glmforge.plan.advisor import Candidate
from glmforge.plan.choice import checkpointing_setting, settings_of
from glmforge.plan.report import ALTERNATIVES, Plan
from glmforge.plan.workload import Workload, beside


def plan_json(plan: Plan) -> dict[str, Any]:
    """Return the plan as the keys of ``glmforge plan --json``."""
    found = plan.written.account
    terms = {term.name: round(term.gib, 3) for term in found.terms}
    terms["allocator_slack"] = round(found.slack.gib, 3)
    terms["cuda_context"] = round(found.context.gib, 3)
    return {
        "fits": plan.written.fits,
        "peak_gib": round(found.peak_gib, 2),
        "host_gib": round(found.host_gib * plan.machine.cards_per_host, 2),
        **_settings(found.workload),
        "world_size": found.workload.world_size,
        "terms": terms,
        "alternatives": [
            _alternative(one, plan.machine.cards_per_host)
            for one in plan.advice.ranked[:ALTERNATIVES]
        ],
        "problems": list(plan.problems),
    }


def _settings(work: Workload) -> dict[str, Any]:
    return {
        "zero_stage": work.zero_stage,
        "offload": work.offload,
        "micro_batch": work.micro_batch,
        "gradient_accumulation_steps": work.accumulation,
    }


def _alternative(one: Candidate, cards_per_host: int) -> dict[str, Any]:
    return {
        **_settings(one.workload),
        "gradient_checkpointing": checkpointing_setting(one.workload),
        "peak_gib": round(one.account.peak_gib, 2),
        "host_gib": round(one.account.host_gib * cards_per_host, 2),
        "tokens_per_second": round(one.speed.tokens_per_second),
    }


def plan_lines(plan: Plan) -> list[str]:
    """Return the whole plan for people."""
    found = plan.written.account
    lines = [
        f"{plan.shape.family.title_for(plan.shape.parameters)}, {plan.shape.parameters:,} "
        f"parameters, {plan.machine_words()}",
        f"as written: {found.workload.sentence()}",
        f"batch: {plan.sizes.sentence()} rows a step",
        "",
        f"memory of one card at its peak ({found.moment}), GiB",
    ]
    lines += [f"  {term.gib:8.2f}  {term.name:22} {term.formula}" for term in found.terms]
    lines.append(f"  {found.peak_gib:8.2f}  = planned max_memory_allocated")
    lines += [
        f"  {term.gib:8.2f}  {term.name:22} {term.formula}" for term in (found.slack, found.context)
    ]
    needed = beside(round(found.needed_gib, 6), plan.machine.card_gib)
    needed = needed if len(needed.partition(".")[2]) > 2 else f"{found.needed_gib:.2f}"
    lines.append(f"  {needed:>8}  = needed of {plan.card_words()}: {plan.verdict()}")
    lines += _layer_lines(plan)
    host = ", ".join(f"{term.name} {term.gib:.1f}" for term in found.host)
    lines += [f"host memory of one rank, GiB: {host}", ""]
    lines += _length_lines(plan)
    lines += _ranking(plan)
    for title, sentences in (("warning", plan.warnings), ("note", plan.notes)):
        lines += [f"{title}: {sentence}" for sentence in sentences]
    faults = (*plan.contradictions, *plan.too_large)
    if faults:
        lines += ["", f"{len(faults)} problem{'' if len(faults) == 1 else 's'}:"]
        lines += [f"{number}. {text}" for number, text in enumerate(faults, 1)]
    if plan.ways_out:
        lines += ["what else was tried:", *(f"- {text}" for text in plan.ways_out)]
    return [*lines, "", "deepspeed.json:", json.dumps(plan.engine, indent=1)]


def _layer_lines(plan: Plan) -> list[str]:
    """Name what a layer keeps for its backward pass, kind by kind."""
    work = plan.written.workload
    kinds = [item for item in layer_items(plan.shape, work) if item.bytes]
    again = " (computed again in backward)" if work.checkpointing else ""
    words = ", ".join(f"{item.name} {item.bytes:,}" for item in kinds)
    return [f"a layer keeps, bytes a token{again}: {words}"]


def _length_lines(plan: Plan) -> list[str]:
    speed = plan.written.speed
    lines = []
    if plan.length is not None and plan.hours is not None:
        lines.append(plan.length.sentence())
        lines.append(
            f"expected: {duration(plan.hours)} at {speed.tokens_per_second:,.0f} tokens/s, on "
            "cards as fast as an H200 (659 TFLOP/s in bf16); other cards in proportion"
        )
    most = f"{plan.checkpoints} checkpoint{'' if plan.checkpoints == 1 else 's'}"
    lines.append(f"disk: {plan.disk_gib:.1f} GiB for at most {most} at a time and the last weights")
    return [*lines, ""]


def duration(hours: float) -> str:
    """Say how long, in hours, or in minutes where that is less than one."""
    return f"{hours:.1f} h" if hours >= 1 else f"{hours * 60:.1f} minutes"


def _ranking(plan: Plan) -> list[str]:
    order = "offloading last"
    if plan.written.workload.is_low_rank:
        order = "ZeRO-2 before ZeRO-3, offloading last"
    heading = f"configurations that fit ({order}; among equals the fastest first):"
    lines = [heading] if plan.advice.ranked else []
    for one in plan.advice.ranked[:ALTERNATIVES]:
        lines.append(
            f"  {one.account.needed_gib:7.1f} GiB  {one.speed.tokens_per_second:10,.0f} tokens/s  "
            f"{one.workload.sentence()}"
        )
    lines += list(plan.advice.sentences)
    best = plan.advice.best
    if best is not None and best.workload != plan.written.workload:
        lines.append("to take the choice: " + " ".join(settings_of(best.workload, plan.user_map)))
    return [*lines, ""]
