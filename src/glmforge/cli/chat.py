"""`glmforge chat MODEL`: talk to a model in the terminal.

Answers stream to standard output. With `--prompt` it answers those and ends, for scripts; the
conversation itself is in `glmforge.serve.chat`. `--stress` measures one generation at full length
instead (`glmforge.serve.stress`).
"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from glmforge.cli.given import given_options, refuse_idle
from glmforge.cli.imports import heavy_imports
from glmforge.cli.stress import BatchSize, Length, Stress, refuse_without_stress, run_stress
from glmforge.errors import DataError, UsageError

_USUAL_TOKENS = 512
_OF_TALKING = ("system", "tools", "prompt", "temperature", "top_p", "seed")


def chat(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(help="A model directory, or a run.")],
    adapter: Annotated[Path | None, typer.Option(help="A LoRA adapter directory for it.")] = None,
    system: Annotated[
        str | None, typer.Option(help="System message that opens every conversation.")
    ] = None,
    tools: Annotated[
        Path | None,
        typer.Option(help="JSON file with a list of tools that the model may call."),
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(help="Answer this and end; may be given several times."),
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help=f"Longest answer (tokens); {_USUAL_TOKENS} else.")
    ] = None,
    temperature: Annotated[
        float, typer.Option(min=0, max=2, help="0 takes the likeliest token each time.")
    ] = 0.0,
    top_p: Annotated[
        float, typer.Option(min=0, max=1, help="Draw from the likeliest tokens of this share.")
    ] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Draw the same answers each time.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --prompt: print one JSON object a line.")
    ] = False,
    stress: Stress = False,
    length: Length = None,
    batch_size: BatchSize = 1,
) -> None:
    """Talk to MODEL, with or without an adapter."""
    given = given_options(context)
    if stress:
        refuse_idle(given, _OF_TALKING, "no part of --stress, which generates once; leave it out")
        run_stress(model, adapter, length, batch_size, max_new_tokens, as_json)
        return
    refuse_without_stress(length, batch_size)
    if as_json and not prompt:
        raise UsageError("--json needs --prompt: a conversation is for people")
    if temperature == 0:
        refuse_idle(given, ["top_p", "seed"], "nothing is drawn at --temperature 0; raise it")
    told = [] if tools is None else _read_tools(tools)
    _check_positions(model, adapter, max_new_tokens)
    from glmforge.serve.chat import ChatSettings, open_chat, run_chat

    settings = ChatSettings(
        system=system,
        tools=told,
        max_new_tokens=max_new_tokens or _USUAL_TOKENS,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
    )
    run_chat(open_chat(model, adapter), settings, prompts=prompt or None, as_json=as_json)


def _check_positions(model: Path, adapter: Path | None, max_new_tokens: int | None) -> None:
    with heavy_imports():
        from glmforge.serve.opening import find_paths, refuse_beyond

    paths = find_paths(model, [] if adapter is None else [("tuned", adapter)])
    refuse_beyond(paths, "--max-new-tokens", max_new_tokens, beside=1)


def _read_tools(path: Path) -> list[dict[str, Any]]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"--tools {path}: not JSON ({error})") from error
    found = value if isinstance(value, list) else [value]
    if not found or not all(isinstance(tool, dict) for tool in found):
        raise DataError(f"--tools {path}: write a list of tools, as in a request's `tools`")
    return found
