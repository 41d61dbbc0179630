"""Which options a user wrote, and a word on those that would do nothing beside the others.

An option without effect hides a mistake: who wrote it believes that it did something.
"""

from collections.abc import Collection, Iterable

import typer

from glmforge.errors import UsageError


def given_options(context: typer.Context) -> frozenset[str]:
    """Return the parameter names that stand on the command line, also at their defaults."""
    found = []
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            found.append(name)
    return frozenset(found)


def refuse_idle(given: Collection[str], names: Iterable[str], reason: str) -> None:
    """Refuse options that would do nothing.

    Args:
        given: parameter names that stand on the command line.
        names: those that have no effect here.
        reason: why not, and what to do; follows "--a and --b: ".

    Raises:
        UsageError: one of them is given.
    """
    idle = [flag_of(name) for name in names if name in given]
    if idle:
        raise UsageError(f"{' and '.join(idle)}: {reason}")


def flag_of(name: str) -> str:
    """Return the option of a parameter as it is written."""
    return {"as_json": "--json"}.get(name, f"--{name.replace('_', '-')}")
