"""A small report made by hand, with texts that try to leave their place."""

from glmforge.compare.answers import Given
from glmforge.compare.checks import Format
from glmforge.compare.prompts import Prompt
from glmforge.compare.report import Finding, ModelReport, Report
from glmforge.compare.scoring import cell_of, diversity_of, score_answer, table_of
from glmforge.data import Message
from glmforge.data.measures import Units, characters

NASTY = '</script><script>window.hit=1</script><img src=x onerror="hit=1"><!-- {{ 7*7 }} \'\u2028'
UNITS = Units(name="characters", split=characters)
FORM = Format(regex="ok.*")
BEFORE = ["no", NASTY, "same", "looping " * 9, ""]
AFTER = ["ok, the cat sat", NASTY + "more", "same", "ok", "yes"]


def prompt(number: int, text: str, **values: object) -> Prompt:
    messages = (Message(role="user", content=text),)
    return Prompt(id=f"p{number}", messages=messages, source=f"q.txt:{number}", **values)


def make_report() -> Report:
    prompts = [
        prompt(1, "first", reference="ok, the cat sat", seen=True),
        prompt(2, NASTY, reference=NASTY, seen=False),
        prompt(3, "第三个问题", seen=False),
        prompt(4, "fourth", seen=False),
        Prompt(
            id="facts-en-01",
            messages=(Message(role="user", content="general?"),),
            source="",
            group="general",
            area="facts",
            language="en",
            check={"any": ["yes"]},
        ),
    ]
    base = model("base", BEFORE, prompts, None)
    tuned = model(NASTY, AFTER, prompts, base)
    return Report(
        prompts=prompts,
        models=[base, tuned],
        settings={"stop ids": "2", "prompts": NASTY},
        notes=[NASTY],
    )


def model(
    name: str, texts: list[str], prompts: list[Prompt], base: ModelReport | None
) -> ModelReport:
    def scored(extra: str, count: int) -> list:
        return [
            score_answer(
                Given(
                    text=text + extra,
                    tokens=len(text),
                    stop_reason="length" if text.startswith("looping") else "stop",
                ),
                asked,
                FORM,
                UNITS,
            )
            for text, asked in zip(texts[:count], prompts)
        ]

    answers = {"greedy": scored("", 5), "sample-1": scored("!", 4), "sample-2": scored("?", 4)}
    tables = {
        way: table_of(row[:4], base and list(base.answers[way][:4])) for way, row in answers.items()
    }
    drawn = [answers["sample-1"], answers["sample-2"]]
    passed = cell_of([float(bool(answers["greedy"][4].passes))], [0.0] if base else None, True)
    findings = (
        Finding(topic="format", level="good", english=f"learned {NASTY}", chinese=f"学会了 {NASTY}",
                prompts=("p2", "p4")),
        Finding(topic="loops", level="bad", english="repeats in 1/4", chinese="循环重复 1/4"),
    )  # fmt: skip
    return ModelReport(
        name=name,
        path="somewhere",
        about=f"about {name}",
        answers=answers,
        tables=tables,
        parts={"seen": tables["greedy"], "held_out": tables["greedy"]},
        diversity=diversity_of(
            drawn, base and [base.answers["sample-1"], base.answers["sample-2"]], UNITS
        ),
        general={"all": passed, "en": passed, "facts": passed},
        loss=1.25,
        judged=["tuned", "base", "tie", "tie"] if base else None,
        verdict=findings if base else (),
    )
