"""Validation splits and weighted sources."""

import pytest

from glmforge.data import Conversation, Message
from glmforge.data.splitting import mix, split_validation
from glmforge.errors import DataError


def record(text, line):
    messages = (Message(role="user", content=text), Message(role="assistant", content="a"))
    return Conversation(messages=messages, source=f"x:{line}")


RECORDS = [record(f"q{number}", number) for number in range(50)]


@pytest.mark.parametrize(("size", "expected"), [(5, 5), (0.1, 5), (0.5, 25), (1, 1)])
def test_a_split_by_count_or_share_divides_the_set(size, expected):
    split = split_validation(RECORDS, size)
    assert len(split.validation) == expected
    sources = [c.source for c in split.train + split.validation]
    assert sorted(sources) == sorted(c.source for c in RECORDS)


def test_a_split_depends_on_the_seed_and_not_on_the_order():
    one = {c.source for c in split_validation(RECORDS, 10, seed=1).validation}
    assert one == {c.source for c in split_validation(RECORDS[::-1], 10, seed=1).validation}
    assert one != {c.source for c in split_validation(RECORDS, 10, seed=2).validation}


def test_copies_stay_on_one_side():
    copies = [record(f"q{number % 5}", number) for number in range(50)]
    split = split_validation(copies, 25)
    texts = [{c.messages[0].content for c in part} for part in (split.train, split.validation)]
    assert texts[0].isdisjoint(texts[1])
    assert len(split.validation) == 20


def test_an_impossible_split_is_refused():
    for size in (0, 50, 0.0, 1.0):
        with pytest.raises(DataError, match="both parts need at least one record"):
            split_validation(RECORDS, size)
    with pytest.raises(DataError, match="more copies than that"):
        split_validation([record("q", number) for number in range(9)], 3)


def test_weights_repeat_and_thin_sources():
    mixed = mix([(RECORDS[:10], 2.5), (RECORDS[10:30], 0.5)])
    first = [c for c in mixed if c in RECORDS[:10]]
    assert (len(first), len(mixed)) == (25, 35)
    assert mixed == mix([(RECORDS[:10], 2.5), (RECORDS[10:30], 0.5)])
    with pytest.raises(DataError, match="weight 0"):
        mix([(RECORDS, 0)])
