"""HTTP/1.1 messages: read from sockets, written to sockets, and stored in the golden files.

An entry of a golden file holds a message as text: method and target or status, header lines in
their order, and body. Placeholders replace the values that differ between two runs. The date and
the headers that give the length of a body are left out.
"""

import json
import re
import socket
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from tests.golden.placeholders import Placeholders

Entry = dict[str, Any]

TIMEOUT_SECONDS: Final = 30.0
_HEAD_END: Final = b"\r\n\r\n"
_LEFT_OUT: Final = ("content-length:", "date:")
_BODILESS: Final = frozenset({204, 304})
_FRAMES: Final = "application/vnd.semel.frames"
_BINARY: Final = (_FRAMES, "application/vnd.semel.batch")

# These lines are in almost every response; one placeholder replaces them.
USUAL: Final = (
    "X-Content-Type-Options: nosniff",
    "Cross-Origin-Resource-Policy: same-origin",
)
_USUAL_WORD: Final = "<usual>"
# The value is long, so it is written only where it differs from that of the last response.
_EXPOSED: Final = "Access-Control-Expose-Headers: "
_EXPOSED_AGAIN: Final = f"{_EXPOSED}<as before>"


class Broken(Exception):
    """The connection ended before a message was complete."""


class Request(NamedTuple):
    """A request. If `body` is None, it has no Content-Length; if it is empty, it has one."""

    method: str
    target: str
    lines: tuple[str, ...] = ()
    body: bytes | None = None

    def encoded(self) -> bytes:
        lines = [f"{self.method} {self.target} HTTP/1.1", *self.lines]
        if self.body is not None:
            lines.append(f"Content-Length: {len(self.body)}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + (self.body or b"")


class Response(NamedTuple):
    """A response; `body` is decoded, without chunks and compression, and `raw` is as received."""

    status: int
    lines: tuple[str, ...] = ()
    body: bytes = b""
    raw: bytes = b""

    @property
    def headers(self) -> dict[str, str]:
        """The headers by their names in lower case."""
        return _by_name(self.lines)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def closes(self) -> bool:
        return self.headers.get("connection") == "close"

    def encoded(self, method: str) -> bytes:
        """Encode the response as a server sends it, with length and compression."""
        body = self.body
        if self.headers.get("content-encoding") == "gzip":
            body = zlib.compress(body, wbits=31)
        is_chunked = "transfer-encoding" in self.headers
        is_bodiless = self.status in _BODILESS or method == "HEAD"
        lines = [f"HTTP/1.1 {self.status} As Recorded", *self.lines]
        if is_chunked:
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        elif not is_bodiless:
            lines.append(f"Content-Length: {len(body)}")
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        return head if is_bodiless else head + body


class Connection:
    """A TCP connection from which whole messages are read."""

    def __init__(self, line: socket.socket) -> None:
        self.socket = line
        self._rest = b""

    @classmethod
    def to(cls, port: int) -> "Connection":
        return cls(socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS))

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def request(self) -> Request | None:
        """Read one request; return None if the other side has closed the connection."""
        try:
            first, lines, _ = self._head()
        except Broken:
            return None
        method, target, _ = first.split(" ")
        length = _by_name(lines).get("content-length")
        body = None if length is None else self._take(int(length))
        return Request(method, target, _kept(lines), body)

    def response(self, method: str) -> Response:
        """Read one response to a request of this method."""
        first, lines, raw = self._head()
        status = first.split(" ", 2)[1]  # the phrase after it differs between versions of Python
        headers = _by_name(lines)
        body = b""
        if int(status) in _BODILESS or method == "HEAD":
            pass
        elif "transfer-encoding" in headers:
            body, more = self._chunks()
            raw += more
        else:
            body = self._take(int(headers["content-length"]))
            raw += body
        if headers.get("content-encoding") == "gzip":
            body = zlib.decompress(body, wbits=31)
        return Response(int(status), _kept(lines), body, raw)

    def event_stream(self, control_count: int) -> Response:
        """Read the head of a response and its events, up to a number of control events."""
        first, lines, _ = self._head()
        body = b""
        while body.count(b"event: control") < control_count or not body.endswith(b"\n\n"):
            body += self._chunk()[1]
        return Response(int(first.split(" ", 2)[1]), _kept(lines), body)

    def _head(self) -> tuple[str, list[str], bytes]:
        while _HEAD_END not in self._rest:
            self._receive()
        head, _, self._rest = self._rest.partition(_HEAD_END)
        first, *lines = head.decode("latin-1").split("\r\n")
        return first, lines, head + _HEAD_END

    def _chunks(self) -> tuple[bytes, bytes]:
        body, raw = b"", b""
        while True:
            chunk, data = self._chunk()
            raw += chunk
            body += data
            if not data:
                return body, raw

    def _chunk(self) -> tuple[bytes, bytes]:
        while b"\r\n" not in self._rest:
            self._receive()
        size = self._rest.partition(b"\r\n")[0]
        chunk = self._take(len(size) + 2 + int(size, 16) + 2)
        return chunk, chunk[len(size) + 2 : -2]

    def _take(self, count: int) -> bytes:
        while len(self._rest) < count:
            self._receive()
        taken, self._rest = self._rest[:count], self._rest[count:]
        return taken

    def _receive(self) -> None:
        try:
            data = self.socket.recv(65_536)
        except OSError as error:
            raise Broken(str(error)) from error
        if not data:
            raise Broken("the other side has ended")
        self._rest += data


