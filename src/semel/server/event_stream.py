"""Event streams: each catches up by itself, and joins the group at the end."""

import asyncio
from typing import Any, Final

from semel.broker.broker import TAIL, ReadDone
from semel.broker.durable_view import tail_of_view
from semel.model.limits import KIB
from semel.model.transactions import READ_COMMITTED
from semel.server.admission import AdmittedRead, send_response
from semel.server.fanout import FanoutGroup, FanoutGroups, control_of
from semel.server.http import Responder, ResponseStream, SharedBytes
from semel.server.live import Live, blocker_of, facts_of
from semel.wire import responses, sse
from semel.wire.queries import ReadRequest

# An event a reader does not take stays in memory. One append is never split.
_EVENT_BYTES: Final = 256 * KIB


class EventStream:
    """Writes events until the stream is closed, the reader is gone or its time is over."""

    def __init__(
        self, live: Live, groups: FanoutGroups, path: str, wanted: ReadRequest, responder: Responder
    ) -> None:
        self._live = live
        self._groups = groups
        self.path = path
        self._wanted = wanted
        self._responder = responder
        self._is_committed = wanted.isolation == READ_COMMITTED
        self._offset: int | None = TAIL if wanted.is_now else wanted.offset
        self._number = 0  # of the stream, once it was read
        self._encoder: sse.SseEncoder | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.stream: ResponseStream | None = None
        self.group: FanoutGroup | None = None
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
            isolation = self._wanted.isolation
            read = AdmittedRead(
                self.path, self._offset, self.take, self._responder, _EVENT_BYTES, isolation
            )
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
        blocker = blocker_of(self._live.engine, found) if self._is_committed else None
        control = control_of(self._encoder, cursor, is_at_tail, is_closed, blocker)
        self.stream.write(data + control)
        self._offset = found.next_offset
        self._go_on(self.stream, found, is_closed=is_closed)

    def _go_on(self, stream: ResponseStream, found: ReadDone, *, is_closed: bool) -> None:
        if is_closed:
            self.finish()
        elif stream.is_blocked:
            stream.on_drain(self.read)
        elif found.next_offset < tail_of_view(found.tail, self._is_committed):
            self._live.loop.call_soon(self.read)
        else:
            self._join(found)

    def _join(self, found: ReadDone) -> None:
        if self._live.is_draining:
            self.finish()
            return
        key = (self.path, self._wanted.isolation)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = FanoutGroup(self._live, self._groups, key, found)
        if (group.number, group.offset) == (found.row.number, found.next_offset):
            group.join(self)
        else:
            self._live.loop.call_soon(self.read)  # it moved on in between

    def share(self, event: SharedBytes, next_offset: int) -> bool:
        """Write an event that was made for the whole group; False if it does not fit this one."""
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
        """Leave the group, if in one."""
        if self.group is not None:
            self.group.leave(self)

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
        send_response(self._responder, responses.outcome_response(outcome))

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
