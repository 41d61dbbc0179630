"""Settings given on the command line as `section.key=value`, laid over those of the file.

The value is read as YAML, so it has the same types as in the file. `null` takes a setting back
(the default applies), and a setting that replaces another (`training.max_steps` for
`training.num_train_epochs`) drops the other one of the file. What the file sets and the command
line leaves without effect (lora.r beside method=full) is dropped too; nobody has to take it back.
"""

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glmforge.config import document
from glmforge.config.json_keys import DoubledKey, each_key_once
from glmforge.config.lengths import Getter
from glmforge.config.rules import ALTERNATIVES, idle_settings
from glmforge.config.tree import OPEN_FIELD, in_words, leaf_fields

SOURCE = "command line"


def apply_overrides(values: dict[str, Any], overrides: Sequence[str]) -> tuple[set[str], list[str]]:
    """Change `values` (the raw settings of the file) in place.

    Returns:
        The dotted names that were set, and a sentence for each override that cannot be read.
    """
    names: set[str] = set()
    problems: list[str] = []
    before = copy.deepcopy(values)
    for text in overrides:
        name, equals, raw = text.partition("=")
        name = name.strip()
        if not equals or not all(name.split(".")):
            problems.append(f"{SOURCE}: {text!r} is not of the form section.key=value")
            continue
        read = document.parse(raw)
        if read.problems:
            reason = read.problems[0][1]
            problems.append(f"{SOURCE}: {text!r} is {reason}; put the value in quotes")
            continue
        problem = _set(values, name, read.values)
        if problem:
            problems.append(f"{SOURCE}: {problem}")
        else:
            names.add(name)
    _drop_replaced(values, names)
    _drop_made_idle(values, before, names)
    return names, problems


def _set(values: dict[str, Any], name: str, value: Any) -> str | None:
    """Set one dotted name; return a sentence where something in the way is not a map."""
    *parents, last = name.split(".")
    if parents and parents[0] == OPEN_FIELD and isinstance(values.get(OPEN_FIELD), str):
        problem = _open_file(values)
        if problem:
            return problem
    inner = values
    for depth, key in enumerate(parents):
        if inner.get(key) is None:
            inner[key] = {}
        if not isinstance(inner[key], dict):
            above = ".".join(parents[: depth + 1])
            return f"{name} cannot be set: {above} is {in_words(inner[key])}, not a map"
        inner = inner[key]
    if value is None:
        inner.pop(last, None)
    else:
        inner[last] = value
    return None


def _open_file(values: dict[str, Any]) -> str | None:
    """Replace the path of a DeepSpeed file by its content, so that keys of it can be set."""
    path = Path(values[OPEN_FIELD]).expanduser()
    content, problem = read_json_map(path)
    if problem:
        return f"{OPEN_FIELD} {str(path)!r} {problem}"
    values[OPEN_FIELD] = content
    return None


def read_json_map(path: Path) -> tuple[dict[str, Any], str | None]:
    """Read a JSON file that must hold a map; the second value is the fault, or None."""
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text, object_pairs_hook=each_key_once)
    except OSError as error:
        return {}, f"cannot be read: {error.strerror or error}"
    except UnicodeDecodeError:
        return {}, "is not UTF-8 text"
    except json.JSONDecodeError as error:
        return {}, f"is not valid JSON: line {error.lineno}, column {error.colno}: {error.msg}"
    except DoubledKey as error:
        return {}, str(error)
    if not isinstance(content, dict):
        return {}, f"must hold a JSON map {{...}}, not {in_words(content)}"
    return content, None


def _drop_replaced(values: dict[str, Any], names: set[str]) -> None:
    for pair in ALTERNATIVES:
        for name, other in (pair, pair[::-1]):
            if name in names and other not in names:
                section, key = name.split(".")
                if key in values.get(section, {}):
                    values[section].pop(other.split(".")[1], None)
    if "generation.prompts" in names and "generation.references" not in names:
        inner = values.get("generation")
        if isinstance(inner, dict):
            inner.pop("references", None)  # they answer the prompts of the file


def _drop_made_idle(values: dict[str, Any], before: dict[str, Any], names: set[str]) -> None:
    """Drop what the file sets with effect and the command line has left without."""
    idle_before = idle_settings(_getter(before))
    for name in idle_settings(_getter(values)):
        section, _, key = name.partition(".")
        inner = values.get(section)
        if name not in idle_before and name not in names and isinstance(inner, dict):
            inner.pop(key, None)


def _getter(values: dict[str, Any]) -> Getter:
    """Give raw settings by dotted name, the default where one is not written."""
    leaves = leaf_fields()

    def get(name: str) -> object:
        section, _, key = name.partition(".")
        inner = values.get(section)
        written = inner.get(key) if key and isinstance(inner, dict) else None if key else inner
        if written is not None:
            return written
        field = leaves[name]
        return None if field.is_required() else field.get_default(call_default_factory=True)

    return get
