"""A listener in a separate thread, and a client that sends raw bytes."""

import asyncio
import logging
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import pytest
import uvloop

from semel.broker.settings import Clock
from semel.server.browsers import NO_CORS, BrowserPolicy
from semel.server.http import Handler, Request, Responder, Response, ResponseStream
from semel.server.limits_http import HttpLimits
from semel.server.listener import Listener
from semel.server.unread_budget import UnreadBudget
from semel.server.webhooks import Webhooks, WebhookSettings

ANSWER_SECONDS: Final = 20.0
LOOPS: Final = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
DATE: Final = re.compile(r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT")
HOST: Final = b"Host: localhost\r\n"
CONSTANT_LINES: Final = BrowserPolicy().header_lines()[NO_CORS]

# A client context that trusts every certificate.
TRUSTING: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
TRUSTING.check_hostname = False
TRUSTING.verify_mode = ssl.CERT_NONE

each_loop = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])


def no_webhooks() -> Webhooks:
    """Return the webhooks of a server whose keys can be neither loaded nor created."""
    return Webhooks(WebhookSettings(key_file="no-such-directory/webhook.key"), "http://localhost")


def echo(request: Request, responder: Responder) -> None:
    """Send the request back as JSON."""
    fields = {
        "method": request.method,
        "path": request.path,
        "query": request.query,
        "headers": request.headers,
        "repeated": sorted(request.repeated),
        "body": request.body.decode("latin-1"),
    }
    headers = [("Content-Type", "application/json")]
    responder.send(Response(200, headers, msgspec.json.encode(fields)))


class Server:
    """A running listener. Exceptions that reach its loop, and logged errors, are kept."""

    def __init__(
        self,
        handler: Handler,
        limits: HttpLimits | None,
        loop: str,
        clock: Clock | None,
        tls: ssl.SSLContext | None,
        unread: UnreadBudget | None,
    ) -> None:
        self.listener = Listener(clock)
        self.escaped: list[dict[str, Any]] = []
        self.logged: list[logging.LogRecord] = []
        self.loop = LOOPS[loop]()
        self.loop.set_exception_handler(lambda _, context: self.escaped.append(context))
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.port = self.run(self.listener.bind("127.0.0.1", 0))
        self.call(lambda: self.listener.start(handler, limits, unread=unread, ssl=tls))

    def run(self, coroutine: Any) -> Any:
        """Run a coroutine on the server's loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(ANSWER_SECONDS)

    def call(self, action: Callable[[], Any]) -> Any:
        """Run a function on the server's loop, and return its result."""

        async def run() -> Any:
            return action()

        return self.run(run())

    def close(self) -> None:
        self.run(self.listener.drain(0.0))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def connect(
        self, receive_buffer: int = 0, source: str = "", *, is_tls: bool = False
    ) -> "Client":
        return Client(self.port, receive_buffer, source, is_tls=is_tls)

    def still_serves(self) -> bool:
        with self.connect() as client:
            client.send(b"GET /alive HTTP/1.1\r\n" + HOST + b"\r\n")
            return client.answer().status == 200


class Keeper(logging.Handler):
    """A log handler that collects errors."""

    def __init__(self, kept: list[logging.LogRecord]) -> None:
        super().__init__(logging.ERROR)
        self.kept = kept

    def emit(self, record: logging.LogRecord) -> None:
        self.kept.append(record)


@contextmanager
def serving(
    handler: Handler = echo,
    limits: HttpLimits | None = None,
    *,
    loop: str = "uvloop",
    may_log: bool = False,
    clock: Clock | None = None,
    tls: ssl.SSLContext | None = None,
    unread: UnreadBudget | None = None,
) -> Iterator[Server]:
    """Run a server; fail if an exception reaches its loop or, without `may_log`, it logs errors."""
    server = Server(handler, limits, loop, clock, tls, unread)
    keeper = Keeper(server.logged)
    logger = logging.getLogger("semel.server")
    logger.addHandler(keeper)
    try:
        yield server
    finally:
        server.close()
        logger.removeHandler(keeper)
    assert server.escaped == []
    assert may_log or [record.getMessage() for record in server.logged] == []


