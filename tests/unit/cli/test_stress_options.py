"""`--stress` and what belongs to it, in `glmforge chat` and `glmforge serve`."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from glmforge.cli.main import app
from glmforge.errors import UsageError
from small_models import TINY_MODEL


def run(*arguments: str) -> None:
    CliRunner().invoke(app, list(arguments), catch_exceptions=False)


@pytest.mark.parametrize("command", ["chat", "serve"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--length", "64"], "--length: only with --stress"),
        (["--batch-size", "2"], "--batch-size: only with --stress"),
        (["--length", "64", "--batch-size", "2"], "--length and --batch-size: only with"),
    ],
)
def test_its_options_without_it_are_refused(command: str, options: list[str], words: str) -> None:
    """Before the model is looked at; they would do nothing."""
    with pytest.raises(UsageError, match=words):
        run(command, "nowhere", *options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["chat", "--seed", "1", "--tools", "t"], "--tools and --seed: no part of --stress"),
        (["serve", "--port", "1"], "--port: no part of --stress"),
        (["serve", "--adapter", "a", "--adapter", "b"], "--stress measures one adapter; 2 are"),
        (["serve", "--length", "64", "--max-length", "64"], "they say the same; give one"),
    ],
)
def test_what_it_does_not_look_at_is_refused(options: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        run(options[0], "nowhere", "--stress", *options[1:])


@pytest.mark.parametrize("command", ["chat", "serve"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--length", "5000"], "--length 5000: .* has 1024 positions; give 1024 or less"),
        (["--max-new-tokens", "2000"], "--max-new-tokens 2000: .* together, is 1024 tokens"),
        (["--length", "64", "--max-new-tokens", "64"], "--max-new-tokens 64: .* is 64 tokens"),
    ],
)
def test_what_the_model_has_no_positions_for_is_refused(
    tmp_path: Path, command: str, options: list[str], words: str
) -> None:
    """Before weights are read: that it holds in memory would say nothing."""
    config = (TINY_MODEL / "config.json").read_bytes()
    (tmp_path / "config.json").write_bytes(config)
    with pytest.raises(UsageError, match=words):
        run(command, str(tmp_path), "--stress", *options)


def test_what_is_drawn_is_said_only_where_something_is() -> None:
    with pytest.raises(UsageError, match="--top-p and --seed: nothing is drawn at --temperature 0"):
        run("chat", "nowhere", "--top-p", "0.5", "--seed", "1")
