"""`glmforge serve`: the endpoint's routes, and the one worker that answers.

Requests are checked at once and answered one after another, in the order they came: one model is in
memory, and a thread of its own generates. Who goes away ends his answer; who waits is not touched.
The page is text that the caller brings. Needs starlette; nothing else of this room does.
"""

import asyncio
import json
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import torch
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from glmforge.errors import ModelError
from glmforge.serve.opening import OpenModels, Paths
from glmforge.serve.protocol import (
    Answered,
    ApiError,
    ChatRequest,
    model_entry,
    read_ask,
    read_request,
)
from glmforge.serve.replies import Ask, Reply, reply

_LONGEST_BODY_BYTES = 16 << 20
_MOST_WAITING = 64
_LOOK_SECONDS = 0.25  # how often a waiting request looks whether its client is still there
LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Longest prompt and answer together (tokens, 0: unknown), longest answer unless asked for
    more, and whether only requests to a loopback name are taken.
    """

    max_length: int
    max_new_tokens: int
    loopback_only: bool


class Worker:
    """The thread that generates; jobs wait in the order they came."""

    def __init__(self, models: OpenModels) -> None:
        self._models = models
        self._pool = ThreadPoolExecutor(1, "generation")
        self._closing = threading.Event()
        self._counting = threading.Lock()
        self._open_jobs = 0

    @property
    def open_jobs(self) -> int:
        """Answers being generated or waiting."""
        return self._open_jobs

    def submit(
        self, name: str, ask: Ask, on_text: Callable[[str], None], gone: threading.Event
    ) -> "Future[Reply]":
        """Queue an answer; `gone` ends it early.

        Raises:
            ApiError: too many are waiting.
        """
        with self._counting:
            if self._open_jobs >= _MOST_WAITING:
                raise ApiError(
                    f"{_MOST_WAITING} requests are waiting already; try again later",
                    status=429,
                    kind="rate_limit_error",
                    code="queue_full",
                )
            self._open_jobs += 1
        future = self._pool.submit(self._run, name, ask, on_text, gone)
        future.add_done_callback(self._count_down)
        return future

    def close(self) -> None:
        """End what is generated and wait for the thread."""
        self._closing.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _count_down(self, future: "Future[Reply]") -> None:
        del future
        with self._counting:
            self._open_jobs -= 1

    def _run(
        self, name: str, ask: Ask, on_text: Callable[[str], None], gone: threading.Event
    ) -> Reply:
        began = time.perf_counter()
        try:
            result = reply(
                self._models,
                name,
                ask,
                on_text=on_text,
                cancelled=lambda: gone.is_set() or self._closing.is_set(),
            )
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            raise ApiError(
                f"out of GPU memory at {len(ask.prompt):,} tokens of prompt and up to "
                f"{ask.max_new_tokens:,} of answer; start the server with a lower --max-length",
                status=503,
                kind="server_error",
                code="out_of_memory",
            ) from error
        except ModelError as error:
            raise ApiError(str(error), status=500, kind="server_error") from error
        print(
            f"{name}: {result.prompt_tokens:,} + {result.new_tokens:,} tokens, {result.finish}, "
            f"{time.perf_counter() - began:.1f} s",
            file=sys.stderr,
            flush=True,
        )
        return result


def make_app(models: OpenModels, paths: Paths, settings: ServeSettings, page: str) -> Starlette:
    """Return the ASGI application.

    Args:
        models: who answers.
        paths: where they were loaded from, for the list of models.
        settings: limits.
        page: HTML of the chat page.
    """
    worker = Worker(models)
    endpoint = _Endpoint(models, paths, settings, worker, page)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(worker.close)

    # Starlette up to 1.3 at least cuts "[::1]:8000" at its first colon; can go when 1.10 is the
    # lower bound. An address in brackets is no name that could be made to lead here.
    names = [*LOOPBACK, "["]
    hosts = [Middleware(TrustedHostMiddleware, allowed_hosts=names, www_redirect=False)]
    return Starlette(
        routes=[
            Route("/", endpoint.show_page),
            Route("/health", endpoint.health),
            Route("/v1/models", endpoint.list_models),
            Route("/v1/models/{name:path}", endpoint.one_model),
            Route("/v1/chat/completions", endpoint.complete, methods=["POST"]),
        ],
        # A page elsewhere, whose name was made to lead here, must not talk to a private server.
        middleware=hosts if settings.loopback_only else [],
        exception_handlers={ApiError: _refuse, HTTPException: _refuse_http, Exception: _break_off},
        lifespan=lifespan,
    )


class _Endpoint:
    """The routes."""

    def __init__(
        self,
        models: OpenModels,
        paths: Paths,
        settings: ServeSettings,
        worker: Worker,
        page: str,
    ) -> None:
        self._models, self._settings, self._worker, self._page = models, settings, worker, page
        self._roots = {name: str(paths.adapters.get(name, paths.model)) for name in models.names}
        self._began = int(time.time())

    async def show_page(self, request: Request) -> Response:
        return HTMLResponse(self._page)

    async def health(self, request: Request) -> Response:
        return JSONResponse(
            {"status": "ok", "models": self._models.names, "open_requests": self._worker.open_jobs}
        )

    async def list_models(self, request: Request) -> Response:
        entries = [self._entry(name) for name in self._models.names]
        return JSONResponse({"object": "list", "data": entries})

    async def one_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._models.names:
            raise ApiError(
                f"no model {name!r} here; there are {', '.join(self._models.names)}",
                status=404,
                param="model",
                code="model_not_found",
            )
        return JSONResponse(self._entry(name))

    def _entry(self, name: str) -> dict[str, Any]:
        return model_entry(name, self._roots[name], self._began, self._settings.max_length)

    async def complete(self, request: Request) -> Response:
        if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
            raise ApiError("send the request as Content-Type: application/json", status=415)
        asked = read_request(await _body(request))
        ask = await asyncio.to_thread(
            read_ask,
            asked,
            self._models,
            max_length=self._settings.max_length,
            usual_new_tokens=self._settings.max_new_tokens,
        )
        answered = Answered(f"chatcmpl-{uuid.uuid4().hex}", int(time.time()), asked.model)
        if asked.stream:
            return self._stream(asked, ask, answered)
        gone = threading.Event()
        future = asyncio.wrap_future(self._worker.submit(asked.model, ask, _drop, gone))
        try:
            while not (await asyncio.wait({future}, timeout=_LOOK_SECONDS))[0]:
                if await request.is_disconnected():
                    gone.set()
            return JSONResponse(answered.whole(future.result()))
        finally:
            gone.set()

    def _stream(self, asked: ChatRequest, ask: Ask, answered: Answered) -> Response:
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[str | None] = asyncio.Queue()
        gone = threading.Event()

        def hand_over(piece: str | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

        future = self._worker.submit(asked.model, ask, hand_over, gone)
        future.add_done_callback(lambda done: hand_over(None))

        async def events() -> AsyncIterator[str]:
            try:
                yield _event(answered.first())
                while (piece := await pieces.get()) is not None:
                    yield _event(answered.piece(piece))
                if future.cancelled():
                    return
                result = future.result()
                for part in answered.last(result):
                    yield _event(part)
                if asked.stream_options.include_usage:
                    yield _event(answered.counts(result))
                yield "data: [DONE]\n\n"
            except ApiError as error:
                yield _event(error.body())
            finally:
                gone.set()

        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        return StreamingResponse(events(), media_type="text/event-stream", headers=headers)


async def _body(request: Request) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > _LONGEST_BODY_BYTES:
            raise ApiError(
                f"the body is longer than {_LONGEST_BODY_BYTES >> 20} MiB; shorten the messages",
                status=413,
            )
        parts.append(part)
    return b"".join(parts)


def _drop(text: str) -> None:
    del text


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value)}\n\n"


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body(), status_code=error.status)


async def _refuse_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    told = ApiError(f"{request.method} {request.url.path}: {error.detail}")
    return JSONResponse(told.body(), status_code=error.status_code, headers=error.headers)


async def _break_off(request: Request, error: Exception) -> Response:
    """Our own bug: the client is told so, and the server's log has the traceback."""
    told = ApiError("a bug of glmforge serve; its log has the traceback", kind="server_error")
    return JSONResponse(told.body(), status_code=500)
