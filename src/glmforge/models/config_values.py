"""Whether the values of a config.json are of the kinds that their keys need.

Owns `wrong_values`, which holds keys against the annotations of a configuration class before any
arithmetic meets them: a number written as a text would otherwise fail far away, or not at all.
"""

import types
from collections.abc import Mapping
from typing import Any, ClassVar, Union, get_args, get_origin

_WORDS = {int: "an integer", float: "a number", bool: "true or false", types.NoneType: "null"}

_MOST_LAYERS = 1_000
#: Rotary keys of other models.
ROTARY_KEYS = ("rope_scaling", "rope_parameters", "rope_theta")


def wrong_values(keys: Mapping[str, Any], annotations: Mapping[str, Any], where: str) -> list[str]:
    """Return a sentence for every key whose value is not what its annotation says.

    A plain integer is a size or a number of something, and is at least 1.

    Args:
        keys: of a config.json; keys without an annotation are passed over.
        annotations: name → type, as a class body has them.
        where: the file, for the sentences.
    """
    problems: list[str] = []
    for key, kind in annotations.items():
        if key not in keys or get_origin(kind) is ClassVar:
            continue
        value = keys[key]
        if not _fits(value, kind):
            problems.append(f"{where}: {key} is {value!r}, which must be {_in_words(kind)}")
        elif kind is int and value < 1:
            problems.append(f"{where}: {key} is {value}, which must be at least 1")
    return problems


def out_of_range(values: Mapping[str, Any], where: str) -> list[str]:
    """Return a sentence for every value of the right kind that no model can have."""
    problems = [
        f"{where}: {key} is {values[key]!r}, which must be above 0"
        for key in ("rope_ratio", "layernorm_epsilon")
        if not values.get(key, 1.0) > 0
    ]
    if (layers := values.get("num_layers", 1)) > _MOST_LAYERS:
        problems.append(
            f"{where}: num_layers is {layers}, and more than {_MOST_LAYERS:,} layers are not "
            "supported (published models have 28 to 61); download the file again"
        )
    return problems


def foreign_rotary_keys(keys: Mapping[str, Any], base: float, where: str) -> list[str]:
    """Return a sentence for every rotary key of other models that says something else than `base`.

    ``{"rope_type": "default"}`` is what transformers writes by itself, with the base or without.
    """
    problems: list[str] = []
    for key in ROTARY_KEYS:
        value = keys.get(key)
        said = value if isinstance(value, Mapping) else {"rope_theta": value}
        kinds = {said.get("rope_type", "default"), said.get("type", "default")}
        rest = said.keys() - {"rope_type", "type", "rope_theta"}
        theta = said.get("rope_theta", base)
        plain = kinds == {"default"} and not rest and theta == base
        if value is not None and value != {} and not plain:
            problems.append(
                f"{where}: {key} is {value!r}, which the ChatGLM models do not have; the one "
                "supported way to longer rows is rope_ratio (docs/models.md): set it and remove "
                f"{key}"
            )
    return problems


def _fits(value: Any, kind: Any) -> bool:
    if get_origin(kind) in (Union, types.UnionType):
        return any(_fits(value, each) for each in get_args(kind))
    if get_origin(kind) is list:
        return isinstance(value, list) and all(_fits(each, get_args(kind)[0]) for each in value)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float if kind is float else kind)


def _in_words(kind: Any) -> str:
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(_in_words(each) for each in get_args(kind))
    if get_origin(kind) is list:
        return f"a list with {_in_words(get_args(kind)[0])} each"
    return _WORDS.get(kind, kind.__name__)
