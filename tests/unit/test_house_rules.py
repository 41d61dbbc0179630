"""The house rules of CONTRIBUTING.md that a program can hold."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "glmforge"
SOURCE_FILES = sorted(SOURCE.rglob("*.py"))
ALL_FILES = [
    *SOURCE_FILES,
    *sorted(path for folder in ("tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")),
]
LINES_PER_FILE = 400
LINES_PER_FUNCTION = 60
BANNED_NAMES = {"util", "utils", "helper", "helpers", "common", "misc"}


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def where(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(ROOT)}:{node.lineno}"


def nodes(paths: list[Path], *kinds: type[ast.AST]) -> Iterator[tuple[Path, ast.AST]]:
    for path in paths:
        for node in ast.walk(parse(path)):
            if isinstance(node, kinds):
                yield path, node


def catches_everything(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    named = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
    return bool(named & {"Exception", "BaseException"})


def test_no_file_is_longer_than_the_limit() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in ALL_FILES}
    faults = [f"{path}: {lines}" for path, lines in lengths.items() if lines > LINES_PER_FILE]
    assert faults == []


def test_no_function_is_longer_than_the_limit() -> None:
    faults = [
        f"{where(path, node)} {node.name}: {lines}"
        for path, node in nodes(ALL_FILES, ast.FunctionDef, ast.AsyncFunctionDef)
        if (lines := node.end_lineno - node.lineno + 1) > LINES_PER_FUNCTION
    ]
    assert faults == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    faults = [
        str(path)
        for path in ALL_FILES
        for part in path.relative_to(ROOT).with_suffix("").parts
        if set(part.split("_")) & BANNED_NAMES
    ]
    assert faults == []


def test_an_error_of_any_kind_is_never_swallowed() -> None:
    """A handler for Exception, BaseException or everything raises again in its own body."""
    faults = [
        where(path, node)
        for path, node in nodes(SOURCE_FILES, ast.ExceptHandler)
        if catches_everything(node) and not any(isinstance(n, ast.Raise) for n in ast.walk(node))
    ]
    assert faults == []


def test_nothing_is_left_to_do_in_the_source() -> None:
    pattern = re.compile(r"\b(?:TODO|FIXME|XXX|NotImplementedError)\b")
    faults = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in SOURCE_FILES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert faults == []


def test_the_environment_is_touched_only_where_processes_begin() -> None:
    allowed = {SOURCE / "distributed" / "env.py", *(SOURCE / "launch").glob("*.py")}
    faults = [
        where(path, node)
        for path, node in nodes(SOURCE_FILES, ast.Attribute)
        if node.attr in {"environ", "getenv", "putenv"} and path not in allowed
    ]
    assert faults == []


def test_deepspeed_is_imported_in_two_modules_at_most() -> None:
    importers = set()
    for path, node in nodes(SOURCE_FILES, ast.Import, ast.ImportFrom):
        named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        named += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        if any(name.split(".")[0] == "deepspeed" for name in named):
            importers.add(str(path.relative_to(SOURCE)))
    assert len(importers) <= 2, sorted(importers)


@pytest.mark.parametrize("path", SOURCE_FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_module_says_in_its_docstring_what_it_owns(path: Path) -> None:
    """At most ten lines of prose, drawings (indented) not counted; three unless a package."""
    prose = [
        line
        for line in (ast.get_docstring(parse(path)) or "").splitlines()
        if line.strip() not in {"", "::"} and not line.startswith(" ")
    ]
    fewest = 1 if path.name in {"__init__.py", "__main__.py"} else 2
    assert fewest <= len(prose) <= 10


def test_public_names_of_the_package_have_docstrings() -> None:
    """Functions and classes without a leading underscore, at module level."""
    faults = [
        f"{where(path, node)} {node.name}"
        for path in SOURCE_FILES
        for node in parse(path).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]
    assert faults == []
