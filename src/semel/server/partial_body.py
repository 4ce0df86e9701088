"""A body that did not come together with its head: gathered piece by piece."""

from semel.server.chunked import ChunkedBody
from semel.server.http import Request
from semel.server.limits_http import HttpLimits
from semel.server.request_head import CHUNKED


class PartialBody:
    """What has come of a request's body; `length` is CHUNKED if it tells its length itself."""

    __slots__ = (
        "_chunked",
        "_limits",
        "_missing_bytes",
        "_pieces",
        "_received_bytes",
        "is_complete",
        "request",
    )

    def __init__(self, request: Request, length: int, limits: HttpLimits) -> None:
        self.request = request
        self.is_complete = False
        self._limits = limits
        self._chunked = ChunkedBody(limits) if length == CHUNKED else None
        self._missing_bytes = length
        self._pieces: list[bytes] = []
        self._received_bytes = 0

    def take(self, data: bytes, position: int) -> tuple[int, int]:
        """Take what belongs to it: where the rest begins, and how many bytes it has grown."""
        if self._chunked is not None:
            return self._take_chunks(self._chunked, data, position)
        piece = data[position : position + self._missing_bytes]
        self._pieces.append(piece)
        self._received_bytes += len(piece)
        self._missing_bytes -= len(piece)
        if not self._missing_bytes:
            self._complete(b"".join(self._pieces))
        return position + len(piece), len(piece)

    def _take_chunks(self, chunked: ChunkedBody, data: bytes, position: int) -> tuple[int, int]:
        before = len(chunked.body)
        end = chunked.feed(data, position)
        self._received_bytes += end - position
        grown = len(chunked.body) - before
        if chunked.is_complete:
            self._complete(bytes(chunked.body))
        return end, grown

    def _complete(self, body: bytes) -> None:
        self.request.body = body
        self.is_complete = True

    def is_late(self, elapsed: float) -> bool:
        """Whether it comes too slowly, so many seconds after its beginning."""
        limits = self._limits
        if elapsed > limits.body_seconds:
            return True
        wanted = elapsed * limits.body_bytes_per_second_min
        return elapsed > limits.body_grace_seconds and self._received_bytes < wanted
