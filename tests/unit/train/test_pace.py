"""A rank that makes the others wait is named; unequal work is not taken for slowness."""

import torch
from torch import nn

from glmforge.train.pace import WARM_UP_STEPS, WINDOW_STEPS, ForwardClock, Pace, RankTimes


def steps(pace, count, *ranks):
    said = []
    for _ in range(count):
        said += pace.observe([RankTimes(**rank) for rank in ranks])
    return said


def rank(forward=1.0, data=0.01, tokens=1000.0):
    return {"forward_seconds": forward, "data_seconds": data, "computed_tokens": tokens}


def test_a_slow_forward_pass_is_named_once():
    """With both times; again only after it was as fast as the others."""
    pace = Pace()
    assert steps(pace, WARM_UP_STEPS, rank(), rank(forward=60.0)) == []
    (line,) = steps(pace, WINDOW_STEPS, rank(), rank(), rank(forward=2.0))
    assert line.startswith("rank 2 is slow: it does its forward passes in 2.00 s a step where the")
    assert steps(pace, WINDOW_STEPS, rank(), rank(), rank(forward=2.0)) == []
    assert steps(pace, WINDOW_STEPS, rank(), rank(), rank()) == []
    assert len(steps(pace, WINDOW_STEPS, rank(), rank(), rank(forward=2.0))) == 1


def test_slow_data_is_named_as_such():
    """Its disk, not its GPU."""
    pace = Pace()
    found = steps(pace, WARM_UP_STEPS + WINDOW_STEPS, rank(data=0.5), rank())
    assert found[0].startswith("rank 0 is slow: it makes its batches in 0.50 s a step where the ot")


def test_more_tokens_take_more_time():
    """Longer rows on one rank are no fault of it."""
    pace = Pace()
    many = rank(forward=2.0, tokens=2000.0)
    assert steps(pace, WARM_UP_STEPS + WINDOW_STEPS, rank(), many) == []


def test_differences_that_nobody_feels_are_not_said():
    """Twice as long, but a hundredth of a second."""
    pace = Pace()
    found = steps(pace, WARM_UP_STEPS + WINDOW_STEPS, rank(forward=0.01), rank(forward=0.02))
    assert found == []


def test_only_forward_passes_of_training_are_measured():
    """Evaluations have their own length."""
    module = nn.Linear(4, 4)
    clock = ForwardClock(module, torch.device("cpu"))
    module(torch.ones(2, 4))
    assert clock.take() > 0
    assert clock.take() == 0
    module.eval()
    module(torch.ones(2, 4))
    assert clock.take() == 0
