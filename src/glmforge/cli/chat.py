"""`glmforge chat MODEL`: talk to a model in the terminal.

Answers stream to standard output. With `--prompt` it answers those and ends, for scripts; the
conversation itself is in `glmforge.serve.chat`. `--stress` measures one generation at full length
instead (`glmforge.serve.stress`).
"""

from pathlib import Path
from typing import Annotated

import typer

from glmforge.cli.output import print_json
from glmforge.errors import UsageError


def chat(
    model: Annotated[Path, typer.Argument(help="A model directory, or a run.")],
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
    stress: Annotated[
        bool,
        typer.Option(
            "--stress",
            help="Generate once at exactly the training's longest length: peak memory, does it "
            "hold? Exit status 1 where it does not.",
        ),
    ] = False,
    length: Annotated[
        int | None,
        typer.Option(min=16, help="With --stress: tokens, where no run says max_length."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="With --stress: rows together.")] = 1,
) -> None:
    """Talk to MODEL, with or without an adapter."""
    if stress:
        _stress(model, adapter, length, batch_size, max_new_tokens, as_json=as_json)
        return
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


def _stress(
    model: Path,
    adapter: Path | None,
    length: int | None,
    batch_size: int,
    max_new_tokens: int,
    *,
    as_json: bool,
) -> None:
    from glmforge.serve.chat import open_chat_model
    from glmforge.serve.stress import longest_length, stress

    opened, tokenizer = open_chat_model(model, adapter)
    wanted = length or longest_length(adapter or model, opened.config)
    report = stress(
        opened,
        tokenizer,
        length=wanted,
        batch=batch_size,
        new_tokens=min(max_new_tokens, wanted // 2),
    )
    if as_json:
        print_json(report)
    else:
        print("\n".join(report.lines()))
    if not report.held:
        raise typer.Exit(1)
