"""What a comparison found, as plain values: for the page, for Markdown and for JSON alike.

``run`` fills a `Report`; ``verdict`` reads one model of it; nothing here computes. Ids of prompts
are those of the prompt file, decodings are known by their names ("greedy", "sample-1", ...).
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from glmforge.compare.judge import Outcome
from glmforge.compare.prompts import Prompt, prompt_values
from glmforge.compare.scoring import DIVERSITY, MEASURES, Cell, Scored
from glmforge.compare.statistics import Estimate

Level = Literal["good", "bad", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One sentence of the verdict in two languages, and the prompts where to see it."""

    topic: str
    level: Level
    english: str
    chinese: str
    prompts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReport:
    """One model: its answers by decoding, and the means of them.

    ``tables`` are over the user's prompts, ``parts`` those of the greedy answers to "seen" and
    "held_out" ones, ``general`` the passed share of the general set ("all", areas, languages),
    ``loss`` nats per trained token, ``loss_change`` its difference from the base's.
    """

    name: str
    path: str
    about: str
    answers: Mapping[str, Sequence[Scored]]
    tables: Mapping[str, Mapping[str, Cell]]
    parts: Mapping[str, Mapping[str, Cell]]
    diversity: Mapping[str, Cell]
    general: Mapping[str, Cell]
    loss: float | None = None
    loss_change: Estimate | None = None
    judged: Sequence[Outcome] | None = None
    judge_change: Cell | None = None
    verdict: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A whole comparison; the first model is the base."""

    prompts: Sequence[Prompt]
    models: Sequence[ModelReport]
    settings: Mapping[str, Any]
    notes: Sequence[str] = field(default=())

    @property
    def base(self) -> ModelReport:
        """The model that the others are compared with."""
        return self.models[0]

    @property
    def tuned(self) -> Sequence[ModelReport]:
        """The other models."""
        return self.models[1:]

    @property
    def asked(self) -> list[int]:
        """Places of the user's prompts among all."""
        return [n for n, prompt in enumerate(self.prompts) if prompt.group == "asked"]

    @property
    def general(self) -> list[int]:
        """Places of the general set's prompts."""
        return [n for n, prompt in enumerate(self.prompts) if prompt.group == "general"]


def report_values(report: Report) -> dict[str, Any]:
    """Return a report as plain values: what the JSON file holds."""
    titles = {measure.name: [measure.english, measure.chinese] for measure in MEASURES}
    titles |= {name: [english, chinese] for name, english, chinese in DIVERSITY}
    return {
        "format": 1,
        "settings": dict(report.settings),
        "notes": list(report.notes),
        "titles": titles,
        "prompts": prompt_values(report.prompts),
        "models": [dataclasses.asdict(model) for model in report.models],
    }


def write_json(report: Report, path: Path) -> None:
    """Write a report as one JSON file."""
    text = json.dumps(report_values(report), ensure_ascii=False, indent=1)
    # Half of a surrogate pair (a model may write one) is no UTF-8: JSON has an escape for it.
    path.write_bytes(text.encode("utf-8", "backslashreplace"))
