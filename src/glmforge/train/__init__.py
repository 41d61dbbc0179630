"""Training: a readable loop on the plain DeepSpeed engine.

``run`` prepares (data, model, engine, run directory), ``loop`` trains, ``evaluate`` and
``samples`` look at the model on the way, ``checkpoint`` and ``outputs`` write, ``metrics`` records.
The package is callable, so that ``glmforge.train(config)`` starts a run in this process.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glmforge.config import RunConfig
    from glmforge.train.run import RunResult


def train(
    config: "RunConfig | str | dict[str, Any] | Any",
    resume: str | None = None,
    *,
    ignore_plan: bool = False,
    allow_changes: bool = False,
    init_from: str | None = None,
) -> "RunResult":
    """Train as `config` says, in this process (world size 1, or the launcher's).

    Args:
        config: a RunConfig, a dict of its sections, or the path of a YAML file.
        resume: a run directory to go on with, "auto" for the config's own, or None.
        ignore_plan: start although the plan says that it does not fit.
        allow_changes: go on with a run although settings, data or base are no longer as they were.
        init_from: a run, checkpoint, adapter or model whose weights a new run starts from.

    Returns:
        Where the run lives, its last step, and its best evaluation.

    Raises:
        ConfigError, DataError, ModelError, AdapterError: before any training, all faults named.
        CheckpointError: nothing to resume, a damaged checkpoint, or an occupied directory.
        TrainingError: the run cannot go on.
        Stopped: a signal ended the run after its checkpoint was written.
    """
    from glmforge.train.run import train as run_train

    return run_train(
        config,
        resume,
        ignore_plan=ignore_plan,
        allow_changes=allow_changes,
        init_from=init_from,
    )


class _CallablePackage(ModuleType):
    """Lets the room share its name with the public function (docs.python.org: module __class__)."""

    def __call__(
        self,
        config: "RunConfig | str | dict[str, Any] | Any",
        resume: str | None = None,
        *,
        ignore_plan: bool = False,
        allow_changes: bool = False,
        init_from: str | None = None,
    ) -> "RunResult":
        return train(
            config,
            resume,
            ignore_plan=ignore_plan,
            allow_changes=allow_changes,
            init_from=init_from,
        )


sys.modules[__name__].__class__ = _CallablePackage
