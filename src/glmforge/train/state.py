"""What a run must remember to go on as if it had never stopped.

`Progress` is the part that is the same on every rank; `rank_state` / `restore_rank_state` are the
random-number states, which every rank has for itself. The data position is `Progress.step` alone:
the order of rows is a pure function of (seed, epoch, step).
"""

import random
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from glmforge.errors import CheckpointError


@dataclass(slots=True, kw_only=True)
class Progress:
    """Where the run stands. Mutated by the loop only."""

    step: int = 0
    """Optimizer updates done."""
    skipped_steps: int = 0
    """Updates among them that fp16 overflow turned into nothing."""
    lost_in_a_row: int = 0
    """Newest steps in a row whose loss was not finite."""
    best_eval_loss: float | None = None
    """Lowest validation loss so far, nats per trained token."""
    best_metric: float | None = None
    """Best value so far of `training.metric_for_best_model`."""
    best_step: int | None = None
    """Step of that value."""
    evaluations_since_best: int = 0
    window_sum: float = 0.0
    """Sum of the metric over the steps since the last evaluation, where it is one of the steps."""
    window_steps: int = 0
    """How many of those steps had a finite value."""
    ended_early: bool = False
    """Whether early stopping ended the run at this step."""
    looked_step: int | None = None
    """Step of the last evaluation: a run stopped by a signal may still owe one."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for the checkpoint."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Progress":
        """Read what `to_dict` wrote."""
        return cls(**values)


def rank_state(device: torch.device) -> dict[str, Any]:
    """Return this rank's random-number states (Python, NumPy, torch CPU and its CUDA device)."""
    numpy_state = np.random.get_state(legacy=False)
    state: dict[str, Any] = {
        "python": list(random.getstate()[1]),
        "numpy": {
            "key": torch.from_numpy(numpy_state["state"]["key"].astype(np.int64)),
            "pos": int(numpy_state["state"]["pos"]),
        },
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_rank_state(state: dict[str, Any], device: torch.device) -> None:
    """Set the random-number states that `rank_state` returned.

    Raises:
        CheckpointError: the state was saved on a CPU run and this is a GPU run.
    """
    random.setstate((3, tuple(state["python"]), None))
    numpy_state = np.random.get_state(legacy=False)
    numpy_state["state"]["key"] = state["numpy"]["key"].numpy().astype(np.uint32)
    numpy_state["state"]["pos"] = state["numpy"]["pos"]
    np.random.set_state(numpy_state)
    torch.set_rng_state(state["torch"])
    if device.type != "cuda":
        return
    if "cuda" not in state:
        raise CheckpointError(
            "the checkpoint was saved by a run on the CPU and holds no CUDA random state: resume "
            "it on the CPU, or start a new run"
        )
    torch.cuda.set_rng_state(state["cuda"], device)


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch (all devices)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
