"""The table of settings, and the promise that no setting is a dead letter."""

import ast
from pathlib import Path

import pytest

from glmforge.config.explain import explain_markdown, explain_text, setting_rows
from glmforge.config.schema import RunConfig
from glmforge.config.tree import leaf_fields, section_of

SECTIONS = {
    name: kind.__name__ for name in RunConfig.model_fields if (kind := section_of(name)) is not None
}


def test_every_setting_has_a_type_a_default_and_one_sentence() -> None:
    rows = setting_rows()
    assert [row.name for row in rows] == list(leaf_fields())
    for row in rows:
        assert row.type, row.name
        assert row.default, row.name
        assert row.meaning.endswith("."), row.name
        assert ". " not in row.meaning, f"{row.name}: one sentence"


def test_the_table_names_types_and_defaults_as_yaml_writes_them() -> None:
    rows = {row.name: (row.type, row.default) for row in setting_rows()}
    assert rows["training.learning_rate"] == ("a number > 0", "5.0e-05")
    assert rows["training.max_steps"] == ("a whole number ≥ 1, or null", "null")
    assert rows["training.gradient_accumulation_steps"] == ("a whole number ≥ 1, or auto", "auto")
    assert rows["data.train"] == (
        "a text, or a map {path, weight > 0}, or a non-empty list of texts or maps "
        "{path, weight > 0}",
        "required",
    )
    assert rows["data.validation"][0] == "a text, or a non-empty list of texts, or null"
    assert rows["data.repair"] == ("a list of one of merge, trim, flatten, gbk", "[]")
    assert rows["data.packing"] == ("true or false, or auto", "auto")
    assert rows["lora.lora_dropout"] == ("a number ≥ 0 and < 1", "0.1")


def test_both_forms_hold_every_setting_and_the_text_fits_its_width() -> None:
    text, table = explain_text(width=80), explain_markdown()
    for name in leaf_fields():
        assert f"{name}: " in text
        assert f"| `{name}` |" in table
    meanings = [line for line in text.splitlines() if line.startswith("    ")]
    assert max(map(len, meanings)) <= 80


def _reads(file: Path) -> set[str]:
    """Dotted settings that a module reads: `….training.seed`, or `x.seed` for x the section."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    sections = {name: {name} for name in SECTIONS}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
            for target, value in list(pairs):
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                    pairs += zip(target.elts, value.elts, strict=True)
            for target, value in pairs:
                if isinstance(target, ast.Name) and isinstance(value, ast.Attribute):
                    sections.get(value.attr, set()).add(target.id)
        if isinstance(node, ast.arg) and node.annotation is not None:
            kind = ast.unparse(node.annotation)
            for section, class_name in SECTIONS.items():
                if class_name in kind:
                    sections[section].add(node.arg)
    reads: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        owner = node.value
        name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
        reads |= {f"{section}.{node.attr}" for section in SECTIONS if name in sections[section]}
        reads.add(node.attr)
    return reads


def test_every_setting_is_read_by_some_code(root: Path) -> None:
    """A setting that nobody reads would be accepted and do nothing."""
    source = root / "src" / "glmforge"
    reads: set[str] = set()
    for file in source.rglob("*.py"):
        if file.parent != source / "config":
            reads |= _reads(file)
    unread = [name for name in leaf_fields() if name not in reads]
    assert unread == []


def test_the_search_for_readers_sees_sections_and_aliases(tmp_path: Path) -> None:
    file = tmp_path / "m.py"
    file.write_text("t, d = c.training, c.data\nt.seed\nd.train\nc.lora.r\nother.max_steps\n")
    reads = _reads(file)
    assert {"training.seed", "data.train", "lora.r"} <= reads
    assert "training.max_steps" not in reads


@pytest.mark.parametrize("word", ["torch", "transformers", "deepspeed"])
def test_reading_a_config_imports_nothing_heavy(word: str) -> None:
    """A mistyped config is answered in a fraction of a second."""
    import subprocess
    import sys

    code = f"import sys; sys.argv = ['glmforge']; import glmforge.config, glmforge.cli.main; \
assert {word!r} not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
