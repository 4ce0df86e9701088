"""A parser for the HTTP/1.1 responses on one connection. It uses no sockets.

Call `expect` once for each request, in the order of the requests. Call `feed` with received bytes,
and `end` when the server has closed the connection. An ambiguous response raises ProtocolError,
because other parsers could read it differently.
"""

import re
import zlib
from collections import deque
from typing import Final, NoReturn

from msgspec import Struct

from semel.client.errors import DamagedResponse, ProtocolError
from semel.model.limits import KIB, MIB

HEAD_BYTES_MAX: Final = 64 * KIB
BODY_BYTES_MAX: Final = 1024 * MIB
_CHUNK_LINE_BYTES_MAX: Final = 1 * KIB

_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: [\t\x20-\x7e\x80-\xff]*)?")
_FIELD: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
_CHUNK_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")
_GZIP_WINDOW: Final = 31  # zlib's value for gzip
_BODILESS: Final = frozenset({204, 304})
_STREAMED_TYPE: Final = "text/event-stream"


class Response(Struct, frozen=True):
    """An HTTP response.

    Header names are in lower case. If a header is repeated, its values are joined by commas. If
    `is_streamed` is True, `body` is empty, and the content follows as BodyPart events.
    """

    status: int
    headers: dict[str, str]
    body: bytes = b""
    is_streamed: bool = False


class BodyPart(Struct, frozen=True):
    """A part of a streamed body."""

    data: bytes


class BodyEnd(Struct, frozen=True):
    """The event that follows the last part of a streamed body."""


ParserEvent = Response | BodyPart | BodyEnd


class ResponseCut(DamagedResponse):
    """Raised if the connection was closed in the middle of a response."""


class _Expected(Struct, frozen=True):
    is_head: bool
    is_streamed: bool


