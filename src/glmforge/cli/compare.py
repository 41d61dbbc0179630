"""`glmforge compare --runs A B`: what two short runs did differently, step by step.

The work is in `glmforge.compare`.
"""

from pathlib import Path
from typing import Annotated

import typer

from glmforge.cli.output import print_json

Runs = Annotated[
    tuple[Path, Path] | None,
    typer.Option(help="Two run directories, side by side.", metavar="A B", show_default=False),
]
Rows = Annotated[int, typer.Option(min=2, help="Most steps in the table (--json has all).")]


def compare(
    runs: Runs = None,
    rows: Rows = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Compare two runs: the settings that differ, and loss, grad_norm, tokens/s, peak by step."""
    from glmforge.compare.runs import compare_runs, comparison_lines
    from glmforge.errors import UsageError

    if runs is None:
        raise UsageError("compare what? Two runs: --runs A B")
    found = compare_runs(*runs)
    if as_json:
        print_json(found)
    else:
        print("\n".join(comparison_lines(found, most_steps=rows)))
