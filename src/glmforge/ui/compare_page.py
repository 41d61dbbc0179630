"""The page of a comparison: one HTML file that needs no network and no server.

Verdict and tables are written by the template, in both languages; the answers are embedded as
JSON and shown by a script, one prompt at a time. Text of models and users enters the page escaped
by the template or, in the script, as text only; a content policy forbids everything from outside.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from glmforge.assets import asset_path
from glmforge.compare.differences import changes
from glmforge.compare.prompts import Prompt
from glmforge.compare.report import Report
from glmforge.compare.scoring import DIVERSITY, MEASURES, Cell, Scored
from glmforge.compare.statistics import is_change
from glmforge.compare.verdict import AREAS

FLAGS: dict[str, tuple[str, str]] = {
    "differs": ("answer differs", "回答不同"),
    "same": ("answer as the base's", "回答与原模型相同"),
    "format-gained": ("form gained", "新符合格式"),
    "format-lost": ("form lost", "丢失格式"),
    "check-gained": ("check newly passed", "新通过检查"),
    "check-lost": ("check no longer passed", "不再通过检查"),
    "nearer": ("nearer to the reference", "更接近参考"),
    "farther": ("farther from the reference", "更远离参考"),
    "cut": ("cut by length", "因长度截断"),
    "loops": ("repeats itself", "循环重复"),
    "empty": ("empty", "空回答"),
    "judged-better": ("judge prefers the tuned", "评审更喜欢微调后"),
    "judged-worse": ("judge prefers the base", "评审更喜欢原模型"),
}
"""What may be said of a prompt's answers, in both languages; the page filters by it."""

SETTINGS = {
    "prompts": "提示",
    "stop ids": "停止词元 id",
    "longest answer (tokens)": "最长回答（词元）",
    "decodings": "解码方式",
    "precision": "精度",
    "texts cut into": "文本切分为",
    "intervals": "区间",
    "asked form": "要求的格式",
    "validation": "验证数据",
    "judge": "评审模型",
    "references": "参考答案",
}
"""What a comparison was made with, by its Chinese names."""

_NEAR = 0.1  # ROUGE-L from which an answer counts as nearer or farther


