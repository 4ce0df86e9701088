"""Live reads: long-polls and event streams, woken by what became durable.

Readers that follow a stream at its end are served together: one wait, one read and one encoded
event for all of them (`Crowd`). Each falls out of the crowd when it reads too slowly, and finds its
own way back to the end.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from semel.broker.broker import TAIL, ReadDone
from semel.broker.engine import Engine
from semel.broker.seen import View, Waiter
from semel.model.limits import KIB
from semel.model.outcomes import NotFound
from semel.server.answers import send
from semel.server.http import Piece, Responder, Stream
from semel.server.reads import Read, Reads
from semel.wire import cursors, responses, sse
from semel.wire.queries import ReadRequest
from semel.wire.rendering import Response as WireResponse
from semel.wire.responses import StreamFacts

# An event a reader does not take stays in memory. One append is never split.
_EVENT_BYTES: Final = 256 * KIB


class Live:
    """All live readers of one engine."""

    def __init__(
        self, engine: Engine, reads: Reads, *, long_poll_seconds: float, sse_seconds: float
    ) -> None:
        self.engine = engine
        self.reads = reads
        self.long_poll_seconds = long_poll_seconds
        self.sse_seconds = sse_seconds
        self.loop = asyncio.get_running_loop()
        self.readers: set[LongPoll | EventStream] = set()
        self.crowds: dict[str, Crowd] = {}
        self.is_draining = False

    @property
    def waiting_count(self) -> int:
        """Count the live readers."""
        return len(self.readers)

    def drain(self) -> None:
        """Let every live reader go, in good order: it will come back, and be served then."""
        self.is_draining = True
        for reader in list(self.readers):
            reader.finish()

    def cursor(self, given: int | None) -> int:
        """Give out a cursor."""
        clock = self.engine.clock
        jitter_s = 1
        if given is not None:
            jitter_s += int.from_bytes(clock.random_bytes(2)) % cursors.JITTER_S_MAX
        return cursors.next_cursor(given, now_ms=clock.now_ms(), jitter_s=jitter_s)

    def long_poll(self, path: str, wanted: ReadRequest, responder: Responder) -> None:
        """Answer as soon as there is something after the offset, or the time is over."""
        LongPoll(self, path, wanted, responder).start()

    def events(self, path: str, wanted: ReadRequest, responder: Responder) -> None:
        """Answer with an event stream."""
        EventStream(self, path, wanted, responder).start()


def facts_of(done: ReadDone) -> StreamFacts:
    """Tell what answers say about a stream."""
    row, tail = done.row, done.tail
    return StreamFacts(
        row.incarnation,
        row.content_type,
        tail.tail,
        tail.is_closed,
        row.ttl_ms,
        row.expires_at_ms,
        tail.dedup_from,
    )


class LongPoll:
    """Waits for one answer."""

    def __init__(self, live: Live, path: str, wanted: ReadRequest, responder: Responder) -> None:
        self._live = live
        self._path = path
        self._wanted = wanted
        self._responder = responder
        self._offset: int | None = TAIL if wanted.is_now else wanted.offset
        self._last: ReadDone | None = None
        self._waiting: tuple[View, Waiter] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False

    def start(self) -> None:
        """Begin with what is there."""
        self._live.readers.add(self)
        self._responder.on_gone(self._end)
        self._read()

    def _read(self) -> None:
        self._waiting = None
        if not self._is_over:
            read = Read(self._path, self._offset, self._found, self._responder)
            self._live.reads.begin(read)

    def _found(self, found: Any) -> None:
        if self._is_over:
            return
        if not isinstance(found, ReadDone):
            self._send(responses.outcome_response(found))
        elif self._last is not None and found.row.number != self._last.row.number:
            self._send(responses.outcome_response(NotFound()))  # the path holds another stream now
        elif found.slices:
            self._send(self._answer(found))
        elif found.tail.is_closed:
            self._send(self._nothing(found))
        else:
            self._wait(found)

    def _wait(self, found: ReadDone) -> None:
        self._offset, self._last = found.next_offset, found
        if self._live.is_draining:
            self.finish()
            return
        if self._timer is None:
            self._timer = self._live.loop.call_later(self._live.long_poll_seconds, self.finish)
        self._waiting = self._live.engine.broker.wait(self._path, found.next_offset, self._read)
        if self._waiting is None:
            self._live.loop.call_soon(self._read)  # it moved on in between

    def finish(self) -> None:
        """The time is over: there was nothing."""
        if not self._is_over and self._last is not None:
            self._send(self._nothing(self._last))

    def _answer(self, found: ReadDone) -> WireResponse:
        return responses.read_response(
            facts_of(found),
            self._wanted,
            found.slices,
            start=found.slices[0].offset,
            next_offset=found.next_offset,
            cursor=self._live.cursor(self._wanted.cursor),
        )

    def _nothing(self, found: ReadDone) -> WireResponse:
        cursor = self._live.cursor(self._wanted.cursor)
        return responses.empty_poll_response(
            facts_of(found), next_offset=found.next_offset, cursor=cursor
        )

    def _send(self, response: WireResponse) -> None:
        self._end()
        send(self._responder, response, self._live.reads.unread)

    def _end(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._live.readers.discard(self)
        if self._waiting is not None:
            self._live.engine.broker.stop_waiting(self._waiting)
        if self._timer is not None:
            self._timer.cancel()


class EventStream:
    """Writes events until the stream is closed, the reader is gone or its time is over."""

    def __init__(self, live: Live, path: str, wanted: ReadRequest, responder: Responder) -> None:
        self._live = live
        self.path = path
        self._wanted = wanted
        self._responder = responder
        self._offset: int | None = TAIL if wanted.is_now else wanted.offset
        self._number = 0  # of the stream, once it was read
        self._encoder: sse.SseEncoder | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.stream: Stream | None = None
        self.crowd: Crowd | None = None
        # A client that sent a cursor gets control events of its own.
        self._has_own_cursor = wanted.cursor is not None
        self._is_over = False

    def start(self) -> None:
        """Begin with what is there."""
        self._live.readers.add(self)
        self._responder.on_gone(self._end)
        self.read()

    def read(self) -> None:
        """Go on by itself, from where it stands."""
        if not self._is_over:
            read = Read(self.path, self._offset, self.take, self._responder, _EVENT_BYTES)
            self._live.reads.begin(read)

    def take(self, found: Any) -> None:
        """Write what was found, and go on."""
        if self._is_over:
            return
        if not isinstance(found, ReadDone):
            self._refuse(found)
            return
        if self.stream is None or self._encoder is None:
            self._begin(found)
        assert self.stream is not None
        assert self._encoder is not None
        if found.row.number != self._number:
            self.finish()  # ours is gone, the path holds another stream now
            return
        is_at_tail = found.next_offset >= found.tail.tail
        is_closed = is_at_tail and found.tail.is_closed
        data = self._encoder.data(found.slices, next_offset=found.next_offset, is_final=is_closed)
        cursor = self._live.cursor(self._wanted.cursor)
        self.stream.write(data + control_of(self._encoder, cursor, is_at_tail, is_closed))
        self._offset = found.next_offset
        self._go_on(self.stream, found, is_at_tail=is_at_tail, is_closed=is_closed)

    def _go_on(self, stream: Stream, found: ReadDone, *, is_at_tail: bool, is_closed: bool) -> None:
        if is_closed:
            self.finish()
        elif stream.is_blocked:
            stream.on_drain(self.read)
        elif not is_at_tail:
            self._live.loop.call_soon(self.read)
        else:
            self._join(found)

    def _join(self, found: ReadDone) -> None:
        if self._live.is_draining:
            self.finish()
            return
        crowd = self._live.crowds.get(self.path)
        if crowd is None:
            crowd = self._live.crowds[self.path] = Crowd(self._live, self.path, found)
        if (crowd.number, crowd.offset) == (found.row.number, found.next_offset):
            crowd.join(self)
        else:
            self._live.loop.call_soon(self.read)  # it moved on in between

    def share(self, event: Piece, next_offset: int) -> bool:
        """Write an event that was made for the whole crowd; False if it does not fit this one."""
        stream, encoder = self.stream, self._encoder
        assert stream is not None
        assert encoder is not None
        # If they differ, the beginning of a character is held back.
        if self._has_own_cursor or encoder.next_offset != self._offset:
            return False
        self._offset = encoder.next_offset = next_offset
        if stream.write_piece(event):
            self.leave()
            stream.on_drain(self.read)
        return True

    def leave(self) -> None:
        """Leave the crowd, if in one."""
        if self.crowd is not None:
            self.crowd.part(self)

    def _begin(self, found: ReadDone) -> None:
        head = responses.sse_response(facts_of(found))
        self.stream = self._responder.start(head.status, head.headers)
        start = found.slices[0].offset if found.slices else found.next_offset
        self._number = found.row.number
        self._encoder = sse.SseEncoder(found.row.content_type, start)
        self._timer = self._live.loop.call_later(self._live.sse_seconds, self.finish)

    def _refuse(self, outcome: Any) -> None:
        if self.stream is not None:
            self.finish()  # the stream is gone; a reader that comes back will be told
            return
        self._end()
        send(self._responder, responses.outcome_response(outcome))

    def finish(self) -> None:
        """End the events; before the first one there is nothing to end yet."""
        if not self._is_over and self.stream is not None:
            self._end()
            self.stream.end()

    def _end(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._live.readers.discard(self)
        self.leave()
        if self._timer is not None:
            self._timer.cancel()


def control_of(encoder: sse.SseEncoder, cursor: int, is_at_tail: bool, is_closed: bool) -> bytes:
    """Tell a reader where it stands."""
    return sse.control_event(
        encoder.next_offset, cursor=cursor, is_up_to_date=is_at_tail, is_closed=is_closed
    )


class Crowd:
    """The event streams that stand at the end of one stream."""

    def __init__(self, live: Live, path: str, found: ReadDone) -> None:
        self._live = live
        self._path = path
        self.number = found.row.number
        self.offset = found.next_offset
        self._members: dict[EventStream, None] = {}
        self._waiting: tuple[View, Waiter] | None = None

    def join(self, member: EventStream) -> None:
        """Take a reader in; the first one's coming begins the wait."""
        self._members[member] = None
        member.crowd = self
        if self._waiting is None:
            self._wait()

    def part(self, member: EventStream) -> None:
        """Let a reader go; the last one's leaving ends the wait."""
        self._members.pop(member, None)
        member.crowd = None
        if not self._members:
            self._dissolve()

    def _wait(self) -> None:
        self._waiting = self._live.engine.broker.wait(self._path, self.offset, self._woken)
        if self._waiting is None:
            self._live.loop.call_soon(self._woken)

    def _woken(self) -> None:
        self._waiting = None
        if self._members:
            self._live.engine.read(self._path, self.offset, self._found)

    def _found(self, found: Any) -> None:
        event = self._shared(found) if isinstance(found, ReadDone) else None
        if event is None:
            self._scatter(lambda member: member.take(found))
            return
        self.offset = found.next_offset
        piece, next_offset = Piece(event), found.next_offset
        for member in list(self._members):
            if not member.share(piece, next_offset):
                member.leave()
                member.take(found)
        if self._members and self._waiting is None:
            self._wait()

    def _shared(self, found: ReadDone) -> bytes | None:
        """Encode the event once; None if each reader has to see for itself."""
        is_at_tail = found.next_offset >= found.tail.tail
        is_ours = found.row.number == self.number
        if found.tail.is_closed or not found.slices or not is_at_tail or not is_ours:
            return None
        encoder = sse.SseEncoder(found.row.content_type, self.offset)
        data = encoder.data(found.slices, next_offset=found.next_offset)
        if encoder.next_offset != found.next_offset:
            return None
        return data + control_of(encoder, self._live.cursor(None), True, False)

    def _scatter(self, tell: Callable[[EventStream], None]) -> None:
        members, self._members = list(self._members), {}
        self._dissolve()
        for member in members:
            member.crowd = None
            tell(member)

    def _dissolve(self) -> None:
        if self._waiting is not None:
            self._live.engine.broker.stop_waiting(self._waiting)
            self._waiting = None
        if self._live.crowds.get(self._path) is self:
            del self._live.crowds[self._path]
