"""Tasks of EleutherAI's lm-evaluation-harness on a model that is open already.

Owns the one place that imports ``lm_eval``, which is not a dependency: it is used where it is
installed, and asked for by name where it is not. The harness knows transformers' models; ours is
one.
"""

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

from glmforge.errors import UsageError


def check_harness(tasks: Sequence[str]) -> None:
    """Find out before a weight is read whether tasks can be run.

    Raises:
        UsageError: the package is not installed.
    """
    if importlib.util.find_spec("lm_eval") is None:
        raise UsageError(
            f"--tasks {','.join(tasks)}: needs lm-evaluation-harness, which is not installed: "
            "pip install 'lm-eval[hf]'. Loss and generated answers (--data) need nothing more"
        )


def run_tasks(
    model: Any,
    tokenizer: Any,
    tasks: Sequence[str],
    batch_size: int,
    num_fewshot: int | None,
    limit: int | None,
) -> dict[str, dict[str, float]]:
    """Run tasks; return task → metric → value, metrics named as the harness does.

    Raises:
        UsageError: the harness does not know a task.
    """
    harness: Any = importlib.import_module("lm_eval")
    models: Any = importlib.import_module("lm_eval.models.huggingface")
    wrapped = models.HFLM(pretrained=_bare(model), tokenizer=tokenizer, batch_size=batch_size)
    try:
        found = harness.simple_evaluate(
            model=wrapped, tasks=list(tasks), num_fewshot=num_fewshot, limit=limit
        )
    except KeyError as error:
        raise UsageError(f"--tasks: the harness does not know {error}") from error
    return {
        task: {
            name.removesuffix(",none"): float(value)
            for name, value in values.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        for task, values in found["results"].items()
    }


def _bare(model: Any) -> Any:
    """Return the model inside PEFT's wrapper, adapters in place: the harness wants its class."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model
