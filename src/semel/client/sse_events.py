"""Reading server-sent events from bytes, in pieces of any size. Pure."""

import re
from typing import Final

from msgspec import Struct

from semel.client.errors import ProtocolError
from semel.model.limits import MIB

EVENT_BYTES_MAX: Final = 1024 * MIB
_LINE_END: Final = re.compile(rb"\r\n?|\n")


class SseEvent(Struct, frozen=True):
    """One event, as the standard understands it."""

    kind: str
    data: bytes


class SseParser:
    """The events of one connection; CRLF, CR and LF all end a line."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._seen = 0  # of the buffer, without an end of a line in it
        self._is_after_cr = False
        self._kind = "message"
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, data: bytes) -> list[SseEvent]:
        """Take what arrived; ProtocolError if an event is endless."""
        if self._is_after_cr and data:
            data = data.removeprefix(b"\n")
            self._is_after_cr = False
        self._buffer += data
        if len(self._buffer) + self._data_bytes > EVENT_BYTES_MAX:
            raise ProtocolError(f"an event is longer than {EVENT_BYTES_MAX} bytes")
        events: list[SseEvent] = []
        while (line := self._take_line()) is not None:
            event = self._take(line)
            if event is not None:
                events.append(event)
        return events

    def _take_line(self) -> bytes | None:
        buffer = self._buffer
        found = _LINE_END.search(buffer, self._seen)
        if found is None:
            self._seen = len(buffer)
            return None
        start, end = found.span()
        line = bytes(buffer[:start])
        # The LF of a CRLF may still be on its way.
        self._is_after_cr = found[0] == b"\r" and end == len(buffer)
        found = None  # it holds the buffer, which is about to shrink
        del buffer[:end]
        self._seen = 0
        return line

    def _take(self, line: bytes) -> SseEvent | None:
        if not line:
            return self._dispatch()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            self._kind = value.decode("utf-8", "replace")
        elif field == b"data":
            self._data.append(value)
            self._data_bytes += len(value) + 1
        return None

    def _dispatch(self) -> SseEvent | None:
        kind, data = self._kind, self._data
        self._kind, self._data, self._data_bytes = "message", [], 0
        return SseEvent(kind, b"\n".join(data)) if data else None
