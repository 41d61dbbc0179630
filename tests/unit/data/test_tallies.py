"""Frequent names and even samples of long streams."""

from glmforge.data.tallies import Frequent, Longest, Sample


def test_few_names_are_counted_exactly_and_equals_keep_their_order():
    names = Frequent()
    for name in "abcbab":
        names.add(name, f"text {name}")
    assert [(c.name, c.count, c.example) for c in names.most(2)] == [
        ("b", 3, "text b"),
        ("a", 2, "text a"),
    ]


def test_a_frequent_name_survives_any_number_of_rare_ones():
    names = Frequent(limit=100)
    for number in range(10_000):
        names.add(f"rare {number}", "")
        if number % 10 == 0:
            names.add("often", "an example")
    (top,) = names.most(1)
    assert (top.name, top.example) == ("often", "an example")
    assert 990 <= top.count <= 1000


def test_a_sample_is_whole_when_small_and_even_when_large():
    small, large = Sample(limit=10), Sample(limit=10)
    for number in range(19):
        small.add(number)
    for number in range(1000):
        large.add(number)
    assert small.items == list(range(19))
    steps = {b - a for a, b in zip(large.items, large.items[1:])}
    assert (len(steps), large.items[0]) == (1, 0)
    assert 10 <= len(large.items) < 20


def test_the_longest_texts_are_kept_in_order():
    longest = Longest(2)
    for place, length in (("a", 5), ("b", 9), ("c", 7), ("d", 9)):
        longest.add(length, place)
    assert longest.above(6) == (("b", 9), ("d", 9))
    assert longest.above(9) == ()
