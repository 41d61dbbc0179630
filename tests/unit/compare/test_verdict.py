"""What is said in plain words rests on the numbers, in both languages."""

import dataclasses
import json

import pytest

from glmforge.compare.answers import Given
from glmforge.compare.checks import Format
from glmforge.compare.prompts import Prompt
from glmforge.compare.report import ModelReport
from glmforge.compare.scoring import cell_of, score_answer, table_of
from glmforge.compare.statistics import Estimate
from glmforge.compare.verdict import in_one_line, verdict_on
from glmforge.data import Message
from glmforge.data.measures import Units, characters

UNITS = Units(name="characters", split=characters)


def prompts_of(references, general=0):
    asked = [
        Prompt(id=f"p{n}", messages=(Message(role="user", content="q"),), source="", reference=r)
        for n, r in enumerate(references)
    ]
    return asked + [
        Prompt(
            id=f"g{n}",
            messages=(Message(role="user", content="q"),),
            source="",
            group="general",
            area="facts" if n % 2 else "arithmetic",
            check={"any": ["yes"]},
        )
        for n in range(general)
    ]


def model(name, texts, prompts, base=None, form=None, cut=(), seen=None, **losses):
    given = [
        Given(text=text, tokens=len(text), stop_reason="length" if n in cut else "stop")
        for n, text in enumerate(texts)
    ]
    scored = [score_answer(g, p, form, UNITS) for g, p in zip(given, prompts, strict=True)]
    asked = [n for n, p in enumerate(prompts) if p.group == "asked"]
    general = [n for n, p in enumerate(prompts) if p.group == "general"]

    def table(places):
        before = base and [base.answers["greedy"][n] for n in places]
        return table_of([scored[n] for n in places], before)

    passed = [float(bool(scored[n].passes)) for n in general]
    had = [float(bool(base.answers["greedy"][n].passes)) for n in general] if base else None
    return ModelReport(
        name=name,
        path="",
        about="",
        answers={"greedy": scored},
        tables={"greedy": table(asked)},
        parts={part: table(places) for part, places in (seen or {}).items()},
        diversity={},
        general={"all": cell_of(passed, had, True)} if general else {},
        **losses,
    )


def verdict(before, after, prompts, **options):
    losses = options.pop("losses", (None, None))
    cut = options.pop("cut", ())
    base = model("base", before, prompts, loss=losses[0], form=options.get("form"))
    tuned = model("t", after, prompts, base=base, loss=losses[1], cut=cut, **options)
    return {finding.topic: finding for finding in verdict_on(tuned, base, prompts)}


def test_the_sentence_of_the_issue():
    """learned the format: 46/50 vs 3/50; forgot nothing measurable; repeats in 2/50: see ..."""
    prompts = prompts_of([None] * 50, general=40)
    before = ["类型：x"] * 3 + ["hm"] * 47 + ["yes"] * 30 + ["no"] * 10
    after = (
        ["类型：y"] * 46 + ["no"] * 2 + ["loop " * 20] * 2 + ["yes"] * 29 + ["no"] * 10 + ["yes"]
    )
    found = verdict(before, after, prompts, form=Format(regex="类型：.*"))
    assert found["format"].english == "learned the format: 46/50 vs 3/50"
    assert found["format"].chinese == "学会了格式：46/50，原模型 3/50"
    assert found["format"].prompts == ("p46", "p47", "p48", "p49")
    assert found["general"].english == (
        "forgot nothing measurable: 30/40 vs 30/40 general questions (lost 1, gained 1)"
    )
    assert found["general"].prompts == ("g29",)
    assert found["loops"].english == "repeats in 2/50 (base 0/50) (may be chance)"
    assert found["loops"].prompts == ("p48", "p49")
    assert [found[topic].level for topic in ("format", "general", "loops")] == [
        "good",
        "good",
        "note",
    ]
    english, chinese = in_one_line(list(found.values()))
    assert english.startswith("learned the format: 46/50 vs 3/50; forgot nothing measurable")
    assert "循环重复 2/50" in chinese


def test_forgetting_is_named_with_its_area():
    prompts = prompts_of([None] * 5, general=40)
    before = ["a"] * 5 + ["yes"] * 40
    after = ["b"] * 5 + ["yes" if n % 2 else "no" for n in range(40)]
    found = verdict(before, after, prompts)
    assert found["general"].level == "bad"
    assert found["general"].english == (
        "forgot: 20/40 vs 40/40 general questions (lost 20, gained 0), most in arithmetic"
    )


@pytest.mark.parametrize(
    ("known", "start"),
    [(0, "nothing to forget"), (4, "forgetting can hardly be measured")],
)
def test_a_base_that_knows_little_cannot_forget_much(known, start):
    prompts = prompts_of([None] * 5, general=20)
    before = ["a"] * 5 + ["yes"] * known + ["no"] * (20 - known)
    found = verdict(before, before, prompts)
    assert found["general"].english.startswith(start)
    assert found["general"].level == "note"


def test_a_change_within_chance_is_not_called_one():
    prompts = prompts_of(["right"] * 10)
    before = ["right"] * 5 + ["wrong"] * 5
    after = ["right"] * 6 + ["wrong"] * 4
    found = verdict(before, after, prompts)
    assert found["references"].english.startswith("as near to the references as before")
    assert found["references"].level == "note"
    assert "exact 6/10 vs 5/10" in found["references"].english


def test_few_prompts_are_too_few_to_tell():
    found = verdict(["x"] * 3, ["right"] * 3, prompts_of(["right"] * 3))
    assert found["references"].level == "note"
    assert "only 3 prompts: too few to tell" in found["references"].english
    assert "仅3条" in found["references"].chinese


