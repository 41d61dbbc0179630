"""From a YAML file and `section.key=value` overrides to a checked, frozen `RunConfig`.

Every fault of the file, the command line, the types and the rules between settings is gathered
first and raised in one `ConfigError`, each with its file:line, so that one start finds them all.
Torch is not imported here.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from glmforge.config import document
from glmforge.config.from_deepspeed import fill_from_deepspeed
from glmforge.config.overrides import SOURCE, apply_overrides
from glmforge.config.paths import copy_at_hand, elsewhere_problem, path_problems
from glmforge.config.rules import contradictions, idle_settings
from glmforge.config.schema import RunConfig
from glmforge.config.tree import expected, in_words, leaf_fields, section_of
from glmforge.config.words import nearest
from glmforge.errors import ConfigError

_MISSING = object()


def load_config_file(
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    check_paths: bool = False,
    resume: str | None = None,
) -> RunConfig:
    """Read and check a run config.

    Args:
        path: the YAML file.
        overrides: `section.key=value` texts, later ones win.
        check_paths: also check that the model, the data and the run directory can be used.
        resume: what `--resume` says; with it, a run directory that holds a run is expected.

    Raises:
        ConfigError: with every fault found.
    """
    file = Path(path)
    read = document.parse(_text(file))
    values = {} if read.values is None else read.values
    problems = [f"{file}:{line}: {what}" for line, what in read.problems]
    if not isinstance(values, dict):
        raise ConfigError(f"{file}: expected a map of settings, found {in_words(values)}")
    if read.problems and read.values is None:
        raise ConfigError([*problems[:-1], f"{problems[-1]}{copy_at_hand(file)}"])
    names, override_problems = apply_overrides(values, overrides)
    problems += override_problems

    def given(name: str) -> bool:
        return any(name == each or name.startswith(f"{each}.") for each in names)

    def where(name: str) -> str:
        if given(name):
            return SOURCE
        parts = tuple(name.split("."))
        while parts and parts not in read.lines:
            parts = parts[:-1]
        return f"{file}:{read.lines[parts]}" if parts else f"{file}"

    if resume is not None and not given("training.output_dir"):
        training = values.get("training")
        written = training.get("output_dir") if isinstance(training, dict) else None
        problem = elsewhere_problem(file, written) if isinstance(written, str) else None
        if problem is not None:
            problems.append(f"{where('training.output_dir')}: {problem}")
    return _checked(values, where, problems, check_paths=check_paths, resume=resume)


def config_from_mapping(
    mapping: Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    check_paths: bool = False,
    resume: str | None = None,
) -> RunConfig:
    """Check settings given as nested dicts, as `load_config_file` does with a file.

    Raises:
        ConfigError: with every fault found.
    """
    values = copy.deepcopy(dict(mapping))
    names, problems = apply_overrides(values, overrides)

    def where(name: str) -> str:
        return SOURCE if name in names else "config"

    return _checked(values, where, problems, check_paths=check_paths, resume=resume)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(
            f"config file {str(file)!r} does not exist; check the path{copy_at_hand(file)}"
        ) from None
    except OSError as error:
        raise ConfigError(f"config file {str(file)!r} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"config file {str(file)!r} is not UTF-8 text (byte {error.start}); save it as UTF-8"
        ) from None


@dataclass(slots=True, kw_only=True)
class _Fault:
    """A sentence about one dotted setting."""

    name: str
    text: str


def _checked(
    values: dict[str, Any],
    where: Callable[[str], str],
    problems: list[str],
    *,
    check_paths: bool,
    resume: str | None,
) -> RunConfig:
    """Build the config, or raise all problems together."""
    known, faults = _split(values)
    config, type_faults = _build(known, {fault.name for fault in faults})
    faults += type_faults
    wrong = {fault.name for fault in faults}

    def written(name: str) -> object:
        section, _, key = name.partition(".")
        inner = known.get(section, _MISSING)
        return inner.get(key, _MISSING) if key and isinstance(inner, dict) else inner

    leaves = leaf_fields()

    def get(name: str) -> object:
        value = written(name)
        if value is _MISSING or name in wrong:
            field = leaves[name]
            return None if field.is_required() else field.get_default(call_default_factory=True)
        return value

    for name, reason in idle_settings(get).items():
        if name not in wrong and written(name) not in (_MISSING, None):
            faults.append(_Fault(name=name, text=f"{name} has no effect: {reason}"))
    faults += [_Fault(name=name, text=text) for name, text in contradictions(get)]
    if check_paths:
        found = path_problems(get, resume=resume)
        faults += [_Fault(name=name, text=text) for name, text in found if name not in wrong]
    everything = [*problems, *(f"{where(fault.name)}: {fault.text}" for fault in faults)]
    if everything or config is None:
        raise ConfigError(everything)
    return fill_from_deepspeed(config)


def _split(values: dict[str, Any]) -> tuple[dict[str, Any], list[_Fault]]:
    """Separate the settings that the schema knows from the rest; empty sections become {}."""
    known: dict[str, Any] = {}
    faults: list[_Fault] = []
    for name, value in values.items():
        section = section_of(name)
        if name not in RunConfig.model_fields:
            faults.append(_unknown(name, None))
        elif section is None:
            known[name] = value
        elif value is None:
            known[name] = {}
        elif not isinstance(value, dict):
            text = f"{name} is {in_words(value)}: expected a map of settings"
            faults.append(_Fault(name=name, text=text))
        else:
            known[name] = {key: value[key] for key in value if key in section.model_fields}
            faults += [_unknown(key, name) for key in value if key not in section.model_fields]
    return known, faults


def _unknown(key: str, section: str | None) -> _Fault:
    """Name the nearest setting: first in the same section, then anywhere."""
    name = f"{section}.{key}" if section else str(key)
    siblings = section_of(section) if section else RunConfig
    assert siblings is not None, "only sections have inner keys here"
    leaves = list(leaf_fields())
    same_key = [leaf for leaf in leaves if leaf.rpartition(".")[2] == key]
    close = same_key or nearest(str(key), siblings.model_fields)
    if not close:
        keys = {leaf.rpartition(".")[2]: leaf for leaf in leaves}
        close = [keys[found] for found in nearest(str(key), keys)]
    if close:
        advice = f"did you mean {close[0]}?"
    else:
        advice = "known here: " + ", ".join(siblings.model_fields)
    return _Fault(name=name, text=f"unknown key {name}, {advice}")


def _build(known: dict[str, Any], broken: set[str]) -> tuple[RunConfig | None, list[_Fault]]:
    """Let pydantic check types and bounds; one sentence a setting, whatever pydantic says."""
    sections: dict[str, Any] = {
        name: {} for name in RunConfig.model_fields if section_of(name) is not None
    }
    try:
        return RunConfig.model_validate(sections | known), []
    except ValidationError as error:
        leaves = leaf_fields()
        faults: dict[str, _Fault] = {}
        for item in error.errors(include_url=False):
            name = str(item["loc"][0])
            if section_of(name) is not None:
                if name in broken:
                    continue
                name = f"{name}.{item['loc'][1]}"
            if item["type"] == "missing":
                text = f"{name} is missing: {leaves[name].description}"
            else:
                section, _, key = name.partition(".")
                value = known[section][key] if key else known[section]
                text = f"{name} is {in_words(value)}: expected {expected(leaves[name])}"
                text += _choice(value, expected(leaves[name]))
            faults.setdefault(name, _Fault(name=name, text=text))
        return None, list(faults.values())


def _choice(value: object, wanted: str) -> str:
    """Suggest the nearest of a few allowed words."""
    if not wanted.startswith("one of ") or not isinstance(value, str):
        return ""
    close = nearest(value, wanted.removeprefix("one of ").split(", "))
    return f", did you mean {close[0]}?" if close else ""
