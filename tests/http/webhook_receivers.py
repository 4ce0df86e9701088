"""Receivers of webhooks for tests: sockets on loopback that count connections and misbehave."""

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from tests.http.harness import eventually

PATIENCE_SECONDS: Final = 30.0
OK: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
DONE: Final = b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{"done":true}'

Answer = Callable[[socket.socket], None]


def read_request(line: socket.socket) -> bytes:
    """Return a complete request, with its body; less if the client ends before."""
    data = b""
    while True:
        head, end, body = data.partition(b"\r\n\r\n")
        if end:
            (length,) = (
                int(each.partition(b":")[2])
                for each in head.split(b"\r\n")
                if each.lower().startswith(b"content-length:")
            )
            if len(body) >= length:
                return data
        part = line.recv(65_536)
        if not part:
            return data
        data += part


class Receiver:
    """Accepts connections on a thread, and lets `answer` use each on a thread of its own."""

    def __init__(
        self,
        answer: Answer | bytes = OK,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        is_read: bool = True,
    ) -> None:
        self._answer = answer
        self._tls = tls
        self._is_read = is_read
        self._ended = threading.Event()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = socket.create_server((host, port), family=family, backlog=1_024)
        self.host = host
        self.port: int = self._listening.getsockname()[1]
        self.count = 0  # connections
        self.requests: list[bytes] = []
        self.names: list[str | None] = []  # that clients have sent with TLS
        if tls is not None:
            tls.sni_callback = lambda _line, name, _context: self.names.append(name)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self._tls is None else 'https'}://{host}:{self.port}/hook"

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def bodies(self) -> list[bytes]:
        return [each.partition(b"\r\n\r\n")[2] for each in self.requests]

    def close(self) -> None:
        self._ended.set()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(PATIENCE_SECONDS)

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listening.accept()
            except OSError:
                return
            self.count += 1
            threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        with line, suppress(OSError):
            line.settimeout(PATIENCE_SECONDS)
            used = line
            if self._tls is not None:
                used = self._tls.wrap_socket(line, server_side=True)
            with used:
                if self._is_read:
                    self.requests.append(read_request(used))
                if isinstance(self._answer, bytes):
                    used.sendall(self._answer)
                else:
                    self._answer(used)


@contextmanager
def receiver(
    answer: Answer | bytes = OK,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    tls: ssl.SSLContext | None = None,
    is_read: bool = True,
) -> Iterator[Receiver]:
    it = Receiver(answer, host=host, port=port, tls=tls, is_read=is_read)
    try:
        yield it
    finally:
        it.close()


# ---- answers that are wrong ----------------------------------------------------------------------


def wait_for_end(line: socket.socket) -> None:
    """Send nothing until the client ends the connection."""
    with suppress(OSError):
        while line.recv(65_536):
            pass


def repeat(first: bytes, part: bytes, pause: float = 0.0) -> Answer:
    """Return an answer that sends `first`, and then `part` until the client ends."""

    def answer(line: socket.socket) -> None:
        line.sendall(first)
        ended = threading.Event()

        def watch() -> None:
            wait_for_end(line)
            ended.set()

        threading.Thread(target=watch, daemon=True).start()
        with suppress(OSError):
            while not ended.wait(pause):
                line.sendall(part)

    return answer


def reset(line: socket.socket) -> None:
    """End the connection with a reset."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    line.close()


def late(event: threading.Event, response: bytes = OK) -> Answer:
    """Return an answer that is sent when an event is set."""

    def answer(line: socket.socket) -> None:
        event.wait(PATIENCE_SECONDS)
        line.sendall(response)

    return answer


@contextmanager
def full_listener() -> Iterator[int]:
    """Yield a port at which connections are neither accepted nor refused."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        port: int = listening.getsockname()[1]
        lines = []
        try:
            for _ in range(4):
                line = socket.socket()
                line.setblocking(False)
                line.connect_ex(("127.0.0.1", port))
                lines.append(line)
            assert eventually(lambda: not can_connect(port))
            yield port
        finally:
            for line in lines:
                line.close()


def can_connect(port: int) -> bool:
    with socket.socket() as line:
        line.settimeout(0.2)
        try:
            line.connect(("127.0.0.1", port))
        except TimeoutError:
            return False
        return True
