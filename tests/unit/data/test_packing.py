"""Best-fit packing."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmforge.data import pack, unpacked
from glmforge.errors import DataError


@given(lengths=st.lists(st.integers(1, 64), max_size=80), seed=st.integers(0, 9))
def test_every_example_is_in_exactly_one_row_that_fits(lengths, seed):
    rows = pack(lengths, 64, seed)
    assert list(range(len(lengths))) == sorted(index for row in rows for index in row)
    assert all(0 < sum(lengths[index] for index in row) <= 64 for row in rows)
    assert rows == pack(lengths, 64, seed)


def test_best_fit_takes_the_fullest_row_with_room():
    rows = pack([60, 50, 4, 14], 64, 0)
    assert {frozenset({0, 2}), frozenset({1, 3})} == {frozenset(row) for row in rows}


def test_the_seed_decides_who_shares_a_row():
    lengths = [10] * 60
    assert pack(lengths, 30, 0) != pack(lengths, 30, 1)


def test_a_hundred_thousand_lengths_are_packed_tightly_in_a_moment():
    random = np.random.default_rng(0)
    lengths = np.clip(random.gamma(2.0, 145.0, size=100_000), 16, 1000).astype(int)
    start = time.perf_counter()
    rows = pack(lengths, 2048, 0)
    assert time.perf_counter() - start < 5
    assert lengths.sum() / (len(rows) * 2048) > 0.999


def test_an_example_longer_than_a_row_is_named():
    with pytest.raises(DataError, match="example 1 has 65 tokens, more than a row of 64"):
        pack([3, 65], 64, 0)


def test_unpacked_rows_hold_one_example_each():
    assert unpacked(3) == [(0,), (1,), (2,)]
