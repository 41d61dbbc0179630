"""Intervals hold what they promise, and a difference is judged prompt by prompt."""

import numpy as np
import pytest

from glmforge.compare.statistics import (
    difference,
    estimate,
    is_change,
    ratio_difference,
    wilson,
)


def test_the_interval_of_a_mean_covers_it_about_as_often_as_it_says():
    """400 samples of 60 draws whose mean is known: 95 % must hold it, within 4 %."""
    random = np.random.default_rng(5)
    hits = 0
    for _ in range(400):
        found = estimate(list(random.exponential(2.0, 60)))
        hits += found.low <= 2.0 <= found.high
    assert hits / 400 == pytest.approx(0.95, abs=0.04)


def test_a_share_without_variation_has_wilsons_interval():
    """Worked out from the formula: 0 of 50 leaves up to 7.1 %."""
    found = estimate([0.0] * 50, is_share=True)
    assert (found.value, found.low) == (0.0, 0.0)
    assert found.high == pytest.approx(0.0714, abs=1e-4)
    assert wilson(50, 50)[0] == pytest.approx(1 - 0.0714, abs=1e-4)


def test_pairs_find_what_means_alone_would_not():
    """Prompts differ by 100, answers by 1: resampled apart, the difference would drown."""
    before = [float(100 * place) for place in range(20)]
    after = [value + 1.0 + (place % 2) * 0.5 for place, value in enumerate(before)]
    found = difference(after, before)
    assert found.value == pytest.approx(1.25)
    assert is_change(found)
    assert not is_change(difference(before, before))


def test_the_same_values_have_the_same_interval():
    values = [1.0, 2.0, 4.0, 8.0]
    assert estimate(values) == estimate(values)
    assert estimate([]) is None


def test_few_prompts_show_no_change():
    assert not is_change(estimate([1.0] * 4))
    assert is_change(estimate([1.0] * 5))
    assert not is_change(None)


def test_the_difference_of_a_loss_is_over_tokens_and_resamples_rows():
    """Rows of unlike length: the mean over tokens; the same rows of both models together."""
    random = np.random.default_rng(3)
    tokens = [int(n) for n in random.integers(5, 200, 40)]
    before = [n * (2.0 + float(random.normal())) for n in tokens]
    after = [nll - 0.1 * n for nll, n in zip(before, tokens, strict=True)]
    found = ratio_difference(after, before, tokens)
    assert found.count == 40
    assert (found.value, found.low, found.high) == pytest.approx((-0.1, -0.1, -0.1))
    assert is_change(found)
    assert not is_change(ratio_difference(before, before, tokens))
    noisy = [nll + n * float(random.normal()) for nll, n in zip(before, tokens, strict=True)]
    assert not is_change(ratio_difference(noisy, before, tokens))
    assert ratio_difference([], [], []) is None
