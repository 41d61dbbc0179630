"""The learning rate is a pure function of the updates done, equal to transformers' schedules."""

import pytest
import torch
from transformers import get_scheduler

from glmforge.train.schedule import decay_count, learning_rate, warmup_count


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("linear", "linear"), ("cosine", "cosine"), ("constant", "constant_with_warmup")],
)
def test_equals_transformers_schedule(ours, theirs):
    """Every step of a 50-step run with 7 warm-up steps."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=3e-4)
    scheduler = get_scheduler(theirs, optimizer, num_warmup_steps=7, num_training_steps=50)
    for step in range(50):
        rate = learning_rate(step, peak=3e-4, total_steps=50, warmup_steps=7, kind=ours)
        assert rate == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9, abs=1e-15)
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize(("warmup", "decay"), [(7, 12), (0, 50), (10, 40), (0, 1)])
def test_equals_transformers_warmup_stable_decay(warmup, decay):
    """Every step of a 50-step run; the three parts, or without one of them."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=3e-4)
    scheduler = get_scheduler(
        "warmup_stable_decay",
        optimizer,
        num_warmup_steps=warmup,
        num_training_steps=50,
        scheduler_specific_kwargs={"num_decay_steps": decay},
    )
    for step in range(50):
        rate = learning_rate(
            step,
            peak=3e-4,
            total_steps=50,
            warmup_steps=warmup,
            kind="warmup_stable_decay",
            decay_steps=decay,
        )
        assert rate == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9, abs=1e-15)
        optimizer.step()
        scheduler.step()


def test_decay_ratio_rounds_up_and_steps_win():
    """10 % of 100 steps is 10, of 15 steps 2; written steps replace the ratio."""
    assert decay_count(100, None, 0.1) == 10
    assert decay_count(15, None, 0.1) == 2
    assert decay_count(100, 7, 0.1) == 7


def test_warmup_ratio_rounds_up_and_steps_win():
    """3 % of 100 steps is 3, of 10 steps 1; written steps replace the ratio."""
    assert warmup_count(100, None, 0.03) == 3
    assert warmup_count(10, None, 0.03) == 1
    assert warmup_count(100, 0, 0.03) == 0


def test_the_published_case_of_a_resumed_run():
    """Case R05: peak 1e-4, 10 warm-up steps, cosine over 100."""
    expected = {
        5: 5.0e-5,
        10: 1.0e-4,
        40: 7.5e-5,
        41: 7.347358e-5,
        60: 4.131759e-5,
        99: 3.045865e-8,
    }
    for step, rate in expected.items():
        actual = learning_rate(step, peak=1e-4, total_steps=100, warmup_steps=10, kind="cosine")
        assert actual == pytest.approx(rate, rel=1e-6)
