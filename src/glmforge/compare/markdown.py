"""A report as Markdown: the verdict, the tables, and the answers that the verdict points at.

For pull requests and notes; the page shows every answer. Text of models only ever stands in
fenced blocks or escaped table cells, so that it stays text.
"""

import re
from collections.abc import Iterator, Mapping

from glmforge.compare.report import ModelReport, Report
from glmforge.compare.scoring import DIVERSITY, MEASURES, Cell
from glmforge.compare.verdict import in_one_line

_MARKS = {"good": "+", "bad": "−", "note": "·"}


def markdown(report: Report) -> str:
    """Return the report as Markdown text."""
    lines = ["# Before and after", ""]
    for model in report.tuned:
        lines += [f"## {_cell(model.name)}", "", in_one_line(model.verdict)[0] + ".", ""]
        for finding in model.verdict:
            see = f" — see {', '.join(finding.prompts)}" if finding.prompts else ""
            lines.append(f"- {_MARKS[finding.level]} {_cell(finding.english + see)}")
        lines.append("")
    for way in report.base.tables:
        if report.base.tables[way]:
            lines += [f"## Measures: {way}", "", *_table(report, way), ""]
    lines += [*_extra(report, "Diversity over seeds", "diversity"), *_general(report)]
    lines += [*_examples(report), *_settings(report)]
    return "\n".join(lines).rstrip() + "\n"


def shown(cell: Cell | None, *, is_share: bool, is_base: bool = False) -> str:
    """A mean with its interval, and the change from the base where there is one."""
    if cell is None:
        return "–"
    mean = cell.mean

    def number(value: float) -> str:
        return f"{value:.0%}" if is_share else f"{value:.3g}"

    text = f"{number(mean.value)} [{number(mean.low)}, {number(mean.high)}]"
    if cell.change is None or is_base:
        return text
    change = cell.change
    sign = "+" if change.value >= 0 else ""
    points = f"{100 * change.value:.0f} pt" if is_share else f"{change.value:.3g}"
    return f"{text} ({sign}{points})"


def _table(report: Report, way: str) -> Iterator[str]:
    names = [measure for measure in MEASURES if measure.name in report.base.tables[way]]
    yield _row("measure", *(model.name for model in report.models))
    yield "| --- " * (len(report.models) + 1) + "|"
    for measure in names:
        cells = [
            shown(model.tables[way].get(measure.name), is_share=measure.is_share)
            for model in report.models
        ]
        yield _row(measure.english, *cells)


def _extra(report: Report, title: str, part: str) -> Iterator[str]:
    tables: list[Mapping[str, Cell]] = [getattr(model, part) for model in report.models]
    if not tables[0]:
        return
    yield from (f"## {title}", "")
    yield _row("measure", *(model.name for model in report.models))
    yield "| --- " * (len(report.models) + 1) + "|"
    for name, english, _ in DIVERSITY:
        yield _row(english, *(shown(table.get(name), is_share=False) for table in tables))
    yield ""


def _general(report: Report) -> Iterator[str]:
    if not report.base.general:
        return
    yield from ("## General questions passed", "")
    yield _row("part", *(model.name for model in report.models))
    yield "| --- " * (len(report.models) + 1) + "|"
    for name in report.base.general:
        cells = [shown(model.general.get(name), is_share=True) for model in report.models]
        yield _row(name, *cells)
    yield ""


def _examples(report: Report) -> Iterator[str]:
    """The answers that the verdicts name."""
    places = {prompt.id: n for n, prompt in enumerate(report.prompts)}
    wanted: dict[str, None] = {}
    for model in report.tuned:
        for finding in model.verdict:
            wanted.update(dict.fromkeys(finding.prompts))
    if wanted:
        yield from ("## Answers to see", "")
    for name in wanted:
        prompt = report.prompts[places[name]]
        yield from (f"### {_cell(name)}", "", "prompt", "", *_fenced(prompt.text))
        if prompt.reference is not None:
            yield from ("reference", "", *_fenced(prompt.reference))
        for model in report.models:
            found = model.answers["greedy"][places[name]]
            about = f"{_cell(model.name)} ({found.tokens} tokens, {found.stop_reason})"
            yield from (about, "", *_fenced(found.text))


def _settings(report: Report) -> Iterator[str]:
    yield from ("## How", "")
    for name, value in report.settings.items():
        yield f"- {name}: {_cell(str(value))}"
    for model in report.models:
        yield f"- {_cell(model.name)}: {_cell(model.about)}{_loss(model)}"
    for note in report.notes:
        yield f"- note: {_cell(note)}"


def _loss(model: ModelReport) -> str:
    if model.loss is None:
        return ""
    change = ""
    if (found := model.loss_change) is not None:
        change = f" ({found.value:+.4f} \\[{found.low:+.4f}, {found.high:+.4f}\\])"
    return f", validation loss {model.loss:.4f} nats a token{change}"


def _row(*cells: str) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    """Text that stays text: one line, without meaning to Markdown or HTML."""
    flat = " ".join(text.split())
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", flat)


def _fenced(text: str) -> Iterator[str]:
    """A block that no run of backticks inside can end."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    yield from (f"{fence}text", text, fence, "")
