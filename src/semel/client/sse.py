"""Following a stream by server-sent events. Pure: flows, no sockets.

What a data event brought counts only when the control event after it has told where to go on: a
connection that breaks in between costs nothing and repeats nothing.
"""

import binascii
import re
from base64 import b64decode
from typing import Any, Final

import msgspec
from msgspec import Struct

from semel.client.errors import ProtocolError
from semel.client.flows import CloseChannel, Flow, Receive, RetrySafety, ask, pause_after
from semel.client.reading import SILENCE_SECONDS, Page, PageReader, plain_messages
from semel.client.requests import Request, query
from semel.client.response_parser import BodyPart
from semel.client.stream_calls import StreamCalls
from semel.client.txn_values import READ_COMMITTED
from semel.client.values import Message
from semel.model.limits import MIB
from semel.model.media import is_json
from semel.wire.headers import EVENTS
from semel.wire.schema.streams import ControlEvent

# ---- sse events ----------------------------------------------------------------------------------
# Reading server-sent events from bytes, in pieces of any size. Pure.


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


# ---- following -----------------------------------------------------------------------------------


_control = msgspec.json.Decoder(ControlEvent)


def live_reader(
    calls: StreamCalls, offset: str, live: str, *, isolation: str = READ_COMMITTED
) -> PageReader:
    """Choose how a stream is followed.

    A long-poll brings each message's own offset and time, so that is the usual way.
    """
    if live in ("auto", "long-poll"):
        return PageReader(calls, offset, is_live=True, isolation=isolation)
    if live == "sse":
        return SseReader(calls, offset, isolation=isolation)
    raise ValueError(f"live must be auto, long-poll or sse, not {live!r}")


class SseReader(PageReader):
    """A reader that is pushed what is new. Its messages have offsets at the ends of each push."""

    def __init__(self, calls: StreamCalls, offset: str, *, isolation: str = READ_COMMITTED) -> None:
        super().__init__(calls, offset, is_live=True, isolation=isolation)
        self._channel: Any = None
        self._parser = SseParser()
        self._is_base64 = False
        self._held: list[bytes] = []
        self._in_vain = 0

    def next_page(self) -> Flow[list[Message] | None]:
        """Wait for the next push; an empty list says only that time has passed."""
        yield from self.begin()
        if self._is_over:
            yield from self.hang_up()
            return None
        if self._channel is None:
            yield from self._open()
        part = yield Receive(self._channel, SILENCE_SECONDS)
        if not isinstance(part, BodyPart):
            yield from self.hang_up()
            yield pause_after(self._in_vain)
            self._in_vain += 1
            return []
        messages: list[Message] = []
        for event in self._parser.feed(part.data):
            messages += yield from self._take(event)
        return messages

    def hang_up(self) -> Flow[None]:
        """Let the connection go."""
        channel, self._channel = self._channel, None
        if channel is not None:
            yield CloseChannel(channel)

    def _open(self) -> Flow[None]:
        target = self._calls.target + query(
            offset=self.offset, live="sse", cursor=self._cursor, isolation=self.isolation
        )
        request = Request("GET", target, (("Accept", EVENTS),), is_streamed=True)
        retries = None if self.has_begun else self._calls.site.retries
        asked = yield from ask(
            request, RetrySafety.READ, retries=retries, silence_seconds=SILENCE_SECONDS
        )
        answer = asked.expect(200)
        if asked.channel is None:
            raise ProtocolError(f"the server does not answer live=sse with {EVENTS}")
        self._channel = asked.channel
        self._parser, self._held = SseParser(), []
        self._is_base64 = answer.headers.get("stream-sse-data-encoding") == "base64"
        self.check(answer.headers)

    def _take(self, event: SseEvent) -> Flow[list[Message]]:
        if event.kind == "data":
            self._held.append(self._decoded(event.data))
            return []
        if event.kind != "control":
            return []
        try:
            control = _control.decode(event.data)
        except msgspec.DecodeError as error:
            raise ProtocolError(f"a control event is not understood: {error}") from None
        media_type = yield from self._calls.known_type()
        messages = _messages(self._held, media_type, self.offset, control.stream_next_offset)
        for message in messages:
            message.source = self.source
        self._held = []
        self._in_vain = 0
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
            # Lines of it are joined by line ends, which are no part of it.
            return b64decode(data.replace(b"\n", b""), validate=True)
        except binascii.Error as error:
            raise ProtocolError(f"a data event is no base64: {error}") from None


def _messages(held: list[bytes], media_type: str, start: str, next_offset: str) -> list[Message]:
    """Make the messages of several data events with one control event after them."""
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
