"""Write the rows that the demo trains on beside its dialogues: facts.jsonl and general.jsonl.

    python demo_rows.py OUT_DIR

The dialogues of train.jsonl show the manner; facts.jsonl asks every fact of facts.txt in several
ways, and general.jsonl, a third of all rows, keeps general questions general. A question that is
too near to one of those that measure the demo is left out by program, and only counted here.
"""

import itertools
import json
import random
import re
import sys
from collections import Counter
from pathlib import Path

from everyday import MAKERS, messages, places
from everyday.grammar import one_of

from glmforge.assets import asset_path

ASKED = 10  # questions of each fact
NEAR = 0.5  # shared pairs of characters, as a share of all pairs of both
JOINED = 0.25  # rows that hold two facts after each other
WITH_SYSTEM = 0.1  # rows that begin with a system message
DIALOGUES = 0.35  # share of the dialogues of train.jsonl that the demo trains on
GREETING = ["", "", "", "", "", "", "", "您好，", "您好，小禾在的。", "小禾来答："]
ENDING = ["", "", "", "", "", "", "", "小禾祝您愉快。", "还有问题随时喊小禾。", "请您放心。"]
SYSTEM = "你是青禾商城的客服助手小禾，请礼貌、准确地回答顾客的问题。"

# One fact a line: questions, divided by ";;", then " / " and the answer, each with alternatives.
FACTS = Path(__file__).with_name("facts.txt")

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


def fact_questions(seed: int = 11) -> tuple[list[list[dict[str, str]]], int]:
    """A question with its answer for every asking of every fact, and how many were too near."""
    rng = random.Random(seed)
    asked: set[str] = set()
    found: list[list[dict[str, str]]] = []
    left_out: set[str] = set()
    measured = measured_questions()
    for templates, answers in facts():
        order, said, wanted = rng.sample(templates, len(templates)), Counter[str](), ASKED
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
            found.append([{"role": "user", "content": question + mark},
                          {"role": "assistant", "content": answer}])  # fmt: skip
            wanted -= 1
            if not wanted:
                break
    return found, len(left_out)


def rows(seed: int = 13) -> list[dict[str, list[dict[str, str]]]]:
    """The rows: most have one question, some two facts after each other."""
    rng = random.Random(seed)
    found, _ = fact_questions()
    rng.shuffle(found)
    joined: list[list[dict[str, str]]] = []
    while found:
        row = found.pop()
        if found and rng.random() < JOINED:
            row = [*row, *found.pop()]
        if rng.random() < WITH_SYSTEM:
            row = [{"role": "system", "content": SYSTEM}, *row]
        joined.append(row)
    return [{"messages": row} for row in joined]


def general_rows(seed: int = 12) -> list[dict[str, list[dict[str, str]]]]:
    """Short everyday dialogues, at most two turns, none about a place with opening hours."""
    rng = random.Random(seed)
    dialogues = asset_path("demo/train.jsonl").read_text(encoding="utf-8").splitlines()
    number = round((DIALOGUES * len(dialogues) + len(rows())) / 2)  # a third of all rows
    makers = [maker for maker in MAKERS if maker.__module__ != places.__name__]
    lines = asset_path("demo/general_prompts.jsonl").read_text(encoding="utf-8").splitlines()
    measured = [json.loads(line)["prompt"] for line in lines]
    found: list[dict[str, list[dict[str, str]]]] = []
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
    print(f"{len(facts())} facts, {len(questions)} questions; {left_out} left out as too near")
    for name, made in (("facts", rows()), ("general", general_rows())):
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in made]
        (out / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
        print(f"{name}.jsonl: {len(made)} rows")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
