"""Flows for live reads with server-sent events. They use no sockets.

A data event contains messages. The control event after it contains the offset after these messages.
The reader returns the messages only when it has received both events. After a lost connection, it
continues at the offset of the last control event. So no message is skipped or repeated.
"""

import binascii
import re
from base64 import b64decode
from typing import Any, Final

import msgspec
from msgspec import Struct

from semel.client.errors import DamagedResponse, ProtocolError
from semel.client.flows import CloseChannel, Flow, Receive, RetrySafety, ask, pause_after
from semel.client.reading import SILENCE_SECONDS, Page, PageReader, plain_messages
from semel.client.requests import Request, query
from semel.client.response_parser import BodyPart
from semel.client.stream_calls import StreamCalls
from semel.client.values import READ_COMMITTED, Message
from semel.model.limits import MIB
from semel.model.messages import is_json
from semel.wire.headers import EVENTS
from semel.wire.schema import ControlEvent

EVENT_BYTES_MAX: Final = 1024 * MIB
_LINE_END: Final = re.compile(rb"\r\n?|\n")


class SseEvent(Struct, frozen=True):
    """One server-sent event, as the HTML standard defines it."""

    kind: str
    data: bytes


class SseParser:
    """Parses the events of one connection. A line can end with CRLF, CR or LF."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0  # this many bytes at the start of the buffer contain no line end
        self._is_after_cr = False
        self._kind = "message"
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, data: bytes) -> list[SseEvent]:
        """Return the events that `data` completes.

        Raises ProtocolError if an event is too long.
        """
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
        match = _LINE_END.search(buffer, self._searched)
        if match is None:
            self._searched = len(buffer)
            return None
        start, end = match.span()
        line = bytes(buffer[:start])
        # If the data ends with CR, the next data can begin with the LF of the same CRLF.
        self._is_after_cr = match[0] == b"\r" and end == len(buffer)
        match = None  # a bytearray cannot shrink while a match object refers to it
        del buffer[:end]
        self._searched = 0
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


_control = msgspec.json.Decoder(ControlEvent)


def live_reader(
    calls: StreamCalls, offset: str, live: str, *, isolation: str = READ_COMMITTED
) -> PageReader:
    """Return a live reader. Raises ValueError if `live` is not "auto", "long-poll" or "sse".

    "auto" means long-poll, because server-sent events lack the offset and the time of each message.
    """
    if live in ("auto", "long-poll"):
        return PageReader(calls, offset, is_live=True, isolation=isolation)
    if live == "sse":
        return SseReader(calls, offset, isolation=isolation)
    raise ValueError(f"live={live!r} is invalid; expected auto, long-poll or sse")


class SseReader(PageReader):
    """A live reader that uses server-sent events.

    Only control events have offsets. Therefore, of the messages between two control events, only
    the first has an `offset`, and only the last has a `next_offset`.
    """

    def __init__(self, calls: StreamCalls, offset: str, *, isolation: str = READ_COMMITTED) -> None:
        super().__init__(calls, offset, is_live=True, isolation=isolation)
        self._channel: Any = None
        self._parser = SseParser()
        self._is_base64 = False
        self._held: list[bytes] = []
        self._failures = 0

    def next_page(self) -> Flow[list[Message] | None]:
        """Return the next messages, or None at the end of the stream. The list can be empty."""
        yield from self.begin()
        if self._is_over:
            yield from self.hang_up()
            return None
        if self._channel is None:
            yield from self._open()
        part = yield Receive(self._channel, SILENCE_SECONDS)
        if not isinstance(part, BodyPart):
            yield from self.hang_up()
            yield pause_after(self._failures)
            self._failures += 1
            return []
        messages: list[Message] = []
        for event in self._parser.feed(part.data):
            messages += yield from self._take(event)
        return messages

    def hang_up(self) -> Flow[None]:
        """Close the connection that receives the events."""
        channel, self._channel = self._channel, None
        if channel is not None:
            yield CloseChannel(channel)

    def _open(self) -> Flow[None]:
        target = self._calls.target + query(
            offset=self.offset, live="sse", cursor=self._cursor, isolation=self.isolation
        )
        request = Request("GET", target, (("Accept", EVENTS),), is_streamed=True)
        retries = None if self.has_begun else self._calls.site.retries
        exchanged = yield from ask(
            request,
            RetrySafety.READ,
            retries=retries,
            silence_seconds=SILENCE_SECONDS,
            stream=self._calls.path,
        )
        headers = exchanged.expect(200).headers
        if exchanged.channel is None:
            raise ProtocolError(f"the content type of the response to live=sse is not {EVENTS}")
        self._channel = exchanged.channel
        self._parser, self._held = SseParser(), []
        self._is_base64 = headers.get("stream-sse-data-encoding") == "base64"
        self.check(headers)

    def _take(self, event: SseEvent) -> Flow[list[Message]]:
        if event.kind == "data":
            self._held.append(self._decoded(event.data))
            return []
        if event.kind != "control":
            return []
        try:
            control = _control.decode(event.data)
        except msgspec.DecodeError as error:
            raise DamagedResponse(f"the server sent an invalid control event: {error}") from error
        media_type = yield from self._calls.known_type()
        messages = _messages(self._held, media_type, self.offset, control.stream_next_offset)
        for message in messages:
            message.source = self.source
        self._held = []
        self._failures = 0
        page = Page(
            messages,
            control.stream_next_offset,
            control.up_to_date,
            control.stream_closed,
            control.stream_cursor,
        )
        self._move(page)
        return messages

    def _decoded(self, data: bytes) -> bytes:
        if not self._is_base64:
            return data
        try:
            # The parser has joined the lines of the event with LF. Base64 contains no LF.
            return b64decode(data.replace(b"\n", b""), validate=True)
        except binascii.Error as error:
            raise DamagedResponse(f"the server sent data that is not base64: {error}") from error


def _messages(held: list[bytes], media_type: str, start: str, next_offset: str) -> list[Message]:
    """Return the messages of the data events that came before a control event.

    `held` contains the data of these events. `start` is the offset of the first message, and
    `next_offset` is the offset in the control event.
    """
    if not is_json(media_type):
        return plain_messages(b"".join(held), media_type, start, next_offset)
    messages = [
        message for data in held for message in plain_messages(data, media_type, None, next_offset)
    ]
    for message in messages:
        message.next_ordinal = None
    if messages:
        messages[0].ordinal, messages[-1].next_ordinal = start, next_offset
    return messages
