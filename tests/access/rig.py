"""A real server with access on, tokens, and a connection that sends many requests at once."""

import http.client
import os
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from semel.journal.disk import RealDisk
from semel.journal.frame import Frame, checksum_seed
from semel.journal.identity import read_identity
from semel.journal.scan import intact_frames
from semel.journal.segments import segment_lsn
from tests.spec.process import PATIENCE_SECONDS, Answer, Server, fields_of

BOOTSTRAP: Final = "SEMEL_BOOTSTRAP_TOKEN"
JSON: Final = "application/json"
AUDIT: Final = "/v1/stream/__semel/audit"
_ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_DIGITS: Final = f"{_ALPHABET}-_"


def make_token_text() -> str:
    """Return a random token, as the holder of the first token makes it."""
    public = "".join(secrets.choice(_ALPHABET) for _ in range(12))
    secret = "".join(secrets.choice(_DIGITS) for _ in range(43))
    return f"semel_{public}_{secret}"


def id_of(token: str) -> str:
    """Return the public id of a token."""
    return token[6:18]


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set environment variables for the processes that are started inside."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class AccessServer(Server):
    """A server process. With `admin`, a token, it starts with SEMEL_BOOTSTRAP_TOKEN."""

    def __init__(self, data: Path, *options: str, admin: str | None = None, port: int = 0) -> None:
        self.admin = admin or ""
        with environment(**({} if admin is None else {BOOTSTRAP: admin})):
            super().__init__(data, *options, port=port)

    def call(
        self, token: str | None, method: str, target: str, document: Any = None, **headers: Any
    ) -> Answer:
        """Send a request with a token. `document` is sent as JSON, unless it is bytes."""
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        body = b""
        if isinstance(document, bytes):
            body = document
        elif document is not None:
            body = msgspec.json.encode(document)
            headers.setdefault("content_type", JSON)
        return self.ask(method, target, body, **headers)

    def make(self, *scopes: str, maker: str | None = None, **fields: Any) -> str:
        """Return a new token with these scopes."""
        answer = self.call(
            maker or self.admin, "POST", "/v1/tokens", {"scopes": list(scopes), **fields}
        )
        assert answer.status == 201, answer
        token: str = answer.json["token"]
        return token

    def revoke(self, token: str, query: str = "") -> Answer:
        return self.call(self.admin, "DELETE", f"/v1/tokens/{id_of(token)}{query}")

    def create(self, path: str, body: bytes = b"", content_type: str = "text/plain") -> None:
        answer = self.call(self.admin, "PUT", f"/v1/stream/{path}", body, content_type=content_type)
        assert answer.status == 201, answer

    def read(self, path: str) -> bytes:
        """Return the content of a stream, which can have many pages."""
        found, offset = b"", "-1"
        while True:
            answer = self.call(self.admin, "GET", f"/v1/stream/{path}?offset={offset}")
            assert answer.status == 200, answer
            found += answer.body
            if "stream-up-to-date" in answer.headers:
                return found
            offset = answer.next_offset

    def audit(self) -> list[dict[str, Any]]:
        """Return all records of the audit."""
        records: list[dict[str, Any]] = []
        offset = "-1"
        while True:
            answer = self.call(self.admin, "GET", f"{AUDIT}?offset={offset}")
            assert answer.status == 200, answer
            records += answer.json
            if "stream-up-to-date" in answer.headers:
                return records
            offset = answer.next_offset

    def line(self) -> "Line":
        return Line(self)


@contextmanager
def access_server(data: Path, *options: str) -> Iterator[AccessServer]:
    """Run a server with access on, which must be healthy, with an empty stderr, at the end."""
    it = AccessServer(data, *options, admin=make_token_text())
    try:
        assert it.access_line.startswith("access is on"), (it.access_line, it.stderr)
        yield it
        assert it.is_sound(), it.stderr
    finally:
        it.kill()


# ---- connections ---------------------------------------------------------------------------------


def request_bytes(
    method: str,
    target: str,
    headers: Mapping[str, str] | Sequence[tuple[str, str]] = (),
    body: bytes = b"",
) -> bytes:
    """Return the bytes of a request. They are encoded as Latin-1, so that they can be invalid."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost"]
    lines += [f"{name}: {value}" for name, value in pairs]
    lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


class Line:
    """A connection that is opened again whenever the server has closed it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._socket: socket.socket | None = None
        self._buffer = b""

    def __enter__(self) -> "Line":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._buffer = None, b""

    def ask(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        headers: Mapping[str, str] | Sequence[tuple[str, str]] = (),
    ) -> Answer:
        """Send one request and return its response."""
        data = request_bytes(method, target, headers, body)
        if self._socket is None:
            self._socket = self._server.dial()
        with suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(data)
        response = http.client.HTTPResponse(self._socket, method=method)
        response.begin()
        answer = Answer(response.status, fields_of(response), response.read())
        if response.will_close:
            self.close()
        return answer

    def ask_all(self, requests: Sequence[tuple[str, bytes]]) -> list[bytes | None]:
        """Send requests, pairs of method and bytes, at once; return their responses as bytes.

        If the server closes the connection, the requests without a response are sent again on a new
        one. A response is None if the server has closed the connection before it.
        """
        found: list[bytes | None] = []
        while len(found) < len(requests):
            if self._socket is None:
                self._socket = self._server.dial()
            left = requests[len(found) :]
            before = len(found)
            with suppress(BrokenPipeError, ConnectionResetError):
                self._socket.sendall(b"".join(data for _, data in left))
            for method, _ in left:
                response = self._read(method)
                if response is None:
                    break
                found.append(response)
                if b"\nconnection: close" in response.partition(b"\r\n\r\n")[0].lower():
                    break
            else:
                continue
            self.close()
            if len(found) == before:
                found.append(None)
        return found

    def _read(self, method: str) -> bytes | None:
        assert self._socket is not None
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if not self._fill():
                return None
        head = self._buffer[:end].lower()
        length = 0
        if method != "HEAD" and (at := head.find(b"\ncontent-length:")) >= 0:
            length = int(head[at + 16 :].partition(b"\r")[0])
        assert b"\ntransfer-encoding:" not in head
        while len(self._buffer) < end + 4 + length:
            if not self._fill():
                return None
        response, self._buffer = self._buffer[: end + 4 + length], self._buffer[end + 4 + length :]
        return response

    def _fill(self) -> bool:
        assert self._socket is not None
        self._socket.settimeout(PATIENCE_SECONDS)
        try:
            more = self._socket.recv(1 << 18)
        except ConnectionResetError:
            return False
        self._buffer += more
        return bool(more)


def status_of(response: bytes) -> int:
    """Return the status of a response in bytes."""
    return int(response[9:12])


# ---- the journal ---------------------------------------------------------------------------------


def frames_in(data: Path, start: int = 0) -> list[Frame]:
    """Return the frames of a data directory from the LSN `start`, also while a server uses it."""
    with closing(RealDisk(str(data))) as disk:
        seed = checksum_seed(read_identity(disk).id)
    found = []
    for file in sorted(data.iterdir()):
        first = segment_lsn(file.name)
        if first is not None:
            content = file.read_bytes()
            found += list(intact_frames(content, 0, len(content), first, seed))
    return [frame for frame in found if frame.lsn >= start]
