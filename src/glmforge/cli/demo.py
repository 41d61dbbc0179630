"""`glmforge demo`: the main job on packaged dialogues, with a before/after table.

It is what `make demo` runs: `glmforge train` on a packaged config, then a comparison. The exit
status is not 0 if training did not change the model.
"""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[
        Path | None, typer.Option(help="Directory for the demo's run; without it a new one.")
    ] = None,
    nproc: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
) -> None:
    """Train a small ChatGLM on packaged dialogues and compare its answers."""
    from glmforge.train.demo import run_demo

    raise typer.Exit(run_demo(out, nproc))
