"""Every answer in numbers, and each model's means of them beside the base's.

`score_answer` looks at one answer; `Table` holds the means of one model under one decoding, with
intervals, and the paired differences from the base. What the numbers mean is ``verdict``'s.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from glmforge.compare.answers import Given
from glmforge.compare.checks import Format, passes
from glmforge.compare.prompts import Prompt
from glmforge.compare.statistics import Estimate, difference, estimate
from glmforge.data.measures import (
    Units,
    bleu_4,
    chrf,
    distinct,
    is_exact,
    repeated_part,
    repetition,
    rouge_l,
    rouge_n,
    self_bleu,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One answer and what was measured of it; None where there is nothing to measure.

    ``loop`` is what the answer says over and over, ``repeated`` the share of runs of 2, 3 and 4
    units said before. Nearness to the reference is in shares from 0 to 1.
    """

    text: str
    tokens: int
    stop_reason: str
    loop: str
    repeated: tuple[float, float, float]
    format_holds: bool | None = None
    passes: bool | None = None
    exact: bool | None = None
    bleu_4: float | None = None
    rouge_1: float | None = None
    rouge_2: float | None = None
    rouge_l: float | None = None
    chrf: float | None = None


def score_answer(given: Given, prompt: Prompt, form: Format | None, units: Units) -> Scored:
    """Measure one answer."""
    said = units.split(given.text)
    near: dict[str, float] = {}
    if prompt.reference is not None and (wanted := units.split(prompt.reference)):
        near = {
            "bleu_4": bleu_4(said, wanted),
            "rouge_1": rouge_n(said, wanted, 1),
            "rouge_2": rouge_n(said, wanted, 2),
            "rouge_l": rouge_l(said, wanted),
            "chrf": chrf(given.text, prompt.reference),
        }
    formed = form is not None and prompt.group == "asked"
    known = prompt.reference is not None
    return Scored(
        text=given.text,
        tokens=given.tokens,
        stop_reason=given.stop_reason,
        loop=repeated_part(given.text),
        repeated=(repetition(said, 2), repetition(said, 3), repetition(said, 4)),
        format_holds=form.holds(given.text) if formed and form is not None else None,
        passes=passes(given.text, prompt.check) if prompt.check is not None else None,
        exact=is_exact(given.text, prompt.reference or "") if known else None,
        bleu_4=near.get("bleu_4"),
        rouge_1=near.get("rouge_1"),
        rouge_2=near.get("rouge_2"),
        rouge_l=near.get("rouge_l"),
        chrf=near.get("chrf"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A number of an answer: its name, its titles, whether it is a 0/1 share, what is better."""

    name: str
    english: str
    chinese: str
    value: Callable[[Scored], float | bool | None]
    is_share: bool = False
    better: str = ""
    """"more", "less", or "" where neither is better as such."""


MEASURES: tuple[Measure, ...] = (
    Measure(name="format", english="has the asked form", chinese="符合要求的格式",
            value=lambda a: a.format_holds, is_share=True, better="more"),
    Measure(name="check", english="passes its check", chinese="通过规则检查",
            value=lambda a: a.passes, is_share=True, better="more"),
    Measure(name="exact", english="equals the reference", chinese="与参考答案完全一致",
            value=lambda a: a.exact, is_share=True, better="more"),
    Measure(name="bleu_4", english="BLEU-4", chinese="BLEU-4", value=lambda a: a.bleu_4,
            better="more"),
    Measure(name="rouge_1", english="ROUGE-1", chinese="ROUGE-1", value=lambda a: a.rouge_1,
            better="more"),
    Measure(name="rouge_2", english="ROUGE-2", chinese="ROUGE-2", value=lambda a: a.rouge_2,
            better="more"),
    Measure(name="rouge_l", english="ROUGE-L", chinese="ROUGE-L", value=lambda a: a.rouge_l,
            better="more"),
    Measure(name="chrf", english="chrF", chinese="chrF", value=lambda a: a.chrf, better="more"),
    Measure(name="tokens", english="length (tokens)", chinese="长度（词元）",
            value=lambda a: a.tokens),
    Measure(name="cut", english="cut by length", chinese="因长度被截断",
            value=lambda a: a.stop_reason == "length", is_share=True, better="less"),
    Measure(name="empty", english="empty", chinese="空回答",
            value=lambda a: not a.text.strip(), is_share=True, better="less"),
    Measure(name="looped", english="says a part over and over", chinese="循环重复",
            value=lambda a: bool(a.loop), is_share=True, better="less"),
    Measure(name="rep_2", english="rep-2", chinese="rep-2", value=lambda a: a.repeated[0],
            better="less"),
    Measure(name="rep_3", english="rep-3", chinese="rep-3", value=lambda a: a.repeated[1],
            better="less"),
    Measure(name="rep_4", english="rep-4", chinese="rep-4", value=lambda a: a.repeated[2],
            better="less"),
)  # fmt: skip
"""What is measured of every answer, in the order of the tables."""

DIVERSITY: tuple[tuple[str, str, str], ...] = (
    ("distinct_1", "distinct-1 over seeds", "distinct-1（多个种子）"),
    ("distinct_2", "distinct-2 over seeds", "distinct-2（多个种子）"),
    ("self_bleu", "self-BLEU over seeds", "self-BLEU（多个种子）"),
)
"""Names and titles of what is measured of several drawn answers to one prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A mean, and how far it is from the base's on the same prompts."""

    mean: Estimate
    change: Estimate | None


Table = Mapping[str, Cell]
"""Measure → its cell; a measure without values is absent."""


def table_of(answers: Sequence[Scored], base: Sequence[Scored] | None) -> dict[str, Cell]:
    """Return the means of answers, and their differences from the base's to the same prompts."""
    table = {}
    for measure in MEASURES:
        values = [measure.value(answer) for answer in answers]
        places = [place for place, value in enumerate(values) if value is not None]
        before = None
        if base is not None:
            before = [float(measure.value(base[place]) or 0.0) for place in places]
        cell = cell_of([float(values[place] or 0.0) for place in places], before, measure.is_share)
        if cell is not None:
            table[measure.name] = cell
    return table


def diversity_of(
    drawn: Sequence[Sequence[Scored]], base: Sequence[Sequence[Scored]] | None, units: Units
) -> dict[str, Cell]:
    """Return the diversity of drawn answers, in shares.

    Args:
        drawn: the answers of each seed, prompts in one order.
        base: the base's, or None.
        units: how texts are cut.
    """
    if len(drawn) < 2:
        return {}
    table = {}
    mine, theirs = _diversities(drawn, units), _diversities(base, units) if base else None
    for name, _, _ in DIVERSITY:
        cell = cell_of(mine[name], theirs[name] if theirs else None, False)
        if cell is not None:
            table[name] = cell
    return table


def _diversities(drawn: Sequence[Sequence[Scored]], units: Units) -> dict[str, list[float]]:
    rows: dict[str, list[float]] = {name: [] for name, _, _ in DIVERSITY}
    for answers in zip(*drawn, strict=True):
        cut = [units.split(answer.text) for answer in answers]
        rows["distinct_1"].append(distinct(cut, 1))
        rows["distinct_2"].append(distinct(cut, 2))
        rows["self_bleu"].append(self_bleu(cut))
    return rows


def cell_of(values: Sequence[float], base: Sequence[float] | None, is_share: bool) -> Cell | None:
    """Return the mean of some values beside the base's; None without values."""
    mean = estimate(values, is_share=is_share)
    if mean is None:
        return None
    return Cell(mean=mean, change=None if base is None else difference(values, base))
