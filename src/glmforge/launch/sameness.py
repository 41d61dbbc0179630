"""Whether all parts of a run were started alike: the settings and options that must not differ.

Owns what is compared and its words. Launchers compare it when they meet (``rollcall.py``), ranks
when they have met, under any launcher. The `launch` section is left out: processes, cards, ports
and addresses may be another machine's own.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glmforge.config import RunConfig
from glmforge.config.overrides import read_json_map

_SHOWN = 3


def compared_settings(
    config: RunConfig, options: Mapping[str, str | bool | None]
) -> dict[str, str]:
    """Return what must be alike everywhere, by name, each value as JSON.

    Args:
        config: of the run; a DeepSpeed file of it is read, for it may differ between machines.
        options: of the command line that change the run, such as ``--resume``.
    """
    values = config.model_dump(mode="json", exclude={"launch"})
    if isinstance(config.deepspeed, str):
        values["deepspeed"], _ = read_json_map(Path(config.deepspeed))
    return _flat(values, "") | {name: json.dumps(value) for name, value in options.items()}


def _flat(values: Mapping[str, Any], prefix: str) -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = json.dumps(value, ensure_ascii=False)
    return flat


def difference(
    theirs: Mapping[str, str], there: str, ours: Mapping[str, str], here: str
) -> str | None:
    """Say in what two parts of a run differ, with both values; None where they are alike.

    Args:
        theirs: `compared_settings` of the part that is wrong if they differ.
        there: where that is, such as "on node 1".
        ours: those that count.
        here: where those are.
    """
    names = [name for name in ours if name in theirs and ours[name] != theirs[name]]
    # A map may lack a key of the other's: what is not written has no value.
    names += sorted(ours.keys() ^ theirs.keys())
    if not names:
        return None
    shown = "; ".join(
        f"{name} is {theirs.get(name, 'not set')} {there} and {ours.get(name, 'not set')} {here}"
        for name in names[:_SHOWN]
    )
    more = f"; {len(names) - _SHOWN} more differ" if len(names) > _SHOWN else ""
    return f"{shown}{more}: start the same command with the same config everywhere"
