"""Live reads: long-polls and event streams, woken by what became durable."""

import asyncio
from typing import Any, Final

from semel.broker.broker import TAIL, ReadDone
from semel.broker.engine import Engine
from semel.broker.seen import View, Waiter
from semel.server.http import Responder, Response, Stream
from semel.wire import cursors, responses, sse
from semel.wire.media import is_text
from semel.wire.queries import ReadRequest
from semel.wire.rendering import Response as WireResponse
from semel.wire.rendering import compress
from semel.wire.responses import StreamFacts

# How many encoded events are kept for the other readers at the same offset.
_SHARED_EVENTS_MAX: Final = 256


class Live:
    """All live readers of one engine."""

    def __init__(self, engine: Engine, *, long_poll_seconds: float, sse_seconds: float) -> None:
        self.engine = engine
        self.long_poll_seconds = long_poll_seconds
        self.sse_seconds = sse_seconds
        self.loop = asyncio.get_running_loop()
        self.readers: set[_Reader] = set()
        self.is_draining = False
        self._events: dict[tuple[int, int, int], bytes] = {}

    @property
    def waiting_count(self) -> int:
        """How many readers there are."""
        return len(self.readers)

    def drain(self) -> None:
        """Let nobody wait any longer: long-polls are answered, event streams end."""
        self.is_draining = True
        for reader in tuple(self.readers):
            reader.hurry()

    def cursor(self, given: int | None) -> int:
        """Give out a cursor."""
        clock = self.engine.clock
        jitter_s = 1 + int.from_bytes(clock.random_bytes(2)) % cursors.JITTER_S_MAX
        return cursors.next_cursor(given, now_ms=clock.now_ms(), jitter_s=jitter_s)

    def long_poll(self, path: str, wanted: ReadRequest, responder: Responder) -> None:
        """Answer as soon as there is something after the offset, or the time is over."""
        _LongPoll(self, path, wanted, responder).start()

    def events(self, path: str, wanted: ReadRequest, responder: Responder) -> None:
        """Answer with an event stream."""
        _EventStream(self, path, wanted, responder).start()

    def shared_event(self, done: ReadDone, encoder: sse.SseEncoder) -> bytes:
        """Encode a read as an event, once for all readers that stand at the same offset.

        Not for text: there a reader may hold the beginning of a character back.
        """
        if not done.slices or is_text(done.row.content_type):
            return encoder.data(done.slices, next_offset=done.next_offset)
        key = (done.row.number, done.slices[0].offset, done.next_offset)
        event = self._events.get(key)
        if event is None:
            if len(self._events) >= _SHARED_EVENTS_MAX:
                del self._events[next(iter(self._events))]
            event = self._events[key] = encoder.data(done.slices, next_offset=done.next_offset)
        else:
            encoder.next_offset = done.next_offset
        return event