def _by_name(lines: Sequence[str]) -> dict[str, str]:
    pairs = (line.partition(":") for line in lines)
    return {name.lower(): value.strip() for name, _, value in pairs}


def _kept(lines: Sequence[str]) -> tuple[str, ...]:
    return tuple(line for line in lines if not line.lower().startswith(_LEFT_OUT))


# ---- entries -------------------------------------------------------------------------------------


class Entries:
    """Converts messages of one section to entries, and entries to messages."""

    def __init__(self) -> None:
        self.names = Placeholders()
        self._exposed = ""

    def of_request(self, step: str, request: Request) -> Entry:
        headers = [self.names.normalise(line) for line in request.lines]
        target = self.names.normalise(request.target)
        entry: Entry = {"step": step, "request": f"{request.method} {target}", "headers": headers}
        if request.body is not None:
            entry.update(self._body(request.body, request.lines, is_response=False))
        return entry

    def to_request(self, entry: Mapping[str, Any]) -> Request:
        method, _, target = str(entry["request"]).partition(" ")
        lines = tuple(self.names.fill(line) for line in entry["headers"])
        has_body = "body" in entry or "bytes" in entry
        body = self._filled(entry) if has_body else None
        return Request(method, self.names.fill(target), lines, body)

    def of_response(self, step: str, asked: str, response: Response) -> Entry:
        self.names.learn_incarnations("\n".join([*response.lines, _text(response.body)]))
        headers = [self.names.normalise(line, is_response=True) for line in self._short(response)]
        entry: Entry = {
            "step": step,
            "to": asked,
            "status": response.status,
            "headers": headers,
        }
        if response.body:
            entry.update(self._body(response.body, response.lines, is_response=True))
        return entry

    def to_response(self, entry: Mapping[str, Any]) -> Response:
        lines: list[str] = []
        for line in entry["headers"]:
            if line == _USUAL_WORD:
                lines += USUAL
            elif line == _EXPOSED_AGAIN:
                lines += [self._exposed] if self._exposed else []
            else:
                lines.append(self.names.fill(line))
                self._exposed = line if line.startswith(_EXPOSED) else self._exposed
        return Response(int(entry["status"]), tuple(lines), self._filled(entry))

    def _short(self, response: Response) -> list[str]:
        """Return the header lines, with placeholders for those that all responses have."""
        lines = list(response.lines)
        for at in range(len(lines)):
            if tuple(lines[at : at + len(USUAL)]) == USUAL:
                lines[at : at + len(USUAL)] = [_USUAL_WORD]
                break
        for at, line in enumerate(lines):
            if line.startswith(_EXPOSED):
                lines[at] = _EXPOSED_AGAIN if line == self._exposed else line
                self._exposed = line
        return lines

    def _body(self, body: bytes, lines: Sequence[str], *, is_response: bool) -> Entry:
        media_type = _by_name(lines).get("content-type", "")
        if media_type in _BINARY or _is_binary(body):
            text = body.decode("latin-1")
            if media_type == _FRAMES:
                text = self._without_times(body)
            return {"bytes": self.names.normalise(text, is_response=is_response)}
        return {"body": self.names.normalise(body.decode(), is_response=is_response)}

    def _without_times(self, frames: bytes) -> str:
        """Replace the time of each piece in a body of frames by a placeholder."""
        text, done = "", 0
        for at in frame_times(frames):
            (time_ms,) = struct.unpack_from("<q", frames, at)
            text += frames[done:at].decode("latin-1") + self.names.of_binary_time(time_ms)
            done = at + 8
        return text + frames[done:].decode("latin-1")

    def _filled(self, entry: Mapping[str, Any]) -> bytes:
        if "bytes" in entry:
            return self.names.fill(str(entry["bytes"])).encode("latin-1")
        return self.names.fill(str(entry.get("body", ""))).encode()


def _is_binary(body: bytes) -> bool:
    try:
        return re.search(r"[\x00-\x08\x7f]", body.decode()) is not None
    except UnicodeDecodeError:
        return True


def _text(body: bytes) -> str:
    return body.decode("utf-8", "replace")


def frame_times(frames: bytes) -> list[int]:
    """Return the positions of the times of all pieces in frames (docs/reference/http.md)."""
    _, _, type_length, count = struct.unpack_from("<4sHHI", frames)
    at = 28 + type_length
    found = []
    for _ in range(count):
        found.append(at + 8)
        messages, payload_length, flags = struct.unpack_from("<III", frames, at + 16)
        at += 28 + (4 * messages if messages > 1 else 0)
        if flags & 2:
            at += 4 + struct.unpack_from("<I", frames, at)[0]
        if flags & 4:
            at += 22 + struct.unpack_from("<H", frames, at + 20)[0]
        at += payload_length
    return found
