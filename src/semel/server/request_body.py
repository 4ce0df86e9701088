"""Parses request bodies that arrive in parts: chunked, or with a Content-Length."""

import re
from enum import Enum, auto
from typing import Final

from semel.server.http import HttpRefused, Request, malformed
from semel.server.limits_http import HttpLimits
from semel.server.request_head import CHUNKED, body_too_large, check_line_ends, check_trailer

_WORD: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
_QUOTED: Final = rb'"(?:[\t \x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t \x21-\x7e\x80-\xff])*+"'
_CHUNK: Final = re.compile(
    rb"([0-9A-Fa-f]{1,15})(?:;" + _WORD + rb"(?:=(?:" + _WORD + rb"|" + _QUOTED + rb"))?)*+"
)
_CHUNKS_PER_TURN: Final = 4_096  # they take less than 10 ms


class _Next(Enum):
    SIZE = auto()
    DATA = auto()
    DATA_END = auto()
    TRAILER = auto()
    NOTHING = auto()


class PartialBody:
    """A request whose body is incomplete. `length` is the Content-Length, or CHUNKED.

    The caller must keep the bytes that `take` did not consume. The next call of `take` needs these
    bytes again, followed by the new bytes.
    """

    __slots__ = (
        "_body",
        "_chunk_count",
        "_limits",
        "_missing_bytes",
        "_next",
        "_next_after_data",
        "_received_bytes",
        "_trailer_bytes",
        "needs_turn",
        "request",
    )

    def __init__(self, request: Request, length: int, limits: HttpLimits) -> None:
        self.request = request
        self._limits = limits
        is_chunked = length == CHUNKED
        self._next = _Next.SIZE if is_chunked else _Next.DATA
        self._next_after_data = _Next.DATA_END if is_chunked else _Next.NOTHING
        self._missing_bytes = length  # in the body, or in the current body chunk
        self._body = bytearray()  # a list of small pieces would need much more memory
        self._received_bytes = 0  # including size lines and trailers
        self._chunk_count = 0
        self._trailer_bytes = 0
        # The last call of `take` has stopped early, so that other connections are served.
        self.needs_turn = False

    @property
    def is_complete(self) -> bool:
        """True if the body and its trailers have arrived. Then `take` has set `request.body`."""
        return self._next is _Next.NOTHING

    def take(self, data: bytes, position: int) -> tuple[int, int]:
        """Parse `data`, starting at `position`.

        Return the position of the first byte that was not consumed, and the number of bytes that
        were added to the body. Raises HttpRefused if the body is malformed or too large. If the
        chunks are so small that there are many, stop early and set `needs_turn`.
        """
        start, body_bytes, before = position, len(self._body), -1
        last_chunk = self._chunk_count + _CHUNKS_PER_TURN
        self.needs_turn = False
        while not self.is_complete and before < position < len(data):
            if self._chunk_count > last_chunk:
                self.needs_turn = True
                break
            before = position
            if self._next is _Next.DATA:
                position = self._take_data(data, position)
            elif self._next is _Next.DATA_END:
                position = self._take_data_end(data, position)
            else:
                position = self._take_line(data, position)
        self._received_bytes += position - start
        if self.is_complete:
            self.request.body = bytes(self._body)
        return position, len(self._body) - body_bytes

    def _take_data(self, data: bytes, position: int) -> int:
        piece = data[position : position + self._missing_bytes]
        self._body += piece
        self._missing_bytes -= len(piece)
        if not self._missing_bytes:
            self._next = self._next_after_data
        return position + len(piece)

    def _take_data_end(self, data: bytes, position: int) -> int:
        end = data[position : position + 2]
        if end == b"\r\n":
            self._next = _Next.SIZE
            return position + 2
        if end not in (b"", b"\r"):
            raise malformed("a chunk of the request body is longer than its declared size")
        return position

    def _take_line(self, data: bytes, position: int) -> int:
        end = data.find(b"\r\n", position, position + self._limits.chunk_line_bytes_max + 2)
        if end < 0:
            rest = data[position : position + self._limits.chunk_line_bytes_max + 2]
            check_line_ends(rest)
            if len(rest) > self._limits.chunk_line_bytes_max + 1:
                raise malformed("a chunk size line or a trailer line is too long")
            return position
        line = data[position:end]
        if self._next is _Next.SIZE:
            self._begin_chunk(line)
        elif line:
            self._skip_trailer(line)
        else:
            self._next = _Next.NOTHING
        return end + 2

    def _begin_chunk(self, line: bytes) -> None:
        match = _CHUNK.fullmatch(line)
        if match is None:
            raise malformed("the size line of a chunk is malformed")
        self._missing_bytes = int(match[1], 16)
        self._chunk_count += 1
        if len(self._body) + self._missing_bytes > self._limits.body_bytes_max:
            raise body_too_large(self._limits)
        if self._chunk_count > self._limits.chunk_count_max:
            raise HttpRefused(413, "body_too_large", "the request body has too many chunks")
        self._next = _Next.DATA if self._missing_bytes else _Next.TRAILER

    def _skip_trailer(self, line: bytes) -> None:
        check_trailer(line.decode("latin-1"))
        self._trailer_bytes += len(line)
        if self._trailer_bytes > self._limits.trailer_bytes_max:
            raise HttpRefused(431, "headers_too_large", "the trailers of the request are too long")

    def is_late(self, elapsed: float) -> bool:
        """Return True if too little of the body has arrived `elapsed` seconds after the head."""
        limits = self._limits
        if elapsed > limits.body_seconds:
            return True
        expected = elapsed * limits.body_bytes_per_second_min
        return elapsed > limits.body_grace_seconds and self._received_bytes < expected
