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
    *,
    length: int | None,
    batch_size: int,
    max_new_tokens: int,
    as_json: bool,
) -> None:
    """Generate `batch_size` rows of `length` tokens (None: the training's longest) and report.

    Raises:
        UsageError: the model has fewer positions.
        typer.Exit: with status 1, memory did not hold.
    """
    with heavy_imports():
        from glmforge.serve.chat import open_chat_model
        from glmforge.serve.stress import longest_length, stress

    opened, tokenizer = open_chat_model(model, adapter)
    wanted = length or longest_length(adapter or model, opened.config)
    positions = getattr(opened.config, "max_position_embeddings", None)
    if positions is not None and wanted > positions:
        raise UsageError(
            f"--length {wanted}: {model} has {positions} positions; give {positions} or less"
        )
    report = stress(
        opened,
        tokenizer,
        length=wanted,
        batch=batch_size,
        new_tokens=min(max_new_tokens, wanted // 2),
    )
    if as_json:
        print_json(report)
    else:
        print("\n".join(report.lines()))
    if not report.held:
        raise typer.Exit(1)
