"""`glmforge serve`: options, and what is said where its packages are missing."""

import importlib.util
from pathlib import Path

import pytest
from typer.testing import CliRunner

from glmforge.cli import serve as command
from glmforge.cli.main import app
from glmforge.errors import UsageError
from small_models import TINY_MODEL


def run(*arguments: str) -> None:
    CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def test_an_adapter_is_a_directory_or_a_name_and_a_directory(tmp_path: Path) -> None:
    odd = tmp_path / "lr=1e-4"
    odd.mkdir()
    assert command._named("runs/a/adapter") == (None, Path("runs/a/adapter"))
    assert command._named("a=runs/a/adapter") == ("a", Path("runs/a/adapter"))
    assert command._named(str(odd)) == (None, odd)
    for wrong in ("=x", "a="):
        with pytest.raises(UsageError, match="write DIR or NAME=DIR"):
            command._named(wrong)


def test_missing_packages_are_named_with_the_command_that_installs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before the model is looked at."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs starlette and uvicorn: pip install 'glmforge\["):
        run("serve", "nowhere")
    with pytest.raises(UsageError, match="--json needs --stress"):
        run("serve", "nowhere", "--json")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["chat", "--max-new-tokens", "1024"], "--max-new-tokens 1024: .*; give 1023 or less"),
        (["serve", "--max-new-tokens", "5000"], "--max-new-tokens 5000: .* has 1024 positions"),
        (["serve", "--max-length", "1025"], "--max-length 1025: .*; give 1024 or less"),
    ],
)
def test_more_tokens_than_positions_are_refused(
    tmp_path: Path, options: list[str], words: str
) -> None:
    """Before weights are read; they would be cut down in silence."""
    config = (TINY_MODEL / "config.json").read_bytes()
    (tmp_path / "config.json").write_bytes(config)
    with pytest.raises(UsageError, match=words):
        run(options[0], str(tmp_path), *options[1:])
