"""`glmforge export RUN OUT`: weights out of a run, a checkpoint, an adapter or a model.

What is written is opened again and compared before the command says done; the work is in
`glmforge.export`.
"""

from pathlib import Path
from typing import Annotated

import typer

from glmforge.cli.imports import heavy_imports
from glmforge.cli.output import print_json


def export(
    source: Annotated[
        Path, typer.Argument(help="A run, a checkpoint, an adapter or a model directory.")
    ],
    out: Annotated[Path, typer.Argument(help="Directory to make.")],
    merge: Annotated[
        bool, typer.Option("--merge", help="Add the adapter to the base: a whole model.")
    ] = False,
    base: Annotated[
        Path | None, typer.Option(help="Base model, where it is not where the adapter says.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="bf16, fp16 or fp32; without it as the base.")
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(
            help="chatglm (the original's files) or transformers (opens without glmforge); "
            "without it as the base."
        ),
    ] = None,
    max_shard_size: Annotated[
        str | None, typer.Option(help="Largest file of whole weights (5GB without it).")
    ] = None,
    fix_names: Annotated[
        bool,
        typer.Option("--fix-names", help="Put an adapter's names right (lora_A.default, prefix)."),
    ] = False,
    other_base: Annotated[
        bool,
        typer.Option(
            "--other-base", help="Use a base with other weights than the adapter was trained on."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Write the adapter, or with --merge a whole model, to OUT."""
    with heavy_imports():
        from glmforge.export import export as run_export

    report = run_export(
        source,
        out,
        merge=merge,
        base=base,
        dtype=dtype,
        layout=layout,
        max_shard_size=max_shard_size,
        fix_names=fix_names,
        other_base=other_base,
    )
    if as_json:
        print_json(report)
    else:
        print("\n".join(report.lines()))
