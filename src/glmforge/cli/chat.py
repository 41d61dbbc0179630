"""`glmforge chat MODEL`: talk to a model in the terminal.

Answers stream to standard output. With `--prompt` it answers those and ends, for scripts; the
conversation itself is in `glmforge.serve.chat`.
"""

from pathlib import Path
from typing import Annotated

import typer

from glmforge.errors import UsageError


def chat(
    model: Annotated[Path, typer.Argument(help="A model directory.")],
    adapter: Annotated[Path | None, typer.Option(help="A LoRA adapter directory for it.")] = None,
    system: Annotated[
        str | None, typer.Option(help="System message that opens every conversation.")
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(help="Answer this and end; may be given several times."),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer (tokens).")] = 512,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --prompt: print one JSON object a line.")
    ] = False,
) -> None:
    """Talk to MODEL, with or without an adapter."""
    if as_json and not prompt:
        raise UsageError("--json needs --prompt: a conversation is for people")
    from glmforge.serve.chat import run_chat

    run_chat(
        model,
        adapter,
        system=system,
        prompts=prompt or None,
        as_json=as_json,
        max_new_tokens=max_new_tokens,
    )
