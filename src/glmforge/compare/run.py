"""`glmforge compare`: the same prompts through a base and what was made of it, then the report.

Order: everything that can be refused (models, prompts, stop ids, tokenizers) before a weight is
read; then every model's answers and loss, on all ranks; then, on the main rank alone, the scores,
the judge and the verdict.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glmforge.compare.answers import Asked, Decoding, Given, Kept, ask
from glmforge.compare.judge import judge_pairs
from glmforge.compare.loss import (
    keep_losses,
    kept_losses,
    refuse_not_finite_loss,
    row_losses,
    trained_tokens,
)
from glmforge.compare.prompts import Prompt
from glmforge.compare.report import ModelReport, Report
from glmforge.compare.scoring import Cell, Scored, cell_of, diversity_of, score_answer, table_of
from glmforge.compare.setup import Request, Say, Setup, set_up
from glmforge.compare.statistics import Estimate, estimate, ratio_difference
from glmforge.compare.subjects import Subject, opened
from glmforge.compare.verdict import verdict_on
from glmforge.data.measures import Units, usual_units
from glmforge.distributed.collectives import Ranks
from glmforge.models.dtypes import DTYPES


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heard:
    """What one model gave: answers by decoding, and its summed nll of each validation row."""

    answers: Mapping[str, Sequence[Given]]
    losses: Sequence[float] | None


def compare_models(request: Request, ranks: Ranks, say: Say) -> Report | None:
    """Compare models; return the report on the main rank, None on the others.

    Raises:
        GlmForgeError: a model, an adapter, a prompt file or the judge cannot be used.
    """
    name = request.dtype or ("fp32" if ranks.device.type == "cpu" else "bf16")
    setup = set_up(request, name, ranks, say)
    heard: dict[str, _Heard] = {}
    kept = Kept(request.kept_dir, ranks.rank)
    kept.load()
    ranks.barrier()  # nobody writes before all have read
    for subject, model in opened(setup.subjects, ranks.device, DTYPES[name]):
        who = Asked(
            name=subject.name, identity=subject.identity, model=model, tokenizer=setup.tokenizer
        )
        answers = dict(ask(who, setup.work, request.ways, kept, ranks, say))
        general = ask(who, setup.general_work, request.ways[:1], kept, ranks, say)
        answers["greedy"] = [*answers["greedy"], *general["greedy"]]
        losses = _losses(subject, model, setup, request, ranks)
        heard[subject.name] = _Heard(answers=answers, losses=losses)
    if not ranks.is_main:
        return None
    settings = _settings(request, setup, name)
    return _report(request, setup, heard, settings)


def _losses(
    subject: Subject, model: Callable[[], Any], setup: Setup, request: Request, ranks: Ranks
) -> list[float] | None:
    rows = setup.rows
    if rows is None:
        return None
    path = request.kept_dir / "losses.jsonl"
    losses = ranks.on_main(lambda: kept_losses(path, subject.identity, rows))
    if losses is None:
        losses = row_losses(model, rows, setup.tokenizer.pad_token_id or 0, ranks)
        for loss, row in zip(losses, rows.examples, strict=True):
            refuse_not_finite_loss(loss, subject.name, row.source)
        if ranks.is_main:
            keep_losses(path, subject.identity, rows, losses)
    return losses


def _report(
    request: Request,
    setup: Setup,
    heard: Mapping[str, _Heard],
    settings: Mapping[str, Any],
) -> Report:
    units = usual_units()
    models: list[ModelReport] = []
    for subject in setup.subjects:
        base = models[0] if models else None
        found = _model_report(subject, heard[subject.name], base, setup, request, units)
        if base is not None:
            found = _judged(found, base, setup.prompts, request)
            change = _loss_change(heard[subject.name], heard[base.name], setup)
            found = dataclasses.replace(found, loss_change=change)
            verdict = verdict_on(found, base, setup.prompts)
            found = dataclasses.replace(found, verdict=verdict)
        models.append(found)
    return Report(prompts=setup.prompts, models=models, settings=settings, notes=setup.notes)


def _model_report(
    subject: Subject,
    heard: _Heard,
    base: ModelReport | None,
    setup: Setup,
    request: Request,
    units: Units,
) -> ModelReport:
    prompts = setup.prompts
    # Drawn answers and those of beams are to the user's prompts alone, which come first.
    answers = {
        way: [score_answer(a, p, request.form, units) for a, p in zip(row, prompts)]
        for way, row in heard.answers.items()
    }
    asked = [n for n, prompt in enumerate(prompts) if prompt.group == "asked"]

    def table(way: str, places: Sequence[int]) -> dict[str, Cell]:
        before = None if base is None else [base.answers[way][n] for n in places]
        return table_of([answers[way][n] for n in places], before)

    def drawn(of: Mapping[str, Sequence[Scored]]) -> list[list[Scored]]:
        return [[of[way.name][n] for n in asked] for way in request.ways if way.is_drawn]

    parts = {
        name: [n for n in asked if prompts[n].seen is seen]
        for name, seen in (("seen", True), ("held_out", False))
    }
    return ModelReport(
        name=subject.name,
        path=str(subject.path),
        about=_about(subject),
        answers=answers,
        tables={way: table(way, asked) for way in answers},
        parts={name: table("greedy", places) for name, places in parts.items() if places},
        diversity=diversity_of(
            drawn(answers), None if base is None else drawn(base.answers), units
        ),
        general=_general(answers["greedy"], base, prompts),
        loss=_mean_loss(heard, setup),
    )


def _mean_loss(heard: _Heard, setup: Setup) -> float | None:
    """Nats a trained token over all rows."""
    if heard.losses is None or setup.rows is None:
        return None
    return math.fsum(heard.losses) / max(1, sum(trained_tokens(setup.rows)))


def _loss_change(after: _Heard, before: _Heard, setup: Setup) -> Estimate | None:
    if after.losses is None or before.losses is None or setup.rows is None:
        return None
    return ratio_difference(after.losses, before.losses, trained_tokens(setup.rows))


def _general(
    answers: Sequence[Scored], base: ModelReport | None, prompts: Sequence[Prompt]
) -> dict[str, Cell]:
    """The passed share of the general set: all, by language, by area."""
    places = [n for n, prompt in enumerate(prompts) if prompt.group == "general"]
    parts: dict[str, list[int]] = {"all": places}
    for n in places:
        parts.setdefault(prompts[n].language, []).append(n)
    for n in places:
        parts.setdefault(prompts[n].area, []).append(n)
    table = {}
    for name, chosen in parts.items():
        before = None
        if base is not None:
            before = [float(bool(base.answers["greedy"][n].passes)) for n in chosen]
        cell = cell_of([float(bool(answers[n].passes)) for n in chosen], before, True)
        if cell is not None:
            table[name] = cell
    return table


def _judged(
    found: ModelReport, base: ModelReport, prompts: Sequence[Prompt], request: Request
) -> ModelReport:
    if request.judge is None:
        return found
    asked = [n for n, prompt in enumerate(prompts) if prompt.group == "asked"]
    outcomes = judge_pairs(
        request.judge,
        [prompts[n] for n in asked],
        [base.answers["greedy"][n].text for n in asked],
        [found.answers["greedy"][n].text for n in asked],
        request.kept_dir / "judgments.jsonl",
    )
    worth = {"tuned": 1.0, "tie": 0.0, "base": -1.0}
    mean = estimate([worth[outcome] for outcome in outcomes])
    change = None if mean is None else Cell(mean=mean, change=None)
    return dataclasses.replace(found, judged=outcomes, judge_change=change)


def _about(subject: Subject) -> str:
    if subject.start_seed is not None:
        return f"random weights, as the run began (seed {subject.start_seed}): {subject.path}"
    if subject.source is None:
        return f"base model {subject.path}"
    if subject.source.adapter is not None:
        return f"adapter {subject.source.adapter} on the base"
    return f"whole model {subject.source.shards or subject.source.model}"


def _settings(request: Request, setup: Setup, dtype: str) -> dict[str, Any]:
    values: dict[str, Any] = {
        "prompts": f"{request.prompts} ({sum(p.group == 'asked' for p in setup.prompts)})",
        "stop ids": ", ".join(map(str, setup.work.stops)),
        "longest answer (tokens)": request.max_new_tokens,
        "decodings": ", ".join(_way(way) for way in request.ways),
        "precision": dtype,
        "texts cut into": usual_units().name,
        "intervals": "95 %, bootstrap over prompts",
    }
    if request.form is not None:
        values["asked form"] = str(request.form)
    if setup.rows is not None:
        values["validation"] = f"{setup.rows.origin} ({len(setup.rows.examples)} rows)"
    if request.judge is not None:
        values["judge"] = f"{request.judge.model} at {request.judge.base_url}"
    empty = sum(p.reference is not None and not p.reference.strip() for p in setup.prompts)
    if empty:
        values["references"] = f"{empty} reference{'s' if empty > 1 else ''} empty, not compared"
    return values


def _way(way: Decoding) -> str:
    sampling = way.sampling
    if not way.is_drawn:
        return way.name
    return (
        f"{way.name} (temperature {sampling.temperature:g}, top-p {sampling.top_p:g}, repetition "
        f"penalty {sampling.repetition_penalty:g})"
    )
