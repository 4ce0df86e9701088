"""Reads of one request each. A response shows the stream at one moment."""

import http.client
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from semel.client.values import START

_TIMEOUT_SECONDS: Final = 5.0
_decode = msgspec.json.Decoder(list[str]).decode


class Page(NamedTuple):
    """The values of one response, and the offset for the next request."""

    values: list[str]
    next_offset: str
    is_up_to_date: bool


class Line:
    """One connection, which is opened when it is needed."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url).netloc
        self._connection: http.client.HTTPConnection | None = None

    def read(self, stream: str, offset: str, isolation: str) -> Page | None:
        """Send one request; return None without a complete response, or after a 502 or 503."""
        connection = self._connection or http.client.HTTPConnection(
            self._address, timeout=_TIMEOUT_SECONDS
        )
        self._connection = connection
        try:
            connection.request("GET", f"/v1/stream/{stream}?offset={offset}&isolation={isolation}")
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException):
            self.close()
            return None
        if answer.status != 200:
            assert answer.status in (502, 503), (answer.status, body)
            return None
        return _page(answer.headers, body, isolation)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _page(headers: http.client.HTTPMessage, body: bytes, isolation: str) -> Page:
    next_offset = headers["Stream-Next-Offset"]
    is_up_to_date = headers["Stream-Up-To-Date"] == "true"
    if isolation == "read_committed":
        # A committed reader that reached the stable offset has read all that it may see.
        is_up_to_date = is_up_to_date or next_offset >= headers["Stream-Stable-Offset"]
    return Page(_decode(body) if body else [], next_offset, is_up_to_date)


class Cursor:
    """An offset in a stream at one isolation level, and the number of values before the offset."""

    def __init__(self, stream: str, isolation: str) -> None:
        self.stream: Final = stream
        self.isolation: Final = isolation
        self.offset = START
        self.count = 0

    def read(self, line: Line) -> Page | None:
        """Read the next page. The cursor stays where it is until `move`."""
        return line.read(self.stream, self.offset, self.isolation)

    def move(self, page: Page) -> None:
        self.offset = page.next_offset
        self.count += len(page.values)
