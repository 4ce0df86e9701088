"""A server and a client that keep every byte they receive."""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

PATIENCE_SECONDS = 20.0


def eventually(fact: Callable[[], bool]) -> bool:
    """Wait until `fact` is true; return False after the timeout."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not fact():
        if time.monotonic() > until:
            return False
        time.sleep(0.002)
    return True


class Line:
    """One connection that a recorder accepted."""

    def __init__(self, line: socket.socket) -> None:
        self.socket = line
        self.got = b""
        self.end = ""  # "eof" or "reset"


def plain_answer(request: bytes) -> bytes:
    """Return a response with the body of the request, or with its path if it has no body."""
    body = b"said " + (request.partition(b"\r\n\r\n")[2] or request.split(b" ")[1])
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


class Recorder:
    """Sends `answer(request)` for every complete request of a connection, in order."""

    def __init__(self, answer: Callable[[bytes], bytes] = plain_answer) -> None:
        self.lines: list[Line] = []
        self.requests: list[bytes] = []
        self._answer = answer
        self._gate = threading.Event()
        self._gate.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *exc: object) -> None:
        self.unlock()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for line in self.lines:
            with suppress(OSError):
                line.socket.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)

    @property
    def bodies(self) -> list[bytes]:
        return [request.partition(b"\r\n\r\n")[2] for request in self.requests]

    @property
    def end(self) -> str:
        """How the first connection ended; empty while it is open."""
        return self.lines[0].end if self.lines else ""

    def lock(self) -> None:
        """Send no responses until `unlock`."""
        self._gate.clear()

    def unlock(self) -> None:
        self._gate.set()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            line = Line(accepted)
            self.lines.append(line)
            self._threads.append(threading.Thread(target=self._serve, args=(line,)))
            self._threads[-1].start()

    def _serve(self, line: Line) -> None:
        whole: SimpleQueue[bytes | None] = SimpleQueue()
        responding = threading.Thread(target=self._respond, args=(line, whole))
        responding.start()
        with line.socket:
            line.end = self._receive(line, whole)
            whole.put(None)
            responding.join(PATIENCE_SECONDS)

    def _receive(self, line: Line, whole: "SimpleQueue[bytes | None]") -> str:
        start = 0
        while True:
            try:
                piece = line.socket.recv(65536)
            except ConnectionResetError:
                return "reset"
            if not piece:
                return "eof"
            line.got += piece
            while (end := request_end(line.got, start)) is not None:
                self.requests.append(line.got[start:end])
                whole.put(line.got[start:end])
                start = end

    def _respond(self, line: Line, whole: "SimpleQueue[bytes | None]") -> None:
        while (request := whole.get()) is not None:
            self._gate.wait(PATIENCE_SECONDS)
            with suppress(OSError):
                line.socket.sendall(self._answer(request))


def request_end(data: bytes, start: int) -> int | None:
    """Return the end of the request that begins at `start`; None if it is incomplete."""
    head, empty_line, _ = data[start:].partition(b"\r\n\r\n")
    if not empty_line:
        return None
    if b"\r\nTransfer-Encoding: chunked" in head:
        last = data.find(b"0\r\n\r\n", start + len(head) + 4)
        return None if last < 0 else last + 5
    length = 0
    for field in head.split(b"\r\n")[1:]:
        name, _, value = field.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    end = start + len(head) + 4 + length
    return end if end <= len(data) else None


class Caller:
    """One raw connection of a client."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)
        self.got = b""

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()

    def send(self, *requests: bytes) -> "Caller":
        self.socket.sendall(b"".join(requests))
        return self

    def until(self, ending: bytes) -> bytes:
        """Read until the received bytes end with `ending`; return all received bytes."""
        while not self.got.endswith(ending):
            piece = self.socket.recv(65536)
            assert piece, f"closed after {self.got!r}"
            self.got += piece
        return self.got

    def rest_or_answer(self, ending: bytes) -> None:
        """Read until the received bytes end with `ending` or a 502, or the connection ends."""
        with suppress(ConnectionResetError):
            while not self.got.endswith((ending, b"bad gateway\n")):
                piece = self.socket.recv(65536)
                if not piece:
                    return
                self.got += piece

    def rest(self) -> str:
        """Read to the end of the connection; return how it ended."""
        try:
            while piece := self.socket.recv(65536):
                self.got += piece
        except ConnectionResetError:
            return "reset"
        return "eof"


def post(body: bytes, *fields: bytes) -> bytes:
    lines = [b"POST /x HTTP/1.1", b"Host: x", b"Content-Length: %d" % len(body), *fields, b"", b""]
    return b"\r\n".join(lines) + body


def echo(body: bytes) -> bytes:
    """Return the response of the recorder to a POST of this body."""
    return plain_answer(b"\r\n\r\n" + body)


def forwarding(port: int) -> Callable[[bytes], bytes]:
    """Return the `answer` of a recorder that passes each request on to a server on this port."""

    def forward(request: bytes) -> bytes:
        with Caller(port) as server:
            server.send(request)
            while b"\r\n\r\n" not in server.got:
                server.got += server.socket.recv(65536)
            head = server.got[: server.got.index(b"\r\n\r\n") + 4]
            if request.startswith(b"HEAD"):
                return head
            while (end := request_end(server.got, 0)) is None:
                server.got += server.socket.recv(65536)
            return server.got[:end]

    return forward
