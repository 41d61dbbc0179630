"""Results on standard output, as JSON for machines.

Every command that a program may want to read has `--json`; they all print through here, so that
paths and dataclasses look the same everywhere.
"""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any


def print_json(result: Any) -> None:
    """Print a dataclass (or plain values) as one JSON text; paths become texts.

    Half surrogates, which no output can write, become JSON escapes.
    """
    text = json.dumps(result, ensure_ascii=False, indent=2, default=_plain)
    print(re.sub("[\ud800-\udfff]", lambda match: f"\\u{ord(match.group()):04x}", text))


def _plain(value: object) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    assert isinstance(value, Path), f"a result holds a {type(value).__name__}"
    return str(value)