def compare_page(report: Report) -> str:
    """Return the page's HTML."""
    pages = asset_path("pages")
    environment = Environment(
        loader=FileSystemLoader(pages),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    embedded = json.dumps(page_values(report), ensure_ascii=True, separators=(",", ":"))
    return environment.get_template("compare.html.jinja").render(
        style=Markup((pages / "compare.css").read_text(encoding="utf-8")),
        script=Markup((pages / "compare.js").read_text(encoding="utf-8")),
        data=Markup(_inert(embedded)),
        models=report.models,
        tables=list(_tables(report)),
        settings=[((name, SETTINGS.get(name, name)), v) for name, v in report.settings.items()],
        notes=report.notes,
    )


def _inert(text: str) -> str:
    """JSON that cannot end its script element or open a comment, whatever texts it holds."""
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def page_values(report: Report) -> dict[str, Any]:
    """What the script shows: prompts, and every answer with its changes from the base's."""
    ways = list(report.base.answers)
    answers = []
    for model in report.models:
        rows = {}
        for way in ways:
            base = report.base.answers[way] if model is not report.base else None
            rows[way] = [
                _answer(found, base[n] if base is not None else None)
                for n, found in enumerate(model.answers[way])
            ]
        answers.append(rows)
    return {
        "models": [{"name": model.name, "about": model.about} for model in report.models],
        "ways": ways,
        "flags": {name: list(titles) for name, titles in FLAGS.items()},
        "areas": AREAS,
        "prompts": [_prompt(report, n, prompt) for n, prompt in enumerate(report.prompts)],
        "answers": answers,
    }


def _prompt(report: Report, place: int, prompt: Prompt) -> dict[str, Any]:
    return {
        "id": prompt.id,
        "group": prompt.group,
        "area": prompt.area,
        "source": prompt.source,
        "seen": prompt.seen,
        "messages": [list(part) for part in prompt.history],
        "reference": prompt.reference,
        "check": None if prompt.check is None else json.dumps(prompt.check, ensure_ascii=False),
        "flags": sorted(set(_flags(report, place)), key=list(FLAGS).index),
    }


def _answer(found: Scored, base: Scored | None) -> dict[str, Any]:
    near = {} if found.rouge_l is None else {"near": round(found.rouge_l, 3)}
    return {
        **({"text": found.text} if base is None else {"parts": changes(base.text, found.text)}),
        "tokens": found.tokens,
        "stop": found.stop_reason,
        "loop": found.loop,
        "rep": round(found.repeated[2], 3),
        "format": found.format_holds,
        "passes": found.passes,
        "exact": found.exact,
        **near,
    }


def _flags(report: Report, place: int) -> Iterator[str]:
    """What is to be said of the greedy answers to one prompt."""
    base = report.base.answers["greedy"][place]
    asked = report.asked
    for model in report.tuned:
        found = model.answers["greedy"][place]
        yield "same" if found.text == base.text else "differs"
        if found.format_holds != base.format_holds:
            yield "format-gained" if found.format_holds else "format-lost"
        if found.passes != base.passes:
            yield "check-gained" if found.passes else "check-lost"
        if found.rouge_l is not None and base.rouge_l is not None:
            if found.rouge_l - base.rouge_l >= _NEAR:
                yield "nearer"
            if base.rouge_l - found.rouge_l >= _NEAR:
                yield "farther"
        if found.stop_reason == "length":
            yield "cut"
        if found.loop:
            yield "loops"
        if not found.text.strip():
            yield "empty"
        if model.judged is not None and place in asked:
            outcome = model.judged[asked.index(place)]
            if outcome != "tie":
                yield "judged-better" if outcome == "tuned" else "judged-worse"


def _tables(report: Report) -> Iterator[dict[str, Any]]:
    """Every table of the page: its titles and rows of cells, one a model."""
    for way in report.base.tables:
        rows = [
            _row(
                (measure.english, measure.chinese),
                [model.tables[way].get(measure.name) for model in report.models],
                is_share=measure.is_share,
                better=measure.better,
            )
            for measure in MEASURES
            if measure.name in report.base.tables[way]
        ]
        yield {"titles": (f"Measures: {way}", f"指标：{way}"), "rows": rows}
    if report.base.diversity:
        rows = [
            _row((english, chinese), [model.diversity.get(name) for model in report.models])
            for name, english, chinese in DIVERSITY
        ]
        yield {"titles": ("Diversity over seeds", "多个种子的多样性"), "rows": rows}
    if report.base.general:
        rows = [
            _row(
                _part_titles(name),
                [model.general.get(name) for model in report.models],
                is_share=True,
                better="more",
            )
            for name in report.base.general
        ]
        yield {"titles": ("General questions passed", "通用问题通过率"), "rows": rows}
    for name, titles in _PARTS.items():
        cells = [model.parts.get(name, {}) for model in report.models]
        rows = [
            _row(
                (measure.english, measure.chinese),
                [found.get(measure.name) for found in cells],
                is_share=measure.is_share,
                better=measure.better,
            )
            for measure in MEASURES
            if measure.name in cells[0]
        ]
        if rows and all(part in report.base.parts for part in _PARTS):
            yield {"titles": titles, "rows": rows}


_PARTS = {
    "seen": ("Prompts seen in training (greedy)", "训练中见过的提示（greedy）"),
    "held_out": ("Prompts not in the training data (greedy)", "训练中未见过的提示（greedy）"),
}


def _part_titles(name: str) -> tuple[str, str]:
    known = {"all": "全部", "zh": "中文", "en": "英文", **AREAS}
    english = {"zh": "in Chinese", "en": "in English"}
    return english.get(name, name), known.get(name, name)


def _row(
    titles: tuple[str, str],
    cells: list[Cell | None],
    *,
    is_share: bool = False,
    better: str = "",
) -> dict[str, Any]:
    return {
        "titles": titles,
        "cells": [None if cell is None else _cell(cell, is_share, better) for cell in cells],
    }


def _cell(cell: Cell, is_share: bool, better: str) -> Mapping[str, str]:
    def number(value: float) -> str:
        return f"{100 * value:.0f}%" if is_share else f"{value:.3g}"

    turn = ""
    if cell.change is not None and better and is_change(cell.change):
        turn = "better" if (cell.change.value > 0) == (better == "more") else "worse"
    change = ""
    if cell.change is not None:
        value = 100 * cell.change.value if is_share else cell.change.value
        change = f"{value:+.0f}" if is_share else f"{value:+.3g}"
    return {
        "mean": number(cell.mean.value),
        "interval": f"{number(cell.mean.low)} – {number(cell.mean.high)}",
        "change": change,
        "turn": turn,
    }
