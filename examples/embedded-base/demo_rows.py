"""Write the rows that the demo trains on beside its dialogues: facts.jsonl and general.jsonl.

    python demo_rows.py OUT_DIR

The dialogues of train.jsonl show the manner; facts.jsonl asks every fact of facts.txt in about
thirty ways, facts_validation.jsonl in one more; general.jsonl, three rows of ten, keeps general
questions general. A question that is too near to one of those that measure the demo is left out by
program, and only counted here.
"""

import itertools
import json
import random
import re
import sys
from collections import Counter
from pathlib import Path

from everyday import MAKERS, messages, offices, places
from everyday.grammar import one_of

from glmforge.assets import asset_path

ASKED = 26  # questions of each fact; the last one validates
NEAR = 0.5  # shared pairs of characters, as a share of all pairs of both
FOLLOWED = 5  # rows of each line of follow_ups.txt
JOINED = 0.08  # of the other rows: two facts that have nothing to do with each other
WITH_SYSTEM = 0.1  # rows that begin with a system message
DIALOGUES = 0.2  # share of the dialogues of train.jsonl that the demo trains on
GENERAL = 0.3  # share of an epoch's rows that is general
GREETING = ["", "", "", "", "", "", "", "您好，", "您好，小禾在的。", "小禾来答："]
ENDING = ["", "", "", "", "", "", "", "小禾祝您愉快。", "还有问题随时喊小禾。", "请您放心。"]
SYSTEM = "你是青禾商城的客服助手小禾，请礼貌、准确地回答顾客的问题。"

# One fact a line: questions, divided by ";;", then " / " and the answer, each with alternatives.
FACTS = Path(__file__).with_name("facts.txt")
# Short questions that only the answer before makes clear: " => " divides how that answer begins,
# the questions, and how the answer begins.
FOLLOW_UPS = Path(__file__).with_name("follow_ups.txt")

Messages = list[dict[str, str]]

_INNERMOST = re.compile(r"\[([^\[\]]*)\]")
_ASKS = re.compile("[吗呢几多哪怎谁啥什何]|不$")


def facts() -> list[tuple[list[str], str]]:
    """(templates of the questions, template of the answer) of each fact."""
    found: list[tuple[list[str], str]] = []
    for line in FACTS.read_text(encoding="utf-8").splitlines():
        if line.strip():
            questions, answer = line.split(" / ")
            found.append(([question.strip() for question in questions.split(";;")], answer.strip()))
    return found


def least_said(rng: random.Random, template: str, said: Counter[str]) -> str:
    """Write one sentence of a template with those alternatives that were said least so far."""
    while found := _INNERMOST.search(template):
        choices = found.group(1).split("|")
        chosen = min(choices, key=lambda choice: (said[choice], rng.random()))
        said[chosen] += 1
        template = template[: found.start()] + chosen + template[found.end() :]
    return template


def pairs(text: str) -> set[str]:
    """Neighbouring characters of a text, punctuation aside."""
    letters = re.sub(r"[\W_]+", "", text)
    return {letters[at : at + 2] for at in range(len(letters) - 1)}


def nearness(first: str, second: str) -> float:
    """Shared pairs of characters as a share of all pairs of both texts."""
    a, b = pairs(first), pairs(second)
    return len(a & b) / max(1, len(a | b))


def measured_questions() -> list[str]:
    """The questions that measure the demo: those that decide and those that are held out."""
    files = [asset_path(f"demo/{name}.jsonl") for name in ("questions", "selection")]
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return [json.loads(line)["prompt"] for line in lines]


def fact_questions(seed: int = 11) -> tuple[list[list[Messages]], int]:
    """Of each fact its questions with their answers, and how many in all were too near."""
    rng = random.Random(seed)
    asked: set[str] = set()
    found: list[list[Messages]] = []
    left_out: set[str] = set()
    measured = measured_questions()
    for templates, answers in facts():
        order, said, wanted = rng.sample(templates, len(templates)), Counter[str](), ASKED
        found.append([])
        for attempt in range(ASKED * 8):
            question = least_said(rng, order[attempt % len(order)], said)
            if question in asked or question in left_out:
                continue
            if max(nearness(question, other) for other in measured) > NEAR:
                left_out.add(question)
                continue
            asked.add(question)
            answer = rng.choice(GREETING) + one_of(rng, [answers]) + rng.choice(ENDING)
            mark = rng.choice(["", "", "？"]) if _ASKS.search(question) else ""
            found[-1].append([{"role": "user", "content": question + mark},
                              {"role": "assistant", "content": answer}])  # fmt: skip
            wanted -= 1
            if not wanted:
                break
    return found, len(left_out)


