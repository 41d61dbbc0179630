"""Answers in numbers: exact match, BLEU-4, ROUGE, chrF, repetition, loops, diversity.

Pure functions of text, here because evaluation during training and the comparison of models both
sit above this room and must count alike. Texts are compared in units: words where jieba is
installed, else characters; whoever shows a score says which. Scores are shares from 0 to 1.
"""

import importlib.util
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_MAX_ORDER = 4
_MAX_CHARACTERS = 6
_RECALL_WEIGHT = 2
_LOOP = re.compile(r"(.{1,200}?)\1{3,}", re.DOTALL)
_LOOP_LENGTH, _RULE_LENGTH = 20, 60
# What rules, rows of tables, dotted leaders and bars are drawn with; blocks and box drawing too.
_DRAWN = re.compile(r"[-=_*.~#+|:·•…—–＿\u2500-\u259f\s]+")
# A run of Latin letters or digits is one unit, every other visible character is one of its own.
_CHARACTER = re.compile(r"[0-9A-Za-z\u00c0-\u024f]+|\S")


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """A way to cut text for comparison, and its name for reports."""

    name: str
    split: Callable[[str], list[str]]


def characters(text: str) -> list[str]:
    """Cut a text into characters, Latin words and numbers whole, white space left out."""
    return _CHARACTER.findall(text)


def usual_units() -> Units:
    """Return jieba's words where jieba is installed, else characters."""
    if importlib.util.find_spec("jieba") is None:
        return Units(name="characters", split=characters)
    import jieba

    return Units(
        name="jieba words", split=lambda text: [word for word in jieba.lcut(text) if word.strip()]
    )


def is_exact(answer: str, reference: str) -> bool:
    """Say whether an answer that is not empty is the reference, white space at the ends aside."""
    return bool(answer.strip()) and answer.strip() == reference.strip()


def bleu_4(answer: Sequence[str], reference: Sequence[str]) -> float:
    """Return BLEU-4 of one answer (Papineni et al. 2002).

    Orders up to the answer's length count, and an order without a match gets half the chance of
    the one before (method 3 of Chen and Cherry 2014, which the ChatGLM fine-tuning code uses), so
    that short answers have a score.
    """
    if not answer or not reference:
        return 0.0
    logs, halvings = [], 0
    for order in range(1, min(_MAX_ORDER, len(answer)) + 1):
        grams, wanted = _grams(answer, order), _grams(reference, order)
        matched = (grams & wanted).total()
        if order == 1 and matched == 0:
            return 0.0
        if matched == 0:
            halvings += 1
        logs.append(math.log((matched or 0.5**halvings) / grams.total()))
    brevity = min(0.0, 1.0 - len(reference) / len(answer))
    return math.exp(brevity + sum(logs) / len(logs))


def rouge_l(answer: Sequence[str], reference: Sequence[str]) -> float:
    """Return ROUGE-L as F1: the longest common subsequence of the two (Lin 2004)."""
    if not answer or not reference:
        return 0.0
    lengths = [0] * (len(reference) + 1)
    for unit in answer:
        diagonal = 0
        for place, wanted in enumerate(reference, 1):
            above = lengths[place]
            best = max(above, lengths[place - 1])
            lengths[place] = diagonal + 1 if unit == wanted else best
            diagonal = above
    return 2.0 * lengths[-1] / (len(answer) + len(reference))


def rouge_n(answer: Sequence[str], reference: Sequence[str], order: int) -> float:
    """Return ROUGE-N as F1: runs of `order` units in common (Lin 2004)."""
    grams, wanted = _grams(answer, order), _grams(reference, order)
    if not grams or not wanted:
        return 0.0
    return 2.0 * (grams & wanted).total() / (grams.total() + wanted.total())


def chrf(answer: str, reference: str) -> float:
    """Return chrF of two texts: runs of 1 to 6 characters, recall weighing twice (Popović 2015).

    White space does not count; orders longer than both texts are left out of the means.
    """
    said, wanted = "".join(answer.split()), "".join(reference.split())
    shares = []
    for order in range(1, _MAX_CHARACTERS + 1):
        grams, aims = _grams(said, order), _grams(wanted, order)
        if grams or aims:
            matched = (grams & aims).total()
            shares.append((matched / max(1, grams.total()), matched / max(1, aims.total())))
    if not shares:
        return 0.0
    precision, recall = (sum(part) / len(shares) for part in zip(*shares))
    weight = _RECALL_WEIGHT**2
    total = weight * precision + recall
    return (1 + weight) * precision * recall / total if total else 0.0


def repeated_part(text: str) -> str:
    """Return the part that a looping text says over and over; "" where it does not loop.

    A loop is a unit of up to 200 characters, four times or more in a row, from 20 characters on.
    What may be drawn on purpose, such as a rule or a row of a table, is one from 60 on, or where
    the text is nothing else.
    """
    text = text.strip()
    for match in _LOOP.finditer(text):
        unit = match[1]
        if len(match[0]) < _LOOP_LENGTH or not unit.strip():
            continue
        is_all = match.start() == 0 and unit.startswith(text[match.end() :])
        if is_all or len(match[0]) >= _RULE_LENGTH or not _DRAWN.fullmatch(unit):
            return unit
    return ""


def distinct(answers: Sequence[Sequence[str]], order: int) -> float:
    """Return the share of runs of `order` units that are different ones (Li et al. 2016)."""
    grams: Counter[tuple[str, ...]] = Counter()
    for answer in answers:
        grams.update(_grams(answer, order))
    return len(grams) / grams.total() if grams else 0.0


def self_bleu(answers: Sequence[Sequence[str]]) -> float:
    """Return how alike answers to one prompt are: the mean BLEU-4 of each against each other."""
    pairs = [
        bleu_4(answer, other)
        for place, answer in enumerate(answers)
        for number, other in enumerate(answers)
        if place != number
    ]
    return sum(pairs) / len(pairs) if pairs else 0.0


def repetition(units: Sequence[str], order: int = _MAX_ORDER) -> float:
    """Return the share of runs of `order` units that an answer has said before."""
    grams = _grams(units, order)
    return 1.0 - len(grams) / grams.total() if grams else 0.0


def _grams(units: Sequence[str] | str, order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(units[at : at + order]) for at in range(len(units) - order + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Means over a set of answers; None where nothing could be compared.

    ``exact_match`` is over all answers with a reference, ``bleu_4`` and ``rouge_l`` over those
    whose reference is not empty; an empty answer scores 0 in each.
    """

    answers: int
    empty_answers: int
    empty_references: int
    repetition: float
    exact_match: float | None
    bleu_4: float | None
    rouge_l: float | None


def score(pairs: Sequence[tuple[str, str | None]], units: Units) -> Scores:
    """Score (answer, reference) pairs; a reference of None means that there is none."""
    cut = [(units.split(answer), units.split(wanted)) for answer, wanted in pairs if wanted]
    cut = [(answer, wanted) for answer, wanted in cut if wanted]
    known = [(answer, wanted) for answer, wanted in pairs if wanted is not None]
    return Scores(
        answers=len(pairs),
        empty_answers=sum(not answer.strip() for answer, _ in pairs),
        empty_references=len(known) - len(cut),
        repetition=_mean([repetition(units.split(answer)) for answer, _ in pairs]) or 0.0,
        exact_match=_mean([float(is_exact(*pair)) for pair in known]),
        bleu_4=_mean([bleu_4(*pair) for pair in cut]),
        rouge_l=_mean([rouge_l(*pair) for pair in cut]),
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
