"""Server-sent events: a reader catches up alone; at the tail it joins a fan-out group."""

import asyncio
from typing import Final

from semel.broker.broker import TAIL, ReadDone
from semel.broker.durable_view import tail_of_view
from semel.model.commands import READ_COMMITTED
from semel.model.limits import KIB
from semel.model.outcomes import Outcome
from semel.server.admission import AdmittedRead, send_response
from semel.server.fanout import FanoutGroup, FanoutGroups, control_of
from semel.server.http import Responder, ResponseStream, SharedBytes
from semel.server.live import Live, blocker_of, facts_of
from semel.wire import responses, sse
from semel.wire.requests import ReadRequest

# An event stays in memory until the client has read it. An append is never split, so an event may
# be longer by one append.
_EVENT_BYTES: Final = 256 * KIB


class EventStream:
    """Writes events until the stream is closed, the client is gone, or after `sse_seconds`."""

    def __init__(
        self,
        live: Live,
        groups: FanoutGroups,
        path: str,
        request: ReadRequest,
        responder: Responder,
    ) -> None:
        self._live = live
        self._groups = groups
        self.path = path
        self._request = request
        self._responder = responder
        self._offset: int | None = TAIL if request.is_now else request.offset
        self._number = 0  # of the stream, after the first read
        self._encoder: sse.SseEncoder | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.stream: ResponseStream | None = None
        self.group: FanoutGroup | None = None
        self._is_over = False

    def start(self) -> None:
        """Begin with a read; the response begins with its result."""
        self._live.readers.add(self)
        self._responder.on_gone(self._end)
        self.read()

    def read(self) -> None:
        """Continue from the current offset, outside of any group."""
        if not self._is_over:
            self._live.reads.begin(
                AdmittedRead(
                    self.path,
                    self._offset,
                    self.take,
                    self._responder,
                    _EVENT_BYTES,
                    self._request.isolation,
                )
            )

    def take(self, outcome: Outcome) -> None:
        """Write the result of a read, and continue from there."""
        if self._is_over:
            return
        if not isinstance(outcome, ReadDone):
            self._refuse(outcome)
            return
        if self.stream is None or self._encoder is None:
            self._begin(outcome)
        assert self.stream is not None
        assert self._encoder is not None
        if outcome.row.number != self._number:
            self.finish()  # the stream was deleted, and the path has another one now
            return
        is_at_tail = outcome.next_offset >= outcome.tail.tail
        is_closed = is_at_tail and outcome.tail.is_closed
        data = self._encoder.data(
            outcome.slices, next_offset=outcome.next_offset, is_final=is_closed
        )
        cursor = self._live.cursor(self._request.cursor)
        blocker = blocker_of(self._live.engine, outcome, self._request.isolation)
        control = control_of(self._encoder, cursor, is_at_tail, is_closed, blocker)
        self.stream.write(data + control)
        self._offset = outcome.next_offset
        if is_closed:
            self.finish()
        else:
            self._continue(self.stream, outcome)

    def _continue(self, stream: ResponseStream, done: ReadDone) -> None:
        is_committed = self._request.isolation == READ_COMMITTED
        if stream.is_blocked:
            stream.on_drain(self.read)
        elif done.next_offset < tail_of_view(done.tail, is_committed):
            self._live.loop.call_soon(self.read)
        elif self._live.is_draining:
            self.finish()
        else:
            self._join(done)

    def _join(self, done: ReadDone) -> None:
        key = (self.path, self._request.isolation)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = FanoutGroup(self._live, self._groups, key, done)
        if (group.number, group.offset) == (done.row.number, done.next_offset):
            group.join(self)
        else:
            self._live.loop.call_soon(self.read)  # there is more since

    def share(self, event: SharedBytes, next_offset: int) -> bool:
        """Write an event of the group; return False, and write nothing, if it needs its own.

        That is so if the client sent a cursor, which decides about the next one, and if the first
        bytes of a character are held back, because then the encoder is not at the group's offset.
        """
        stream, encoder = self.stream, self._encoder
        assert stream is not None
        assert encoder is not None
        if self._request.cursor is not None or encoder.next_offset != self._offset:
            return False
        self._offset = encoder.next_offset = next_offset
        if stream.write_piece(event):
            self.leave()
            stream.on_drain(self.read)
        return True

    def leave(self) -> None:
        """Leave the group, if it is in one."""
        if self.group is not None:
            self.group.leave(self)

    def _begin(self, done: ReadDone) -> None:
        head = responses.sse_response(facts_of(done))
        self.stream = self._responder.start(head.status, head.headers)
        start = done.slices[0].offset if done.slices else done.next_offset
        self._number = done.row.number
        self._encoder = sse.SseEncoder(done.row.content_type, start)
        self._timer = self._live.loop.call_later(self._live.sse_seconds, self.finish)

    def _refuse(self, outcome: Outcome) -> None:
        if self.stream is not None:
            self.finish()  # the stream is deleted: the client's next request gets the refusal
            return
        self._end()
        send_response(self._responder, responses.outcome_response(outcome))

    def finish(self) -> None:
        """End the response; nothing if the first read is not done yet."""
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