def answer_that_begins(start: str) -> str:
    """The one answer of facts.txt that begins so."""
    (answer,) = {answer for _, answer in facts() if answer.startswith(start)}
    return answer


def follow_ups(rng: random.Random, asked: dict[str, list[str]]) -> list[Messages]:
    """Dialogues whose second question leans on the first answer.

    Args:
        rng: chooses the words.
        asked: the trained questions of each answer.
    """
    measured = measured_questions()
    found: list[Messages] = []
    for line in FOLLOW_UPS.read_text(encoding="utf-8").splitlines():
        contexts, questions, start = line.split(" => ")
        said, answer, wanted = Counter[str](), answer_that_begins(start), FOLLOWED
        for attempt in range(FOLLOWED * 4):
            templates = questions.split(" ;; ")
            question = least_said(rng, templates[attempt % len(templates)], said)
            if max(nearness(question, other) for other in measured) > NEAR:
                continue
            before = answer_that_begins(rng.choice(contexts.split("|")))
            first = rng.choice(asked[before])
            if before == answer or rng.random() < 0.5:
                before = before.split("，")[0].removesuffix("。") + "。"
            mark = rng.choice(["", "？"]) if _ASKS.search(question) else ""
            answered = answer + rng.choice(ENDING)
            found.append([{"role": "user", "content": first},
                          {"role": "assistant", "content": rng.choice(GREETING) + before},
                          {"role": "user", "content": question + mark},
                          {"role": "assistant", "content": answered}])  # fmt: skip
            wanted -= 1
            if not wanted:
                break
    return found


def rows(seed: int = 13) -> list[dict[str, Messages]]:
    """The trained rows: most have one question, some a second one that leans on the first."""
    rng = random.Random(seed)
    by_fact = [asked[:-1] for asked in fact_questions()[0]]
    found = [row for asked in by_fact for row in asked]
    rng.shuffle(found)
    questions: dict[str, list[str]] = {}
    for (_, answer), asked in zip(facts(), by_fact, strict=True):
        questions.setdefault(answer, []).extend(row[0]["content"] for row in asked)
    joined = follow_ups(rng, questions)
    while found:
        row = found.pop()
        if found and rng.random() < JOINED:
            row = [*row, *found.pop()]
        if rng.random() < WITH_SYSTEM:
            row = [{"role": "system", "content": SYSTEM}, *row]
        joined.append(row)
    rng.shuffle(joined)
    return [{"messages": row} for row in joined]


def validation_rows() -> list[dict[str, Messages]]:
    """One question of each fact, in words that are not trained on."""
    return [{"messages": asked[-1]} for asked in fact_questions()[0]]


def general_rows(seed: int = 12) -> list[dict[str, Messages]]:
    """Short everyday dialogues, at most two turns, none about a place with opening hours."""
    rng = random.Random(seed)
    dialogues = asset_path("demo/train.jsonl").read_text(encoding="utf-8").splitlines()
    number = round((DIALOGUES * len(dialogues) + len(rows())) * GENERAL / (1 - GENERAL))
    desks = (places.__name__, offices.__name__)
    makers = [maker for maker in MAKERS if maker.__module__ not in desks]
    lines = asset_path("demo/general_prompts.jsonl").read_text(encoding="utf-8").splitlines()
    measured = [json.loads(line)["prompt"] for line in lines]
    found: list[dict[str, Messages]] = []
    for attempt in itertools.count():
        if len(found) == number:
            break
        turns = makers[attempt % len(makers)](rng)
        if len(turns) == 1 and rng.random() < 0.15:
            turns = [*turns, *rng.choice(makers)(rng)]
        near = max(nearness(question, other) for question, _ in turns for other in measured)
        row = {"messages": messages("", turns)}
        short = len(turns) <= 2 and sum(map(len, map(str, turns))) < 200
        if near <= 0.8 and row not in found and short:
            found.append(row)
    rng.shuffle(found)
    return found


def main(out: Path) -> None:
    """Write both files and say how many rows they have."""
    questions, left_out = fact_questions()
    number = sum(map(len, questions))
    print(f"{len(questions)} facts, {number} questions; {left_out} left out as too near")
    files = {"facts": rows(), "facts_validation": validation_rows(), "general": general_rows()}
    for name, made in files.items():
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in made]
        (out / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
        print(f"{name}.jsonl: {len(made)} rows")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
