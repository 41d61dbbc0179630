"""The socket of `glmforge serve`, and the HTTP server that answers at it (uvicorn).

Owns the words for a port that is taken, and an end in order: at Ctrl-C answers are ended, not lost.
"""

import socket
from collections.abc import Callable

import uvicorn
from starlette.applications import Starlette

from glmforge.errors import LaunchError

_GRACE_SECONDS = 2


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 takes a free one.

    Raises:
        LaunchError: the name is unknown here, or the port is taken.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
            found.listen(128)
        except OSError:
            found.close()
            raise
    except OSError as error:
        raise LaunchError(
            f"{host}:{port}: cannot listen there ({error.strerror}); give another --host or --port "
            "(--port 0 takes a free one)"
        ) from error
    return found


def serve_until_stopped(
    app: Starlette, found: socket.socket, on_start: Callable[[str], None]
) -> None:
    """Answer until Ctrl-C or a termination signal; answers in progress are ended.

    Args:
        app: the application.
        found: from `listen`.
        on_start: gets the URL that the server is at.
    """
    host, port = found.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    on_start(f"http://{shown}:{port}")
    config = uvicorn.Config(
        app, log_level="warning", timeout_graceful_shutdown=_GRACE_SECONDS, lifespan="on"
    )
    try:
        uvicorn.Server(config).run(sockets=[found])
    except KeyboardInterrupt:
        pass  # uvicorn ends in order first, and then hands the signal on
    finally:
        found.close()
