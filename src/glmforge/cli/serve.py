"""`glmforge serve MODEL`: an OpenAI-compatible endpoint and a chat page, on this machine only.

Parses, opens the models, and hands over to `glmforge.serve.server`; the page comes from
`glmforge.ui.chat_page`. `--stress` measures one generation at full length instead.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Annotated

import typer

from glmforge.cli.given import given_options, refuse_idle
from glmforge.cli.imports import heavy_imports
from glmforge.cli.stress import BatchSize, Length, Stress, refuse_without_stress, run_stress
from glmforge.errors import UsageError

_USUAL_TOKENS = 1024
_NEEDED = ("starlette", "uvicorn")


def serve(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(help="A model directory, or a run.")],
    adapter: Annotated[
        list[str] | None,
        typer.Option(help="A LoRA adapter for it, as DIR or NAME=DIR; may be given several times."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    max_length: Annotated[
        int | None,
        typer.Option(min=16, help="Longest prompt and answer together (tokens)."),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Longest answer where a request names none (tokens); {_USUAL_TOKENS} else.",
        ),
    ] = None,
    stress: Stress = False,
    length: Length = None,
    batch_size: BatchSize = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --stress: print one JSON object.")
    ] = False,
) -> None:
    """Serve MODEL and its adapters to OpenAI clients and to a browser."""
    adapters = [_named(text) for text in adapter or []]
    if stress:
        idle = "no part of --stress, which serves nobody"
        refuse_idle(given_options(context), ["host", "port"], idle)
        adapter_path, longest = _one_adapter(adapters), _one_length(length, max_length)
        run_stress(model, adapter_path, longest, batch_size, max_new_tokens, as_json)
        return
    refuse_without_stress(length, batch_size)
    if as_json:
        raise UsageError("--json needs --stress")
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"glmforge serve needs {' and '.join(missing)}: pip install 'glmforge[serve]'"
        )
    _serve(model, adapters, host, port, max_length, max_new_tokens)


def _serve(
    model: Path,
    adapters: list[tuple[str | None, Path]],
    host: str,
    port: int,
    max_length: int | None,
    max_new_tokens: int | None,
) -> None:
    with heavy_imports():
        from glmforge.serve.listening import listen, serve_until_stopped
        from glmforge.serve.opening import find_paths, open_models, refuse_beyond
        from glmforge.serve.server import LOOPBACK, ServeSettings, make_app
        from glmforge.ui.chat_page import chat_page

    paths = find_paths(model, adapters)
    refuse_beyond(paths, "--max-length", max_length)
    refuse_beyond(paths, "--max-new-tokens", max_new_tokens, beside=1)
    found = listen(host, port)  # before weights are read: a taken port is told at once
    models = open_models(paths)
    limits = [size for size in (models.positions, max_length) if size]
    settings = ServeSettings(
        max_length=min(limits, default=0),
        max_new_tokens=max_new_tokens or _USUAL_TOKENS,
        loopback_only=host in LOOPBACK,
    )
    app = make_app(models, paths, settings, chat_page(models.names))

    def tell(url: str) -> None:
        print(f"chat page {url}/", flush=True)
        print(f"OpenAI API {url}/v1 (models: {', '.join(models.names)})", flush=True)
        notes = list(models.notes)
        if not settings.loopback_only:
            notes.append("there is no password; whoever reaches this address may use it")
        for note in notes:
            print(f"note: {note}", file=sys.stderr, flush=True)

    serve_until_stopped(app, found, tell)


def _one_adapter(adapters: list[tuple[str | None, Path]]) -> Path | None:
    if len(adapters) > 1:
        raise UsageError(f"--stress measures one adapter; {len(adapters)} are given")
    return adapters[0][1] if adapters else None


def _one_length(length: int | None, max_length: int | None) -> int | None:
    if length is not None and max_length is not None:
        raise UsageError("--length and --max-length: with --stress they say the same; give one")
    return length or max_length


def _named(text: str) -> tuple[str | None, Path]:
    """``NAME=DIR`` or ``DIR``; a directory that exists with "=" in its name is itself."""
    name, equals, path = text.partition("=")
    if not equals or Path(text).is_dir():
        return None, Path(text)
    if not name or not path:
        raise UsageError(f"--adapter {text}: write DIR or NAME=DIR")
    return name, Path(path)
