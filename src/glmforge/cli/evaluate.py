"""`glmforge evaluate MODEL`: loss and answers on a file of dialogues, and harness tasks.

MODEL is what `glmforge export` takes. The work is in `glmforge.compare.evaluation`.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from glmforge.cli.given import given_options, refuse_idle
from glmforge.cli.imports import heavy_imports
from glmforge.cli.output import print_json
from glmforge.errors import UsageError

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def evaluate(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(help="A run, a checkpoint, an adapter or a model.")],
    data: Annotated[
        list[str] | None,
        typer.Option(help="Dialogues; without it those of the run. May be given several times."),
    ] = None,
    base: Annotated[
        Path | None, typer.Option(help="Base model, where it is not where the adapter says.")
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            min=8,
            help="Longest row of the loss (tokens), where no run says it; 2048 or the positions.",
        ),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer (tokens).")] = 256,
    num_prompts: Annotated[
        int, typer.Option(min=-1, help="Dialogues that are answered; 0 none, -1 all.")
    ] = 100,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows through the model together.")] = 4,
    dtype: Annotated[
        str | None, typer.Option(help="bf16, fp16 or fp32; without it bf16 on a GPU, else fp32.")
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(help="lm-evaluation-harness tasks, separated by commas.")
    ] = None,
    num_fewshot: Annotated[int | None, typer.Option(min=0, help="Of the tasks.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Documents of each task.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Measure MODEL: validation loss, generated answers, lm-evaluation-harness tasks."""
    if dtype is not None and dtype not in _DTYPES:
        raise UsageError(f"--dtype {dtype}: use one of {', '.join(_DTYPES)}")
    _refuse_idle(model, given_options(context), tasks, num_prompts)
    with heavy_imports():
        import torch

        from glmforge.compare.evaluation import evaluate_model

    report = evaluate_model(
        model,
        data or [],
        base=base,
        max_length=max_length,
        max_new_tokens=max_new_tokens,
        num_prompts=None if num_prompts == -1 else num_prompts,
        batch_size=batch_size,
        dtype=None if dtype is None else getattr(torch, _DTYPES[dtype]),
        tasks=[name.strip() for name in (tasks or "").split(",") if name.strip()],
        num_fewshot=num_fewshot,
        limit=limit,
    )
    if as_json:
        print_json(report)
    else:
        print("\n".join(report.lines()))


def _refuse_idle(model: Path, given: Collection[str], tasks: str | None, num_prompts: int) -> None:
    """Refuse what would do nothing.

    Raises:
        UsageError: names the options.
    """
    if not tasks:
        refuse_idle(given, ["num_fewshot", "limit"], "only with --tasks")
    if num_prompts == 0:
        refuse_idle(given, ["max_new_tokens"], "nothing is answered with --num-prompts 0")
    with heavy_imports():
        from glmforge.compare.subjects import run_of

    if run_of(model) is not None:
        reason = "the run that the model is from says data.max_length; leave it out"
        refuse_idle(given, ["max_length"], reason)
