"""The perplexity that is shown beside a loss."""

import math

import pytest

from glmforge.train.metrics import perplexity


@pytest.mark.parametrize(("loss", "expected"), [(0.0, 1.0), (math.log(57.5), 57.5)])
def test_it_is_the_exponential_of_the_loss(loss, expected):
    assert perplexity(loss) == pytest.approx(expected)


def test_a_loss_beyond_all_numbers_is_infinite_and_not_a_failure():
    assert perplexity(1e6) == math.inf
    assert math.isnan(perplexity(math.nan)) or perplexity(math.nan) == math.inf