class _Reader:
    """What both kinds of live reader share: one wait at a time, one deadline, one end."""

    def __init__(self, live: Live, path: str, wanted: ReadRequest, responder: Responder) -> None:
        self._live = live
        self._path = path
        self._wanted = wanted
        self._responder = responder
        self._offset: int | None = TAIL if wanted.is_now else wanted.offset
        self._waiting: tuple[View, Waiter] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False

    def start(self) -> None:
        """Begin with what is there."""
        self._live.readers.add(self)
        self._responder.on_gone(self._end)
        self._read()

    def _read(self) -> None:
        if not self._is_over:
            self._live.engine.read(self._path, self._offset, self._found)

    def _found(self, found: Any) -> None:
        raise NotImplementedError

    def _late(self) -> None:
        raise NotImplementedError

    def hurry(self) -> None:
        """Wait no longer; whoever is reading just now ends when it would wait."""
        if self._waiting is not None:
            self._late()

    def _wait(self, offset: int, seconds: float) -> None:
        if self._live.is_draining:
            self._late()
            return
        if self._timer is None:
            self._timer = self._live.loop.call_later(seconds, self._late)
        self._waiting = self._live.engine.broker.wait(self._path, offset, self._woken)
        if self._waiting is None:
            self._live.loop.call_soon(self._read)  # it moved on in between

    def _woken(self) -> None:
        self._waiting = None
        self._read()

    def _end(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._live.readers.discard(self)
        if self._waiting is not None:
            self._live.engine.broker.stop_waiting(self._waiting)
        if self._timer is not None:
            self._timer.cancel()

    def _send(self, response: WireResponse) -> None:
        self._end()
        if response.is_to_gzip:
            response = compress(response)
        self._responder.send(Response(response.status, response.headers, response.body))


def _facts(done: ReadDone) -> StreamFacts:
    row, tail = done.row, done.tail
    return StreamFacts(row.incarnation, row.content_type, tail.tail, tail.is_closed)


class _LongPoll(_Reader):
    """Waits for one answer."""

    def _found(self, found: Any) -> None:
        if self._is_over:
            return
        if not isinstance(found, ReadDone):
            self._send(responses.outcome_response(found))
        elif found.slices:
            self._send(self._answer(found))
        elif found.tail.is_closed:
            self._send(self._nothing(found))
        else:
            self._offset = found.next_offset
            self._last = found
            self._wait(found.next_offset, self._live.long_poll_seconds)

    def _answer(self, found: ReadDone) -> WireResponse:
        return responses.read_response(
            _facts(found),
            self._wanted,
            found.slices,
            start=found.slices[0].offset,
            next_offset=found.next_offset,
            cursor=self._live.cursor(self._wanted.cursor),
        )

    def _nothing(self, found: ReadDone) -> WireResponse:
        cursor = self._live.cursor(self._wanted.cursor)
        return responses.empty_poll_response(
            _facts(found), next_offset=found.next_offset, cursor=cursor
        )

    def _late(self) -> None:
        if not self._is_over:
            self._send(self._nothing(self._last))


class _EventStream(_Reader):
    """Writes events until the stream is closed, the reader is gone or its time is over."""

    _stream: Stream | None = None
    _encoder: sse.SseEncoder

    def _found(self, found: Any) -> None:
        if self._is_over:
            return
        if not isinstance(found, ReadDone):
            self._refuse(found)
            return
        if self._stream is None:
            self._begin(found)
        stream = self._stream
        assert stream is not None
        is_at_tail = found.next_offset >= found.tail.tail
        is_closed = is_at_tail and found.tail.is_closed
        if is_closed:
            data = self._encoder.data(found.slices, next_offset=found.next_offset, is_final=True)
        else:
            data = self._live.shared_event(found, self._encoder)
        stream.write(data + self._control(is_at_tail, is_closed))
        self._offset = found.next_offset
        if is_closed:
            self._finish()
        elif stream.is_blocked:
            stream.on_drain(self._read)
        elif is_at_tail:
            self._wait(found.next_offset, self._live.sse_seconds)
        else:
            self._live.loop.call_soon(self._read)

    def _begin(self, found: ReadDone) -> None:
        head = responses.sse_response(_facts(found))
        self._stream = self._responder.start(head.status, head.headers)
        start = found.slices[0].offset if found.slices else found.next_offset
        self._encoder = sse.SseEncoder(found.row.content_type, start)

    def _control(self, is_at_tail: bool, is_closed: bool) -> bytes:
        return sse.control_event(
            self._encoder.next_offset,
            cursor=self._live.cursor(self._wanted.cursor),
            is_up_to_date=is_at_tail,
            is_closed=is_closed,
        )

    def _refuse(self, outcome: Any) -> None:
        if self._stream is None:
            self._send(responses.outcome_response(outcome))
        else:
            self._finish()  # the stream is gone; a reader that comes back will be told

    def _late(self) -> None:
        self._finish()

    def _finish(self) -> None:
        if not self._is_over:
            self._end()
            if self._stream is not None:
                self._stream.end()
