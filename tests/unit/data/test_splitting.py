"""Validation splits and weighted sources: whole records, chosen by number, the same every time."""

import numpy as np
import pytest

from glmforge.data import Example, ExampleList
from glmforge.data.selection import Joined, Selection, facts_of, hash_of
from glmforge.data.splitting import hold_out, mix
from glmforge.errors import DataError


def rows(content, line, count=1, name="x"):
    """The rows of one record; equal content makes copies."""
    return [
        Example(
            input_ids=np.array([content, row, 7], np.int32),
            labels=np.array([-100, row, 7], np.int32),
            source=f"{name}:{line}",
        )
        for row in range(count)
    ]


def records(contents, count=1, name="x"):
    found = [row for line, n in enumerate(contents, 1) for row in rows(n, line, count, name)]
    return ExampleList(found)


FIFTY = records(range(50))


def sources(examples):
    return [example.source for example in examples]


def contents(examples):
    return {int(example.input_ids[0]) for example in examples}


@pytest.mark.parametrize(("size", "expected"), [(5, 5), (0.1, 5), (0.5, 25), (1, 1), (0.001, 1)])
def test_a_split_by_count_or_share_divides_the_set(size, expected):
    split = hold_out([FIFTY], size)
    assert len(split.validation) == expected
    assert sorted(sources(split.train[0]) + sources(split.validation)) == sorted(sources(FIFTY))
    assert sources(split.train[0]) == [s for s in sources(FIFTY) if s in sources(split.train[0])]


def test_a_split_depends_on_the_content_and_the_seed_and_not_on_the_order():
    def held(examples, seed):
        return contents(hold_out([examples], 10, seed=seed).validation)

    assert held(FIFTY, 1) == held(records(range(49, -1, -1)), 1)
    assert held(FIFTY, 1) != held(FIFTY, 2)


def test_all_rows_of_a_record_and_all_its_copies_stay_on_one_side():
    several = [records((n % 5 for n in range(50)), 3, "a"), records(range(3, 9), 3, "b")]
    split = hold_out(several, 25)
    left = contents(split.train[0]) | contents(split.train[1])
    assert left.isdisjoint(contents(split.validation))
    assert len(split.validation) % 3 == 0
    assert int(split.validation.facts.starts.sum()) <= 25
    names = [source[0] for source in sources(split.validation)]
    assert names == ["ab"[number] for number in split.set_numbers]


@pytest.mark.parametrize(("count", "asked", "held"), [(3, 500, 1), (50, 50, 25), (2, 2, 1)])
def test_more_than_there_is_holds_out_half_and_says_so(count, asked, held):
    split = hold_out([records(range(count))], asked)
    assert (len(split.validation), len(split.train[0])) == (held, count - held)
    assert split.note == (
        f"{asked} were asked for, {held} of {count} are held out: half stays for training"
    )


def test_a_split_that_copies_make_smaller_says_so():
    split = hold_out([records([n // 2 for n in range(12)])], 5)
    assert len(split.validation) == 4
    assert "5 were asked for, 4 of 12 are held out: copies" in split.note
    assert hold_out([FIFTY], 5).note == ""


def test_an_impossible_split_is_refused():
    for size in (0, 0.0, 1.0):
        with pytest.raises(DataError, match="a count, or a share between 0 and 1"):
            hold_out([FIFTY], size)
    with pytest.raises(DataError, match="both parts need at least one record"):
        hold_out([records([1])], 3)
    with pytest.raises(DataError, match="more copies than that"):
        hold_out([records([1] * 9)], 3)


def test_weights_repeat_and_thin_whole_records():
    first, second = records(range(10), 2, "a"), records(range(10, 30), 3, "b")
    mixed = mix([(first, 2.5), (second, 0.5)])
    names = [source[0] for source in sources(mixed)]
    assert (names.count("a"), names.count("b")) == (50, 30)
    of_b = [source for source in sources(mixed) if source[0] == "b"]
    assert all(of_b.count(source) == 3 for source in of_b)
    assert sources(mixed) == sources(mix([(first, 2.5), (second, 0.5)]))
    assert sources(mixed) != sources(mix([(first, 2.5), (second, 0.5)], seed=1))
    with pytest.raises(DataError, match="weight 0"):
        mix([(FIFTY, 0)])


def test_weight_one_changes_nothing():
    assert mix([(FIFTY, 1.0)]) is FIFTY
    joined = mix([(FIFTY, 1.0), (FIFTY, 1.0)])
    assert sources(joined) == sources(FIFTY) * 2


def test_views_know_the_facts_and_rows_of_what_they_show():
    joined = Joined([FIFTY, records(range(3), 2, "y")])
    chosen = Selection(joined, np.array([55, 0, 0, 50]))
    assert sources(chosen) == ["y:3", "x:1", "x:1", "y:1"]
    assert sources(chosen[1:]) == ["x:1", "x:1", "y:1"]
    assert chosen[-1].source == "y:1"
    assert chosen.lengths.tolist() == [3] * 4
    assert chosen.trained_counts.tolist() == [2] * 4
    assert joined.facts.starts[-6:].tolist() == [True, False] * 3
    with pytest.raises(IndexError):
        chosen[4]


def test_the_hash_follows_content_and_choice():
    some = Selection(FIFTY, np.array([1, 2]))
    hashes = {hash_of(FIFTY), some.hash, Selection(FIFTY, np.array([2, 1])).hash}
    hashes |= {Joined([FIFTY]).hash, Joined([some, FIFTY]).hash}
    assert len(hashes) == 5
    assert some.hash == Selection(records(range(50)), np.array([1, 2])).hash
    assert facts_of(FIFTY).records().tolist() == list(range(50))
