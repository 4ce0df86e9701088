"""An ASGI application in a thread, and waiting for what it does."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

PATIENCE_SECONDS = 60.0  # for a busy machine; normally much shorter


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Serve an ASGI application on a free port of this machine, and return its URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=10)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE_SECONDS)
        listener.close()


def wait_for(fact: Callable[[], Any], what: str) -> None:
    """Wait until `fact` returns something true. Fails with its last value after a long time."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not (found := fact()):
        assert time.monotonic() < until, f"{what}: still {found!r}"
        time.sleep(0.01)
