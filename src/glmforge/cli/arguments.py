"""Arguments that several commands take in the same words.

One text for each, so that `--help` says the same everywhere.
"""

from typing import Annotated

import typer

Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SECTION.KEY=VALUE]...",
        help="Settings in place of the file's.",
        show_default=False,
    ),
]
