"""`--stress` of `glmforge chat` and `glmforge serve`: one generation at full length, measured.

Prints what `glmforge.serve.stress` found and ends with status 1 where memory did not hold.
"""

from pathlib import Path
from typing import Annotated

import typer

from glmforge.cli.imports import heavy_imports
from glmforge.cli.output import print_json
from glmforge.errors import UsageError

Stress = Annotated[
    bool,
    typer.Option(
        "--stress",
        help="Only generate once at exactly the training's longest length: peak memory, does it "
        "hold? Exit status 1 where it does not.",
    ),
]
Length = Annotated[
    int | None, typer.Option(min=16, help="With --stress: tokens, where no run says max_length.")
]
_USUAL_NEW_TOKENS = 512
BatchSize = Annotated[int, typer.Option(min=1, help="With --stress: rows together.")]


def refuse_without_stress(length: int | None, batch_size: int) -> None:
    """Refuse options that say something about `--stress` only.

    Raises:
        UsageError: one of them is given.
    """
    given = ["--length"] * (length is not None) + ["--batch-size"] * (batch_size != 1)
    if given:
        raise UsageError(f"{' and '.join(given)}: only with --stress")


def run_stress(
    model: Path,
    adapter: Path | None,
    length: int | None,
    batch_size: int,
    max_new_tokens: int | None,
    as_json: bool,
) -> None:
    """Generate `batch_size` rows of `length` tokens and report.

    Args:
        model: a model directory, or what `find_paths` takes.
        adapter: for it, or None.
        length: prompt and answer together; None is the training's longest.
        batch_size: rows together.
        max_new_tokens: of them; None is half of the length, and no more than usual.
        as_json: print one JSON object.

    Raises:
        UsageError: the model has fewer positions, or the new tokens fill the length.
        typer.Exit: with status 1, memory did not hold.
    """
    with heavy_imports():
        from glmforge.models import load_config
        from glmforge.serve.chat import open_chat_model
        from glmforge.serve.opening import find_paths
        from glmforge.serve.stress import longest_length, stress

    named = [] if adapter is None else [("tuned", adapter)]
    config = load_config(find_paths(model, named).model)
    wanted = length or longest_length(adapter or model, config)
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and wanted > positions:
        raise UsageError(
            f"--length {wanted}: {model} has {positions} positions; give {positions} or less"
        )
    if max_new_tokens is not None and max_new_tokens >= wanted:
        raise UsageError(
            f"--max-new-tokens {max_new_tokens}: the length, prompt and answer together, is "
            f"{wanted} tokens; give less, or a longer --length"
        )
    opened, tokenizer = open_chat_model(model, adapter)
    report = stress(
        opened,
        tokenizer,
        length=wanted,
        batch=batch_size,
        new_tokens=max_new_tokens or min(_USUAL_NEW_TOKENS, wanted // 2),
    )
    if as_json:
        print_json(report)
    else:
        print("\n".join(report.lines()))
    if not report.held:
        raise typer.Exit(1)
