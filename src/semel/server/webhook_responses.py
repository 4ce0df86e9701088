"""The responses of webhook receivers: strict HTTP/1.1, with limits, and without I/O.

A receiver can be anybody. So a response that is malformed or too long is an error, and not more of
it is read than is needed: nothing after the head unless the status is 2xx.
"""

import re
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

from msgspec import Struct

from semel.model.limits import (
    NUMBER_MAX,
    WEBHOOK_RESPONSE_BYTES_MAX,
    WEBHOOK_RESPONSE_HEAD_BYTES_MAX,
    WEBHOOK_RETRY_AFTER_MS_MAX,
)

HEADER_COUNT_MAX: Final = 100
CHUNK_LINE_BYTES_MAX: Final = 256

_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: [^\x00-\x08\x0a-\x1f\x7f]*)?")
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE: Final = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")
_LENGTH: Final = re.compile(rb"[0-9]{1,16}")
_CHUNK_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\x00-\x08\x0a-\x1f\x7f]*)?")
_SECONDS: Final = re.compile(r"[0-9]+")
_SECONDS_DIGITS_MAX: Final = 12  # a number with more digits is more than an hour
_NO_BODY: Final = (204, 205, 304)


class BadWebhookResponse(ValueError):
    """The response is malformed or too long. The message says how, in a few words."""


class WebhookResponse(Struct, frozen=True):
    """The status of a response, and of its body what matters."""

    status: int
    retry_after: str | None = None  # the value of this header
    body: bytes = b""  # only with 2xx

    @property
    def is_success(self) -> bool:
        return 200 <= self.status <= 299


class _Head(Struct, frozen=True):
    status: int
    is_http_1_1: bool
    headers: dict[bytes, list[bytes]]


