"""Scores of answers against references, on examples worked out by hand."""

import json
import math
import sys
from types import ModuleType

import pytest

from glmforge.data import measures
from glmforge.data.measures import (
    Units,
    bleu_4,
    characters,
    chrf,
    distinct,
    is_exact,
    repeated_part,
    repetition,
    rouge_l,
    rouge_n,
    score,
    self_bleu,
    usual_units,
)

CHARACTERS = Units(name="characters", split=characters)


def test_the_published_case_of_empty_texts(shared):
    """Case E01: nothing raises, empty answers score 0 and count, an empty reference is apart."""
    pairs = json.loads((shared / "cases/E01/pairs.json").read_text(encoding="utf-8"))
    found = score([(pair["pred"], pair["ref"]) for pair in pairs], CHARACTERS)
    assert found.answers == 6
    assert found.exact_match == pytest.approx(1 / 6)
    assert found.rouge_l == pytest.approx(1 / 5)
    assert (found.empty_answers, found.empty_references) == (2, 1)
    each = [rouge_l(characters(pair["pred"]), characters(pair["ref"])) for pair in pairs]
    assert each == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_characters_keep_latin_words_and_numbers_whole():
    """White space is no unit, punctuation is."""
    assert characters("你好，glm4 世界 3.5\n") == [
        "你",
        "好",
        "，",
        "glm4",
        "世",
        "界",
        "3",
        ".",
        "5",
    ]


def test_bleu_4_of_a_worked_example():
    """a b c d e against a b c d f: 4/5, 3/4, 2/3, 1/2, no penalty for length."""
    expected = (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** (1 / 4)
    assert bleu_4([*"abcde"], [*"abcdf"]) == pytest.approx(expected)
    assert bleu_4([*"abcde"], [*"abcde"]) == pytest.approx(1.0)


def test_bleu_4_punishes_short_answers():
    """exp(1 - 8/4) for half the length, all n-grams matching."""
    assert bleu_4([*"abcd"], [*"abcdefgh"]) == pytest.approx(math.exp(-1.0))


def test_bleu_4_halves_the_chance_of_orders_without_a_match():
    """a x b y against a b: 2/4, then 1/2 of 1/3, 1/4 of 1/2, 1/8 of 1."""
    expected = (2 / 4 * (1 / 2) / 3 * (1 / 4) / 2 * (1 / 8) / 1) ** (1 / 4)
    assert bleu_4([*"axby"], [*"ab"]) == pytest.approx(expected)
    assert bleu_4([*"xyz"], [*"abc"]) == 0.0


def test_a_short_answer_that_is_right_scores_one():
    """There are no longer n-grams to miss."""
    assert bleu_4(["好"], ["好"]) == pytest.approx(1.0)


def test_repeated_units_match_as_often_as_the_reference_has_them():
    """the the the the against the cat: one of four."""
    assert bleu_4(["the"], ["the", "cat"]) == pytest.approx(math.exp(-1.0))
    assert rouge_l(["the"] * 4, ["the", "cat"]) == pytest.approx(2 / 6)


def test_rouge_l_follows_the_order():
    """a b c d against a c b d: three in order."""
    assert rouge_l([*"abcd"], [*"acbd"]) == pytest.approx(3 / 4)
    assert rouge_l([*"ab"], [*"abcd"]) == pytest.approx(2 * 2 / 6)


def test_repetition_is_the_share_of_runs_said_before():
    """a b c d a b c d has five runs of four, four of them different; short answers have none."""
    assert repetition([*"abcdabcd"]) == pytest.approx(1 / 5)
    assert repetition(["好"] * 100) == pytest.approx(96 / 97)
    assert repetition([*"abc"]) == 0.0


def test_an_exact_match_needs_an_answer():
    """Two empty texts are no success."""
    assert is_exact(" 好\n", "好")
    assert not is_exact("", "")


def test_answers_without_references_are_counted_only():
    """A free prompt has nothing to be compared with."""
    found = score([("好", None), ("", None)], CHARACTERS)
    assert (found.exact_match, found.bleu_4, found.rouge_l) == (None, None, None)
    assert (found.answers, found.empty_answers, found.empty_references) == (2, 1, 0)
    assert score([], CHARACTERS).repetition == 0.0


def test_jieba_cuts_where_it_is_installed(monkeypatch):
    """And the name says so."""
    fake = ModuleType("jieba")
    fake.lcut = lambda text: ["今天", " ", "天气"]
    monkeypatch.setitem(sys.modules, "jieba", fake)
    monkeypatch.setattr(measures.importlib.util, "find_spec", lambda name: object())
    units = usual_units()
    assert units.name == "jieba words"
    assert units.split("今天 天气") == ["今天", "天气"]


def test_characters_are_used_without_jieba(monkeypatch):
    """And the name says so."""
    monkeypatch.setattr(measures.importlib.util, "find_spec", lambda name: None)
    assert usual_units() == CHARACTERS


def test_rouge_n_counts_runs_in_common():
    """Worked by hand: 2 of 3 words of one, 2 of 4 of the other; 1 pair of 2 and 3."""
    answer, reference = "a b c".split(), "a b d e".split()
    assert rouge_n(answer, reference, 1) == pytest.approx(2 * 2 / 7)
    assert rouge_n(answer, reference, 2) == pytest.approx(2 * 1 / 5)
    assert rouge_n([], reference, 1) == rouge_n(answer, [], 1) == 0.0


def test_chrf_weighs_recall_twice():
    """Worked by hand on one order each: "ab" against "abcd" and the other way round."""
    # orders 1 and 2: P = 1, R = 2/4 and 1/3; orders 3, 4: the reference alone has runs: 0.
    precision, recall = (1 + 1 + 0 + 0) / 4, (2 / 4 + 1 / 3 + 0 + 0) / 4
    assert chrf("ab", "abcd") == pytest.approx(5 * precision * recall / (4 * precision + recall))
    assert chrf("今天 天气", "今天天气") == 1.0
    assert chrf("", "今天") == chrf("今天", "") == chrf("", "") == 0.0


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("好的，" * 8, "好的，"),
        ("I see. " * 3, ""),
        ("哈哈哈哈", ""),
        ("well: " + "no no " * 10 + "n", " no"),
        ("a plain answer that says nothing twice in a row, and ends", ""),
        ("1. " + "\n" * 40 + "end", ""),
        ("| a | b |\n| --- | --- | --- | --- | --- |\n| 1 | 2 |", ""),
        ("above\n" + "-" * 50 + "\nbelow", ""),
        ("第一章" + "." * 40 + "12", ""),
        ("┌" + "─" * 40 + "┐", ""),
        ("，" * 24, "，"),
        ("“" * 30, "“"),
        ("😀" * 30, "😀"),
        (" " + "，\n" * 24, "，\n"),
        ("-" * 24, "-"),
        ("，。" * 12 + "，", "，。"),
        ("好的" + "！" * 24, "！"),
        ("，" * 19, ""),
        ("!" * 64, "!"),
        ("x" * 100_000, "x"),
    ],
)
def test_a_loop_is_found_with_what_it_repeats(text, unit):
    assert repeated_part(text) == unit


def test_diversity_over_answers_to_one_prompt():
    same = [["a", "b", "c", "d"]] * 3
    other = [["a", "b", "c", "d"], ["e", "f", "g", "h"]]
    assert distinct(same, 1) == pytest.approx(4 / 12)
    assert distinct(other, 2) == 1.0
    assert (self_bleu(same), self_bleu(other), self_bleu(same[:1])) == (1.0, 0.0, 0.0)
    assert distinct([[]], 1) == 0.0
