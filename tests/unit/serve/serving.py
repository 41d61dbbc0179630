"""A running server and a client of it that speaks plain HTTP."""

import http.client
import json
import threading
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from glmforge.serve.listening import listen
from glmforge.serve.opening import Paths
from glmforge.serve.server import ServeSettings, make_app

HELLO = [{"role": "user", "content": "你好"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "天气",
            "parameters": {"type": "object"},
        },
    }
]


class Client:
    def __init__(self, port):
        self.port = port

    def ask(self, method, path, body=None, headers=None):
        """(status, headers, body text)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body)
        headers = {"Content-Type": "application/json", **(headers or {})}
        connection.request(method, path, data, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, dict(answer.getheaders()), text

    def complete(self, **fields):
        body = {"model": "base", "messages": HELLO, "max_tokens": 12, "temperature": 0, **fields}
        status, _, text = self.ask("POST", "/v1/chat/completions", body)
        return status, json.loads(text)

    def stream(self, **fields):
        """Parsed events, which end with [DONE]."""
        body = {"model": "base", "messages": HELLO, "max_tokens": 12, "temperature": 0, **fields}
        status, headers, text = self.ask("POST", "/v1/chat/completions", body | {"stream": True})
        assert status == 200, text
        assert headers["content-type"].startswith("text/event-stream")
        events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
        assert events.pop() == "[DONE]"
        return [json.loads(event) for event in events]


@contextmanager
def running(models, max_length=0, loopback_only=True, page="<!doctype html>page", routes=()):
    paths = Paths(model=Path("models/base"), adapters={})
    settings = ServeSettings(max_length=max_length, max_new_tokens=16, loopback_only=loopback_only)
    app = make_app(models, paths, settings, page)
    app.router.routes.extend(routes)
    found = listen("127.0.0.1", 0)
    config = uvicorn.Config(app, log_level="error", lifespan="on", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [found]})
    thread.start()
    try:
        yield Client(found.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(30)
        found.close()
        assert not thread.is_alive()