class WebhookResponseParser:
    """Parses the response to one request, which was sent with `Connection: close`."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head: _Head | None = None
        self._head_bytes = 0
        self._body = bytearray()
        self._length: int | None = None  # None without a Content-Length
        self._chunks: _Chunks | None = None

    def feed(self, data: bytes) -> WebhookResponse | None:
        """Return the response when it is complete, or None. Raises BadWebhookResponse."""
        self._buffer += data
        while self._head is None:
            head = self._take_head()
            if head is None:
                return None
            if head.status < 200:  # such as 100 Continue: the response follows
                if head.status == 101:
                    raise BadWebhookResponse("the response changes the protocol")
                continue
            self._head = head
            if not 200 <= head.status <= 299 or head.status in _NO_BODY:
                return self._response()
            self._find_body(head)
        return self._take_body()

    def end(self) -> WebhookResponse:
        """Return the response, at the end of the connection. Raises BadWebhookResponse."""
        is_until_end = self._length is None and self._chunks is None
        if self._head is None or not is_until_end:
            raise BadWebhookResponse("the connection ended before the response was complete")
        return self._response()

    def _response(self) -> WebhookResponse:
        assert self._head is not None
        retry_after = self._head.headers.get(b"retry-after", [])
        text = retry_after[0].decode("latin-1") if len(retry_after) == 1 else None
        return WebhookResponse(self._head.status, text, bytes(self._body))

    # ---- the head --------------------------------------------------------------------------------

    def _take_head(self) -> _Head | None:
        end = self._buffer.find(b"\r\n\r\n")
        used = self._head_bytes + (len(self._buffer) if end < 0 else end)
        if used > WEBHOOK_RESPONSE_HEAD_BYTES_MAX:
            raise BadWebhookResponse(
                f"the head of the response has more than {WEBHOOK_RESPONSE_HEAD_BYTES_MAX} bytes"
            )
        if end < 0:
            return None
        lines = bytes(self._buffer[:end]).split(b"\r\n")
        del self._buffer[: end + 4]
        self._head_bytes += end + 4
        return _parse_head(lines)

    def _find_body(self, head: _Head) -> None:
        """Find out how the body ends. Raises BadWebhookResponse if that is not clear."""
        codings = head.headers.get(b"transfer-encoding")
        lengths = head.headers.get(b"content-length")
        if codings is not None:
            if lengths is not None or not head.is_http_1_1:
                raise BadWebhookResponse("the length of the response is not clear")
            if [each.lower() for each in codings] != [b"chunked"]:
                raise BadWebhookResponse("the transfer coding of the response is not chunked")
            self._chunks = _Chunks(self._buffer, self._body)
        elif lengths is not None:
            if len(lengths) != 1 or _LENGTH.fullmatch(lengths[0]) is None:
                raise BadWebhookResponse("the length of the response is not clear")
            self._length = int(lengths[0])
            _check_size(self._length)

    # ---- the body --------------------------------------------------------------------------------

    def _take_body(self) -> WebhookResponse | None:
        if self._chunks is not None:
            return self._response() if self._chunks.take() else None
        count = len(self._buffer)
        if self._length is not None:
            count = min(count, self._length - len(self._body))
        self._body += self._buffer[:count]
        del self._buffer[:count]
        _check_size(len(self._body))
        return self._response() if len(self._body) == self._length else None


def _check_size(size: int) -> None:
    if size > WEBHOOK_RESPONSE_BYTES_MAX:
        raise BadWebhookResponse(f"the response has more than {WEBHOOK_RESPONSE_BYTES_MAX} bytes")


def _parse_head(lines: list[bytes]) -> _Head:
    match = _STATUS_LINE.fullmatch(lines[0])
    if match is None:
        raise BadWebhookResponse("the response is not HTTP/1.1")
    if len(lines) - 1 > HEADER_COUNT_MAX:
        raise BadWebhookResponse(f"the response has more than {HEADER_COUNT_MAX} headers")
    headers: dict[bytes, list[bytes]] = {}
    for line in lines[1:]:
        name, value = _parse_header(line)
        headers.setdefault(name, []).append(value)
    return _Head(int(match[2]), match[1] == b"1", headers)


def _parse_header(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or _NAME.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
        raise BadWebhookResponse("a header of the response is malformed")
    return name.lower(), value.strip(b" \t")


class _Chunks:
    """Moves the content of chunks from a buffer to a body."""

    def __init__(self, buffer: bytearray, body: bytearray) -> None:
        self._buffer = buffer
        self._body = body
        self._rest = 0  # what is missing of a chunk, with the line end after it
        self._is_trailer = False
        self._framing_bytes = 0

    def take(self) -> bool:
        """Return whether the body is complete after what is in the buffer.

        Raises BadWebhookResponse.
        """
        while True:
            if self._rest > 2:
                count = min(self._rest - 2, len(self._buffer))
                self._body += self._buffer[:count]
                del self._buffer[:count]
                self._rest -= count
            if self._rest > 2 or len(self._buffer) < self._rest:
                return False
            if self._rest:
                if self._buffer[:2] != b"\r\n":
                    raise BadWebhookResponse("a chunk of the response is malformed")
                del self._buffer[:2]
                self._rest = 0
            line = self._take_line()
            if line is None:
                return False
            if self._is_trailer:
                if not line:
                    return True
                _parse_header(line)
            else:
                self._begin(line)

    def _take_line(self) -> bytes | None:
        end = self._buffer.find(b"\r\n")
        if end > CHUNK_LINE_BYTES_MAX or (end < 0 and len(self._buffer) > CHUNK_LINE_BYTES_MAX):
            raise BadWebhookResponse("a chunk of the response is malformed")
        if end < 0:
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        # Chunks of single bytes, or trailers without end, must not make a response long either.
        self._framing_bytes += end + 2
        _check_size(self._framing_bytes)
        return line

    def _begin(self, line: bytes) -> None:
        match = _CHUNK_LINE.fullmatch(line)
        if match is None:
            raise BadWebhookResponse("a chunk of the response is malformed")
        size = int(match[1], 16)
        _check_size(len(self._body) + size)
        self._rest = size + 2 if size else 0
        self._is_trailer = size == 0


# ---- what responses say --------------------------------------------------------------------------


def retry_after_ms(value: str | None, now_s: int) -> int:
    """Return the delay that a value of Retry-After demands: at most an hour, and 0 if it has none.

    The value is a number of seconds, or a date, which is compared with `now_s`.
    """
    if value is None:
        return 0
    if _SECONDS.fullmatch(value) is not None:
        digits = value.lstrip("0")
        seconds = int(digits or 0) if len(digits) <= _SECONDS_DIGITS_MAX else NUMBER_MAX
    else:
        try:
            date = parsedate_to_datetime(value)
            # Dates without a zone have the form of `asctime`, which means UTC (RFC 9110, 5.6.7).
            date = date.replace(tzinfo=date.tzinfo or UTC)
            seconds = int(date.timestamp()) - now_s
        except (ValueError, TypeError, OverflowError, IndexError):
            return 0
    return max(0, min(1000 * seconds, WEBHOOK_RETRY_AFTER_MS_MAX))
