"""`--stress` and what belongs to it, in `glmforge chat` and `glmforge serve`."""

from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from glmforge.cli.main import app
from glmforge.errors import UsageError


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


def test_a_length_that_the_model_has_no_positions_for_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That it holds in memory would say nothing: the model cannot be used so."""
    model = SimpleNamespace(config=SimpleNamespace(max_position_embeddings=1024))
    monkeypatch.setattr("glmforge.serve.chat.open_chat_model", lambda *_: (model, None))
    with pytest.raises(UsageError, match="--length 5000: m has 1024 positions; give 1024 or less"):
        run("chat", "m", "--stress", "--length", "5000")
