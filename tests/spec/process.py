"""A real server process, and a plain HTTP client that returns complete responses."""

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import msgspec

SEMEL: Final = Path(sys.executable).with_name("semel")
MUTANT: Final = "ROW_MUTANT"  # the environment variable that names a bug of tests/row_mutants
LONG_POLL_SECONDS: Final = 0.5
PATIENCE_SECONDS: Final = 60.0  # for a busy machine; normally much shorter
ZERO: Final = f"{0:016d}_{0:016d}"


def program() -> list[str]:
    """Return the command `semel`, or that of a semel with the bug that the environment names."""
    is_mutant = MUTANT in os.environ
    return [sys.executable, "-m", "tests.row_mutants"] if is_mutant else [str(SEMEL)]


def offset_of(ordinal: int) -> str:
    """Return an offset in the format of the protocol."""
    return f"{0:016d}_{ordinal:016d}"


class Answer(msgspec.Struct, frozen=True):
    """A response, with header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def code(self) -> str:
        """The code of an error response, after a check of the format of the response."""
        assert self.headers.get("content-type") == "application/problem+json", self
        problem = self.json
        assert isinstance(problem["code"], str)
        assert problem["message"]
        assert problem["applied"] in ("no", "unknown")
        code: str = problem["code"]
        return code

    @property
    def next_offset(self) -> str:
        return self.headers["stream-next-offset"]


def field_names(headers: dict[str, Any]) -> dict[str, str]:
    """Turn keywords such as `producer_id` into header fields."""
    return {name.replace("_", "-"): str(value) for name, value in headers.items()}


def fields_of(response: http.client.HTTPResponse) -> dict[str, str]:
    """Return the headers of a response; the values of a repeated header are joined."""
    fields: dict[str, str] = {}
    for name, value in response.getheaders():
        first = fields.get(name.lower())
        fields[name.lower()] = value if first is None else f"{first}, {value}"
    return fields


ACCESS_LINE: Final = re.compile(r"^access is (?:on|off): .*\n", re.MULTILINE)


class Server:
    """One `semel serve` process on a directory, with its stderr in a file."""

    def __init__(self, data: Path, *options: str, port: int = 0) -> None:
        self.data = data
        self._errors = data.with_name(f"{data.name}.{uuid4().hex}.stderr")
        command = [*program(), "serve", "--data", str(data), "--port", str(port)]
        command += ["--reserve-bytes", "0", "--long-poll-timeout", str(LONG_POLL_SECONDS)]
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*command, *options], stdout=subprocess.PIPE, stderr=errors
            )
        assert self.process.stdout is not None
        self.greeting = self.process.stdout.readline().decode()
        self.port = int(self.greeting.rpartition(":")[2]) if self.greeting else 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def access_line(self) -> str:
        """The line on stderr that says whether access is on, or "" if there is none yet."""
        found = ACCESS_LINE.search(self._errors.read_text())
        return "" if found is None else found[0]

    @property
    def stderr(self) -> str:
        """What the server has written to stderr, without the line that every start writes."""
        return ACCESS_LINE.sub("", self._errors.read_text(), count=1)

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def wait(self) -> int:
        """Wait for the end of the process; return the exit code."""
        return self.process.wait(PATIENCE_SECONDS)

    def kill(self) -> None:
        """Send SIGKILL, unless the process has already ended."""
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
            self.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)

    def ask(self, method: str, target: str, body: bytes = b"", **headers: Any) -> Answer:
        """Send a request on a new connection; return the response.

        A body is JSON by default if it is not sent to a stream.
        """
        if body and not target.startswith("/v1/stream/"):
            headers.setdefault("content_type", "application/json")
        connection = self.connect()
        try:
            connection.request(method, target, body or None, field_names(headers))
            response = connection.getresponse()
            fields = fields_of(response)
            assert fields.pop("date")  # differs between equal responses
            return Answer(response.status, fields, response.read())
        finally:
            connection.close()

    def raw(self, data: bytes) -> "Answer | None":
        """Send bytes; return the first response, or None if the server closed the connection."""
        with self.dial() as line:
            # The server may refuse the request early; the response must still be read.
            with suppress(BrokenPipeError, ConnectionResetError):
                line.sendall(data)
            return read_answer(line)

    def dial(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE_SECONDS)

    def stream(self, path: str = "") -> "Stream":
        """Return the stream with this path, or with an unused path."""
        return Stream(self, path or f"s-{uuid4().hex}")

    def is_sound(self) -> bool:
        """Return whether the server is healthy and has written nothing else to stderr."""
        health = self.ask("GET", "/health")
        return health.status == 200 and health.json["status"] == "ok" and not self.stderr


@contextmanager
def sound_server(data: Path) -> Iterator[Server]:
    """Run a server that must be healthy, with an empty stderr, at the end."""
    it = Server(data)
    try:
        yield it
        assert it.is_sound(), it.stderr
    finally:
        it.kill()


def read_answer(line: socket.socket) -> Answer | None:
    """Read one response from a connection; return None if there is none."""
    response = http.client.HTTPResponse(line)
    try:
        response.begin()
        return Answer(response.status, fields_of(response), response.read())
    except (http.client.RemoteDisconnected, ConnectionResetError):
        return None
    finally:
        response.close()


class Stream:
    """One stream of a server."""

    def __init__(self, server: Server, path: str) -> None:
        self.server = server
        self.path = path
        self.target = f"/v1/stream/{path}"

    def put(self, body: bytes = b"", **headers: Any) -> Answer:
        return self.server.ask("PUT", self.target, body, **headers)

    def post(self, body: bytes = b"", **headers: Any) -> Answer:
        """Append to the stream, as text by default; `content_type=None` omits the header."""
        headers.setdefault("content_type", "text/plain")
        given = {name: value for name, value in headers.items() if value is not None}
        return self.server.ask("POST", self.target, body, **given)

    def get(self, query: str = "", **headers: Any) -> Answer:
        return self.server.ask("GET", f"{self.target}?{query}", **headers)

    def head(self) -> Answer:
        return self.server.ask("HEAD", self.target)

    def delete(self, query: str = "") -> Answer:
        return self.server.ask("DELETE", f"{self.target}?{query}")

    def create(self, body: bytes = b"", content_type: str = "text/plain", **headers: Any) -> str:
        """Create the stream; return its next offset."""
        answer = self.put(body, content_type=content_type, **headers)
        assert answer.status == 201, answer
        return answer.next_offset

    def pages(self) -> list[bytes]:
        """Read to the end; return the bodies of all responses."""
        found, offset = [], "-1"
        while True:
            answer = self.get(f"offset={offset}")
            assert answer.status == 200, answer
            found.append(answer.body)
            offset = answer.next_offset
            if "stream-up-to-date" in answer.headers:
                return found

    @property
    def text(self) -> str:
        """The content of the stream, which must fit into one response."""
        (page,) = self.pages()
        return page.decode()

    @property
    def tail(self) -> str:
        return self.head().next_offset

    @contextmanager
    def listen(self, offset: str = "-1") -> Iterator["Events"]:
        """Open an event stream."""
        connection = self.server.connect()
        try:
            connection.request("GET", f"{self.target}?offset={offset}&live=sse")
            yield Events(connection.getresponse())
        finally:
            connection.close()


class Event(msgspec.Struct, frozen=True):
    """One parsed server-sent event."""

    kind: str
    data: str

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.data)


class Events:
    """A reader of an event stream."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self._response = response

    def next(self) -> Event | None:
        """Return the next event; None at the end of the response."""
        kind, data = "message", []
        while line := self._response.readline():
            field, _, value = line.decode().rstrip("\n").partition(":")
            if field == "event":
                kind = value.removeprefix(" ")
            elif field == "data":
                data.append(value.removeprefix(" "))
            elif not field:
                return Event(kind, "\n".join(data))
        return None

    def rest(self) -> list[Event]:
        """Return all events up to the end of the response."""
        return list(iter(self.next, None))


class Later:
    """A read on its own thread."""

    def __init__(self, stream: Stream, query: str) -> None:
        self._found: list[Answer] = []
        self._thread = threading.Thread(target=lambda: self._found.append(stream.get(query)))
        self._thread.start()

    def answer(self) -> Answer:
        self._thread.join(PATIENCE_SECONDS)
        return self._found[0]
