"""Copies in a stream of records: found wherever they are, and nothing else taken for one."""

import random

import numpy as np
import pytest

from glmforge.data import Conversation, Message
from glmforge.data.copies import NEAR, Copies
from glmforge.data.similarity import signature


def record(text, number):
    messages = (Message(role="user", content=text), Message(role="assistant", content="好"))
    return Conversation(messages=messages, source=f"x:{number}")


def sentence(rng, length=120):
    return "".join(chr(0x4E00 + rng.randrange(2000)) for _ in range(length))


def changed(text, rng, places):
    letters = list(text)
    for at in rng.sample(range(len(letters)), places):
        letters[at] = "变"
    return "".join(letters)


@pytest.fixture(scope="module")
def texts():
    """Three hundred texts; every third has a copy that differs in one to three characters."""
    rng = random.Random(0)
    found = [sentence(rng) for _ in range(300)]
    return found, [changed(text, rng, 1 + n % 3) for n, text in enumerate(found) if n % 3 == 0]


def test_near_copies_are_those_that_a_comparison_of_all_pairs_finds(texts):
    found = [*texts[0], *texts[1]]
    copies = Copies()
    for number, text in enumerate(found):
        copies.add(record(text, number))
    marks = [signature(f"{text}\n好").astype(np.uint16) for text in found]
    expected = sum(
        any(float((marks[n] == marks[m]).mean()) >= NEAR for m in range(n))
        for n in range(len(found))
    )
    facts = copies.facts()
    assert expected > 60
    assert (facts.near, facts.exact) == (expected, 0)
    assert all("nearly repeats x:" in text for text in facts.examples)


def test_held_out_copies_are_found_exact_and_near(texts):
    copies = Copies()
    for number, text in enumerate(texts[0]):
        copies.add(record(text, number))
    rng = random.Random(1)
    held = [texts[0][5], changed(texts[0][7], rng, 1), sentence(rng)]
    for number, text in enumerate(held, 900):
        copies.add_held_out(record(text, number))
    facts = copies.facts()
    assert (facts.overlap, facts.held_out) == (2, 3)
    assert facts.overlap_examples == ("x:900", "x:901")


def test_many_copies_of_one_record_are_each_counted_once():
    copies = Copies()
    text = sentence(random.Random(2))
    for number in range(50):
        copies.add(record(text, number))
    for number in range(200):
        copies.add(record(text + str(number), number + 50))
    facts = copies.facts()
    assert (facts.exact, facts.near) == (49, 200)
    assert facts.examples[0] == "x:1 repeats x:0"


def test_a_record_leaves_less_than_a_kilobyte(texts):
    import tracemalloc

    tracemalloc.start()
    copies = Copies()
    for number in range(5_000):
        copies.add(record(f"{number} {texts[0][number % 300]}", number))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken / 5_000 < 800