class Answer(msgspec.Struct):
    """A response as received."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def closes(self) -> bool:
        return self.headers.get("connection") == "close"


class Client:
    """A connection to the server."""

    def __init__(
        self, port: int, receive_buffer: int = 0, source: str = "", *, is_tls: bool = False
    ) -> None:
        self.socket = socket.socket()
        if source:
            self.socket.bind((source, 0))
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(ANSWER_SECONDS)
        try:
            self.socket.connect(("127.0.0.1", port))
            if is_tls:
                self.socket = TRUSTING.wrap_socket(self.socket)
        except OSError:
            self.socket.close()
            raise
        self.file = self.socket.makefile("rb")

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self.file.close()
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(self, data: bytes, *, is_head: bool = False) -> Answer:
        self.send(data)
        return self.answer(is_head=is_head)

    def end(self) -> None:
        """Shut down the sending side of the connection."""
        self.socket.shutdown(socket.SHUT_WR)

    def line(self) -> str:
        return self.file.readline().decode("latin-1").removesuffix("\r\n")

    def head(self) -> tuple[int, dict[str, str]]:
        status = self.line()
        assert status.startswith("HTTP/1.1 "), status
        headers: dict[str, str] = {}
        while line := self.line():
            name, _, value = line.partition(": ")
            assert name.lower() not in headers
            headers[name.lower()] = value
        code = int(status.split(" ")[1])
        if code >= 200:  # every final response has these headers; remove them
            for line in CONSTANT_LINES.splitlines():
                name, _, value = line.partition(": ")
                assert headers.pop(name.lower()) == value
            assert DATE.fullmatch(headers.pop("date"))
        return code, headers

    def answer(self, *, is_head: bool = False) -> Answer:
        status, headers = self.head()
        body = b""
        if is_head or status in (100, 204, 304):
            return Answer(status, headers, body)
        if headers.get("transfer-encoding") == "chunked":
            while piece := self.chunk():
                body += piece
        elif "content-length" in headers:
            body = self.file.read(int(headers["content-length"]))
        else:
            body = self.file.read()
        return Answer(status, headers, body)

    def chunk(self) -> bytes:
        size = int(self.line(), 16)
        piece = self.file.read(size)
        assert self.file.read(2) == b"\r\n"
        return piece

    def is_closed(self) -> bool:
        """Wait for a byte or the end; return whether the server has closed the connection."""
        try:
            return self.file.read(1) == b""
        except ConnectionResetError:
            return True


def get(path: str = "/", *headers: str, version: str = "1.1") -> bytes:
    lines = [f"GET {path} HTTP/{version}", "Host: localhost", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1")


def post(body: bytes, *headers: str, path: str = "/") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode("latin-1") + body


def put(path: str) -> bytes:
    """Return a write request: unlike reads, many may be in progress on one connection."""
    return f"PUT {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode("latin-1")


def eventually(fact: Callable[[], bool]) -> bool:
    """Wait up to 10 seconds until a condition is true; return whether it is."""
    until = time.monotonic() + 10
    while not fact():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


class Desk:
    """A handler that only collects requests: the test sends the responses."""

    def __init__(self) -> None:
        self.asked: list[tuple[Request, Responder]] = []
        self.gone: list[str] = []

    def __call__(self, request: Request, responder: Responder) -> None:
        self.asked.append((request, responder))
        responder.on_gone(lambda: self.gone.append(request.path))

    def has(self, count: int) -> bool:
        return eventually(lambda: len(self.asked) == count)

    def answer(self, server: Server, index: int, body: bytes = b"") -> None:
        request, responder = self.asked[index]
        response = Response(200, [("X-Path", request.path)], body)
        server.call(lambda: responder.send(response))

    def start(self, server: Server, index: int) -> ResponseStream:
        stream: ResponseStream = server.call(lambda: self.asked[index][1].start(200, []))
        return stream
