"""Random-number states come back exactly."""

import random

import numpy as np
import torch

from glmforge.train.state import Progress, rank_state, restore_rank_state, seed_everything


def draw():
    return random.random(), float(np.random.rand()), float(torch.rand(1))


def test_states_survive_a_file(tmp_path):
    """Python, NumPy and torch draw the same numbers after a restore."""
    seed_everything(5)
    draw()
    torch.save(rank_state(torch.device("cpu")), tmp_path / "state.pt")
    expected = draw()
    draw()
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    restore_rank_state(state, torch.device("cpu"))
    assert draw() == expected


def test_progress_round_trips():
    """What a checkpoint holds is what was saved."""
    progress = Progress(step=3, skipped_steps=1, best_eval_loss=0.5, best_step=2)
    assert Progress.from_dict(progress.to_dict()) == progress