def test_the_published_case_of_empty_predictions(shared):
    """Case E01: 1 of 6 exact, an empty reference apart, "empty predictions: 2"."""
    pairs = json.loads((shared / "cases/E01/pairs.json").read_text(encoding="utf-8"))
    prompts = prompts_of([pair["ref"] for pair in pairs])
    answers = [pair["pred"] for pair in pairs]
    found = verdict(["x"] * 6, answers, prompts)
    assert found["empty"].english == "empty predictions: 2/6 (base 0/6) (may be chance)"
    assert found["references"].english.endswith("exact 1/6 vs 0/6")
    tuned = model("t", answers, prompts)
    assert [a.rouge_l for a in tuned.answers["greedy"]] == [1.0, 0.0, 0.0, 0.0, 0.0, None]
    assert tuned.tables["greedy"]["rouge_l"].mean.count == 5


def test_answers_cut_by_length_are_always_said():
    """Case E03: the share cut after training must be shown, none included."""
    prompts = prompts_of([None] * 6)
    assert verdict(["a"] * 6, ["b"] * 6, prompts)["cut"].english == (
        "cut by length in 0/6 (base 0/6)"
    )
    found = verdict(["a"] * 6, ["b"] * 6, prompts, cut=(1, 2, 4, 5))["cut"]
    assert (found.english, found.level, found.prompts) == (
        "cut by length in 4/6 (base 0/6)",
        "bad",
        ("p1", "p2", "p4", "p5"),
    )


@pytest.mark.parametrize(
    ("before", "after", "count", "level", "doubt"),
    [
        (0, 0, 11, "note", ""),
        (0, 1, 11, "note", " (may be chance)"),
        (1, 0, 11, "note", " (may be chance)"),
        (0, 11, 11, "bad", ""),
        (11, 0, 11, "good", ""),
        (11, 11, 11, "note", ""),
        (0, 3, 3, "note", " (only 3 prompts: too few to tell)"),
    ],
)
def test_loops_are_called_worse_or_better_as_every_other_change_is(
    before, after, count, level, doubt
):
    """Only where the interval of the difference leaves zero out, on enough prompts."""
    texts = [["loop " * 20] * loops + ["fine"] * (count - loops) for loops in (before, after)]
    found = verdict(*texts, prompts_of([None] * count))["loops"]
    assert found.english == f"repeats in {after}/{count} (base {before}/{count}){doubt}"
    assert found.level == level


def test_a_tuning_that_changes_nothing_is_told():
    found = verdict(["same"] * 6, ["same"] * 6, prompts_of([None] * 6))
    assert found["unchanged"].level == "bad"
    assert "changes nothing" in found["unchanged"].english


def test_memorising_shows_between_seen_and_held_out():
    prompts = prompts_of(["alpha beta"] * 12)
    after = ["alpha beta"] * 6 + ["x"] * 6
    seen = {"seen": list(range(6)), "held_out": list(range(6, 12))}
    found = verdict(["x"] * 12, after, prompts, seen=seen)
    assert found["memorised"].english == (
        "much nearer on prompts it was trained on: ROUGE-L 1.00 (6 seen) vs 0.00 (6 held out)"
    )


def test_the_loss_is_told_both_ways():
    prompts = prompts_of([None] * 5)
    far = Estimate(value=-1.25, low=-1.5, high=-1.0, count=9)
    found = verdict(["a"] * 5, ["b"] * 5, prompts, losses=(2.5, 1.25), loss_change=far)
    assert found["loss"].english == "validation loss 1.250 vs 2.500 nats a token"
    assert found["loss"].level == "good"
    worse = Estimate(value=1.0, low=0.5, high=1.5, count=9)
    found = verdict(["a"] * 5, ["b"] * 5, prompts, losses=(1.0, 2.0), loss_change=worse)
    assert found["loss"].level == "bad"


@pytest.mark.parametrize(
    ("count", "words"), [(9, "(may be chance)"), (4, "(only 4 rows: too few to tell)")]
)
def test_a_loss_that_may_be_chance_is_not_called_a_change(count, words):
    """The interval of its difference holds zero, or rows are too few."""
    change = Estimate(value=0.001, low=-0.2 if count == 9 else 0.0005, high=0.2, count=count)
    prompts = prompts_of([None] * 5)
    found = verdict(["a"] * 5, ["b"] * 5, prompts, losses=(1.0, 1.001), loss_change=change)
    assert found["loss"].level == "note"
    assert found["loss"].english == f"validation loss 1.001 vs 1.000 nats a token {words}"


def test_a_check_is_asked_only_of_prompts_that_have_one():
    prompts = [
        dataclasses.replace(p, check={"any": ["yes"]} if n % 2 else None)
        for n, p in enumerate(prompts_of([None] * 12))
    ]
    after = ["no"] * 2 + ["yes"] * 10
    found = verdict(["no"] * 12, after, prompts)["check"]
    assert (found.english, found.prompts) == ("passes more checks: 5/6 vs 0/6", ("p1",))


def test_equal_answers_with_another_loss_are_no_tuning_that_changes_nothing():
    """Nor are equal answers to four questions."""
    change = Estimate(value=0.01, low=-0.1, high=0.1, count=9)
    for count, losses in ((5, (1.0, 1.01)), (4, (None, None))):
        answers, prompts = ["a"] * count, prompts_of([None] * count)
        found = verdict(answers, answers, prompts, losses=losses, loss_change=change)
        assert found["unchanged"].level == "note"
        assert found["unchanged"].english == f"answers exactly as the base in {count}/{count}"