class ResponseParser:
    """Parses the responses of one connection."""

    def __init__(self, *, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        self.is_closing = False  # no response will follow on this connection
        self.has_begun = False  # at least one byte of the next response was received
        self._body_bytes_max = body_bytes_max
        self._expected: deque[_Expected] = deque()
        self._buffer = bytearray()
        self._head: Response | None = None
        self._body: list[bytes] = []
        self._body_bytes = 0
        # The number of missing bytes of the body or body chunk. None means that the body ends
        # when the connection ends.
        self._rest: int | None = 0
        self._step = self._take_head
        self._events: list[ParserEvent] = []

    def expect(self, *, is_head: bool = False, is_streamed: bool = False) -> None:
        """Tell the parser to expect the response to a request that is being sent."""
        self._expected.append(_Expected(is_head, is_streamed))

    @property
    def waiting_count(self) -> int:
        """The number of expected responses that are not complete yet."""
        return len(self._expected)

    @property
    def is_reusable(self) -> bool:
        """True if a further request can be sent on this connection.

        All responses must be complete, and the connection must not be closed or about to close.
        """
        return not (self._expected or self._buffer or self.is_closing)

    def feed(self, data: bytes) -> list[ParserEvent]:
        """Return the events that `data` completes. Raises ProtocolError if `data` is invalid."""
        if data and not self._expected:
            self._refuse("the server sent a response that the client did not request")
        self._buffer += data
        self.has_begun = self.has_begun or bool(data)
        self._events = []
        while self._step():
            pass
        return self._events

    def end(self) -> list[ParserEvent]:
        """Handle the end of the connection, which can complete a body. Return the events.

        Raises ResponseCut if a response has begun but is incomplete. For an expected response that
        has not begun, no error is raised, and `waiting_count` still counts it.
        """
        self._events = []
        self.is_closing = True
        if self._head is not None and self._rest is None:
            self._finish()
        elif self.has_begun:
            raise ResponseCut("the connection was closed in the middle of a response")
        return self._events

    # ---- status line and headers -----------------------------------------------------------------

    def _take_head(self) -> bool:
        if not self._buffer:
            return False
        end = self._buffer.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX)
        if end < 0:
            if len(self._buffer) >= HEAD_BYTES_MAX:
                self._refuse(f"the response headers are longer than {HEAD_BYTES_MAX} bytes")
            if not b"HTTP/1.".startswith(self._buffer[:7]):
                self._refuse(
                    f"{bytes(self._buffer)[:40]!r} is not the beginning of an HTTP/1.1 response"
                )
            return False
        if not self._expected:
            self._refuse("the server sent a response that the client did not request")
        lines = bytes(self._buffer[:end]).split(b"\r\n")
        del self._buffer[: end + 4]
        status, is_old = self._read_status(lines[0])
        headers = self._read_fields(lines[1:])
        if status == 101:
            self._refuse("the server switched to a protocol that the client did not request")
        if status < 200:
            return True  # an interim response; the final response follows
        self._begin(status, headers, is_old=is_old)
        return True

    def _read_status(self, line: bytes) -> tuple[int, bool]:
        match = _STATUS_LINE.fullmatch(line)
        if match is None:
            self._refuse(f"{line[:80]!r} is not an HTTP/1.1 status line")
        return int(match[2]), match[1] == b"0"

    def _read_fields(self, lines: list[bytes]) -> dict[str, str]:
        headers: dict[str, str] = {}
        for line in lines:
            match = _FIELD.fullmatch(line)
            if match is None:
                self._refuse(f"{line[:80]!r} is not a valid header line")
            name = match[1].decode("ascii").lower()
            value = match[2].rstrip(b" \t").decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return headers

    def _begin(self, status: int, headers: dict[str, str], *, is_old: bool) -> None:
        expected = self._expected[0]
        options = [word.strip() for word in headers.get("connection", "").lower().split(",")]
        self.is_closing = "close" in options or (is_old and "keep-alive" not in options)
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        is_streamed = expected.is_streamed and status == 200 and media_type == _STREAMED_TYPE
        self._head = Response(status, headers, is_streamed=is_streamed)
        if is_streamed:
            self._events.append(self._head)
        self._frame(status, headers, is_head=expected.is_head)

    def _frame(self, status: int, headers: dict[str, str], *, is_head: bool) -> None:
        """Determine where the body ends (RFC 9112, section 6.3)."""
        coding, length = headers.get("transfer-encoding"), headers.get("content-length")
        if is_head or status in _BODILESS:
            self._finish()
        elif coding is not None:
            if coding.lower() != "chunked" or length is not None:
                self._refuse(
                    f"the response has Transfer-Encoding {coding!r}; the client"
                    " accepts only 'chunked', and only without a Content-Length header"
                )
            self._step = self._take_chunk_size
        elif length is not None:
            self._rest = self._read_length(length)
            self._step = self._take_body
        else:
            self.is_closing = True
            self._rest = None
            self._step = self._take_body

    def _read_length(self, text: str) -> int:
        values = {value.strip() for value in text.split(",")}
        value = values.pop()
        if values or not (value.isascii() and value.isdigit() and len(value) < 16):
            self._refuse(f"{text!r} is not a valid Content-Length")
        if int(value) > self._body_bytes_max:
            self._refuse(f"the response has {value} bytes; the limit is {self._body_bytes_max}")
        return int(value)

    # ---- the body --------------------------------------------------------------------------------

    def _take_body(self) -> bool:
        if self._rest == 0:
            self._finish()
            return True
        if not self._buffer:
            return False
        if self._rest is None or self._rest >= len(self._buffer):
            part, self._buffer = bytes(self._buffer), bytearray()
        else:
            part = bytes(self._buffer[: self._rest])
            del self._buffer[: self._rest]
        if self._rest is not None:
            self._rest -= len(part)
        self._keep(part)
        return True

    def _keep(self, part: bytes) -> None:
        assert self._head is not None
        if self._head.is_streamed:
            self._events.append(BodyPart(part))
            return
        self._body_bytes += len(part)
        if self._body_bytes > self._body_bytes_max:
            self._refuse(f"the response is longer than {self._body_bytes_max} bytes")
        self._body.append(part)

    def _take_chunk_size(self) -> bool:
        line = self._take_line()
        if line is None:
            return False
        match = _CHUNK_SIZE.fullmatch(line)
        if match is None:
            self._refuse_body(f"{line[:40]!r} is not the size of a body chunk")
        self._rest = int(match[1], 16)
        self._step = self._take_chunk if self._rest else self._take_trailer
        return True

    def _take_chunk(self) -> bool:
        assert self._rest is not None
        if self._rest:
            return self._take_body()
        if len(self._buffer) < 2:
            return False
        if self._buffer[:2] != b"\r\n":
            self._refuse_body("a body chunk of the response is longer than its declared size")
        del self._buffer[:2]
        self._step = self._take_chunk_size
        return True

    def _take_trailer(self) -> bool:
        line = self._take_line()
        if line is None:
            return False
        if not line:
            self._finish()
        return True

    def _take_line(self) -> bytes | None:
        end = self._buffer.find(b"\r\n", 0, _CHUNK_LINE_BYTES_MAX)
        if end < 0:
            if len(self._buffer) >= _CHUNK_LINE_BYTES_MAX:
                self._refuse("a line between two body chunks of the response is too long")
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _finish(self) -> None:
        head, body = self._head, b"".join(self._body)
        assert head is not None
        self._head, self._body, self._body_bytes = None, [], 0
        self._rest = 0
        self._expected.popleft()
        self._step = self._take_head
        self.has_begun = bool(self._buffer)
        if head.is_streamed:
            self._events.append(BodyEnd())
            return
        self._events.append(Response(head.status, head.headers, self._decoded(head, body)))

    def _decoded(self, head: Response, body: bytes) -> bytes:
        coding = head.headers.get("content-encoding", "identity").lower()
        if coding == "identity" or not body:
            return body
        if coding not in ("gzip", "x-gzip"):
            self._refuse(f"the response has the unsupported Content-Encoding {coding!r}")
        inflater = zlib.decompressobj(_GZIP_WINDOW)
        try:
            plain = inflater.decompress(body, self._body_bytes_max)
        except zlib.error as error:
            self._refuse_body(
                f"the Content-Encoding is gzip, but the response body is not valid gzip: {error}",
                error,
            )
        if not inflater.eof or inflater.unused_data or inflater.unconsumed_tail:
            self._refuse_body(
                "the gzip response is incomplete, longer than the limit, or followed by other bytes"
            )
        return plain

    def _refuse(self, message: str) -> NoReturn:
        self.is_closing = True
        raise ProtocolError(message)

    def _refuse_body(self, message: str, cause: Exception | None = None) -> NoReturn:
        self.is_closing = True
        raise DamagedResponse(message) from cause
