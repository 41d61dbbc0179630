"""`glmforge doctor [CONFIG]`: is this machine ready to train, and if not, what to do.

A list of pass / warn / fail with the fix of each; exit status 1 where something fails. The checks
are in `glmforge.launch.doctor`.
"""

from pathlib import Path
from typing import Annotated

import typer

from glmforge.cli.arguments import Settings
from glmforge.cli.output import print_json


def doctor(
    config: Annotated[
        Path | None, typer.Argument(help="A run config to check too.", show_default=False)
    ] = None,
    overrides: Settings = None,
    self_test: Annotated[
        bool, typer.Option(help="Also time an all-reduce between all ranks (about 20 s).")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check versions, cards, links, memory, limits, ports, and CONFIG's model and data."""
    from glmforge.launch.doctor import examine

    checks = examine(config, overrides or [], self_test=self_test)
    failed = [check for check in checks if check.verdict == "fail"]
    if as_json:
        print_json(checks)
    else:
        for check in checks:
            print(f"{check.verdict:4}  {check.name:20} {check.found}")
            if check.fix:
                print(f"{'':26} fix: {check.fix}")
        warned = sum(check.verdict == "warn" for check in checks)
        print(f"{len(checks)} checks: {len(failed)} failed, {warned} warning{'s' * (warned != 1)}")
    if failed:
        raise typer.Exit(1)
