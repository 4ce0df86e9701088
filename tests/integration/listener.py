"""A server whose behavior a test defines, with one connection at a time."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from tests.spec.process import PATIENCE_SECONDS

Behaviour = Callable[["Listener", socket.socket], None]


class Listener:
    """Listens until the end of a `with` block, and calls `behave` for each connection.

    `requests` has the complete requests, `connections` is the number of connections.
    """

    def __init__(self, behave: Behaviour) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self.is_over = threading.Event()
        self._behave = behave
        self._door = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._door.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.is_over.set()
        self._door.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE_SECONDS)
        self._door.close()

    def take(self, line: socket.socket) -> bool:
        """Read one request; return False if the client has closed the connection."""
        data = b""
        while b"\r\n\r\n" not in data or len(data.partition(b"\r\n\r\n")[2]) < _length(data):
            received = line.recv(65536)
            if not received:
                return False
            data += received
        self.requests.append(data)
        return True

    def _serve(self) -> None:
        while not self.is_over.is_set():
            try:
                line, _ = self._door.accept()
            except OSError:
                return
            self.connections += 1
            with line, suppress(OSError):
                line.settimeout(PATIENCE_SECONDS)
                self._behave(self, line)


def _length(data: bytes) -> int:
    for field in data.partition(b"\r\n\r\n")[0].split(b"\r\n"):
        name, _, value = field.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def silent(listener: Listener, line: socket.socket) -> None:
    """Read a request and send no response."""
    if listener.take(line):
        listener.is_over.wait(PATIENCE_SECONDS)


def deaf(listener: Listener, line: socket.socket) -> None:
    """Accept the connection and read nothing."""
    listener.is_over.wait(PATIENCE_SECONDS)


def closing(listener: Listener, line: socket.socket) -> None:
    """Read a request and close the connection."""
    listener.take(line)


def answering(*answers: bytes) -> Behaviour:
    """Send these responses on every connection, one for each request, then close it."""

    def behave(listener: Listener, line: socket.socket) -> None:
        for answer in answers:
            if not listener.take(line):
                return
            line.sendall(answer)

    return behave
