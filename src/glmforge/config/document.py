"""A YAML text as plain values plus the line of every key; and plain values as YAML text.

Owns how scalars are read: as PyYAML does (YAML 1.1), except that `1e-4` is a number, `12:30:00`
and `2024-01-01` stay text, and a key written twice in one map is a fault, not a silent overwrite.
What the keys mean is not known here.
"""

import re
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import yaml

Path = tuple[str | int, ...]
"""Where a value sits: map keys and list positions from the top, as ("training", "seed")."""

_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F]+)")


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the resolvers set below."""


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper that quotes whatever `_Loader` would not read back as text."""


def _set_resolvers(kind: type[_Loader] | type[_Dumper]) -> None:
    kept = {"tag:yaml.org,2002:bool", "tag:yaml.org,2002:null", "tag:yaml.org,2002:merge"}
    kind.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag in kept]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    for tag, pattern in (("int", _INT), ("float", _FLOAT)):
        anchored = re.compile(f"^(?:{pattern.pattern})$")
        kind.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", anchored, list("-+.0123456789"))


_set_resolvers(_Loader)
_set_resolvers(_Dumper)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A YAML text, read.

    `values` are plain dicts, lists and scalars; `lines` maps each key's path to its line (from 1).
    """

    values: Any
    lines: dict[Path, int]
    problems: tuple[tuple[int, str], ...]


@dataclass(slots=True, kw_only=True)
class _Reading:
    """The state of one pass over the node tree."""

    loader: _Loader
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[tuple[int, str]] = field(default_factory=list)
    open_nodes: set[int] = field(default_factory=set)


def parse(text: str) -> Document:
    """Read one YAML document.

    Returns:
        The document; `problems` holds (line, sentence) for syntax faults, repeated keys and keys
        that are not text. After a syntax fault `values` is None.
    """
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as error:
        what = f"it holds the character U+{error.character:04X}"
        line = text.count("\n", 0, error.position) + 1
        return Document(values=None, lines={}, problems=((line, f"not valid YAML: {what}"),))
    try:
        node = loader.get_single_node()
        reading = _Reading(loader=loader)
        values = None if node is None else _value(node, (), reading)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        what = getattr(error, "problem", None) or "the text is not valid"
        return Document(values=None, lines={}, problems=((line, f"not valid YAML: {what}"),))
    finally:
        loader.dispose()
    return Document(values=values, lines=reading.lines, problems=tuple(reading.problems))


def _value(node: yaml.Node, path: Path, reading: _Reading) -> Any:
    """Build the value of a node and note the lines of the keys under it."""
    line = node.start_mark.line + 1
    reading.lines.setdefault(path, line)
    if id(node) in reading.open_nodes:
        reading.problems.append((line, "an anchor contains itself; write the value out"))
        return None
    reading.open_nodes.add(id(node))
    try:
        if isinstance(node, yaml.MappingNode):
            return _mapping(node, path, reading)
        if isinstance(node, yaml.SequenceNode):
            return [_value(item, (*path, index), reading) for index, item in enumerate(node.value)]
        return _scalar(node, reading)
    finally:
        reading.open_nodes.discard(id(node))


def _scalar(node: yaml.Node, reading: _Reading) -> Any:
    try:
        return reading.loader.construct_object(node)
    except (yaml.YAMLError, ValueError):
        line = node.start_mark.line + 1
        reading.problems.append((line, f"cannot read the value {node.value!r}"))
        return None


def _mapping(node: yaml.MappingNode, path: Path, reading: _Reading) -> dict[str, Any]:
    written: dict[Hashable, int] = {}
    for key_node, _ in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            reading.problems.append((line, "a key must be a text, not a list or a map"))
        elif key_node.value in written and key_node.value != "<<":
            dotted = ".".join(map(str, (*path, key_node.value)))
            first = written[key_node.value]
            reading.problems.append(
                (line, f"{dotted} is written twice (first on line {first}); keep one")
            )
        else:
            written[key_node.value] = line
    reading.loader.flatten_mapping(node)
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        if isinstance(key_node, yaml.ScalarNode):
            inner: Path = (*path, key_node.value)
            reading.lines[inner] = key_node.start_mark.line + 1
            values[key_node.value] = _value(value_node, inner, reading)
    return values


def write(values: Any) -> str:
    """Write plain values as YAML that `parse` reads back to equal values."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
