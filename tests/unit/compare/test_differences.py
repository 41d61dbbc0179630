"""Changes add up to both texts, word by word."""

import pytest

from glmforge.compare import differences
from glmforge.compare.differences import changes


@pytest.fixture(autouse=True)
def without_jieba(monkeypatch):
    monkeypatch.setattr(differences.importlib.util, "find_spec", lambda name: None)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("the cat sat", "the dog sat down"),
        ("今天天气很好。", "今天的天气不好！"),
        ("a  b\n\nc", "a b\nc\n"),
        ("", "new"),
        ("old", ""),
        ("", ""),
        ("x" * 5000 + "\nsame\n" + " y" * 4000, "z" * 5000 + "\nsame\n"),
    ],
)
def test_the_parts_of_either_side_are_its_text(before, after):
    found = changes(before, after)
    assert "".join(text for kind, text in found if kind <= 0) == before
    assert "".join(text for kind, text in found if kind >= 0) == after


def test_words_change_as_a_whole():
    assert changes("the cat sat", "the car sat") == [
        (0, "the "),
        (-1, "cat"),
        (1, "car"),
        (0, " sat"),
    ]
    assert changes("same", "same") == [(0, "same")]
