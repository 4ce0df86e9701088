"""Live reads as server-sent events.

An event stream is the live read of one client. It first reads alone, until it reaches the tail.
Then it joins a fan-out group. The members of a group wait together, and each event is read and
encoded once for all of them. If a client cannot receive an event immediately, its event stream
leaves the group and reads alone again.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from semel.broker.broker import ReadDone
from semel.broker.durable_view import tail_of_view
from semel.broker.engine import Waiting
from semel.model.commands import READ_COMMITTED
from semel.model.limits import KIB
from semel.model.outcomes import Outcome
from semel.server.admission import AdmittedRead, send_response
from semel.server.http import Responder, ResponseStream, SharedBytes
from semel.server.live import Live, LiveRead, blocker_of, facts_of, refuse_other
from semel.wire import responses, sse
from semel.wire.requests import ReadRequest
from semel.wire.responses import Blocker

# When an event has reached this size, no further append is added to it. An event stays in memory
# until the client has read it, so events must be small. Because appends are never split, an event
# can be larger than this by one append.
_EVENT_BYTES: Final = 256 * KIB


class EventStream(LiveRead):
    """A live read with one response that has no fixed length.

    The response ends when the stream is closed or deleted, when the client disconnects, when the
    server shuts down, or after `sse_seconds`.
    """

    def __init__(
        self,
        live: Live,
        groups: "FanoutGroups",
        path: str,
        request: ReadRequest,
        responder: Responder,
    ) -> None:
        super().__init__(live, path, request, responder, _EVENT_BYTES)
        self._groups = groups
        self._number = 0  # the stream number; set after the first read
        self._begun: tuple[ResponseStream, sse.SseEncoder] | None = None
        self._is_in_event = False  # a part of an event is written, and the rest is not
        self._is_last_event = False
        self.group: FanoutGroup | None = None

    def take(self, outcome: Outcome) -> None:
        """Encode the result of a read as an event, in steps, and write it."""
        if self._is_over:
            return
        outcome = refuse_other(outcome, self._request, self._live.engine.generation)
        if not isinstance(outcome, ReadDone):
            if self._begun is None:
                self._end()
                send_response(self._responder, responses.outcome_response(outcome))
            self.finish()  # the stream is deleted; the server will refuse the client's next request
            return
        stream, encoder = self._begun or self._begin(outcome)
        if outcome.row.number != self._number:
            self.finish()  # the stream was deleted, and a new stream has its path now
            return
        is_at_tail = outcome.next_offset >= outcome.tail.tail
        is_closed = is_at_tail and outcome.tail.is_closed
        parts = encoder.data_parts(
            outcome.slices, next_offset=outcome.next_offset, is_final=is_closed
        )
        self._is_in_event = True
        write_last = partial(self._write_last, outcome)
        _Encoding(self._live, self, parts, outcome, stream.write, write_last).step()

    def _write_last(self, done: ReadDone, data: bytes) -> None:
        """Write the last part of an event. Then read again, wait at the tail, or end."""
        assert self._begun is not None
        stream, encoder = self._begun
        self._is_in_event = False
        is_at_tail = done.next_offset >= done.tail.tail
        is_closed = is_at_tail and done.tail.is_closed
        cursor = self._live.cursor(self._request.cursor)
        blocker = blocker_of(self._live.engine, done, self._request.isolation)
        stream.write(data + control_of(encoder, cursor, is_at_tail, is_closed, blocker))
        self._offset = done.next_offset
        if is_closed or self._is_last_event:
            self.finish()
        else:
            self._continue(stream, done)

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
        key = (self._path, self._request.isolation)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = FanoutGroup(self._live, self._groups, key, done)
        if (group.number, group.offset) == (done.row.number, done.next_offset):
            group.join(self)
        else:
            self._live.loop.call_soon(self.read)  # the group is at a different offset

    def share(self, event: Sequence[SharedBytes], next_offset: int) -> bool:
        """Write all parts of the group's event and return True, or write nothing and return False.

        Return False if the client sent a read cursor, or if this client's encoder holds the first
        bytes of an incomplete character. The caller must then encode a separate event.
        """
        assert self._begun is not None
        stream, encoder = self._begun
        # A read cursor in the event depends on the cursor that the client sent. The first bytes of
        # an incomplete character, which an encoder can hold, belong before the event.
        if self._request.cursor is not None or encoder.is_holding:
            return False
        self._offset = encoder.next_offset = next_offset
        if [stream.write_piece(part) for part in event][-1]:
            self.leave()
            stream.on_drain(self.read)
        return True

    @property
    def is_over(self) -> bool:
        """True if the response has ended, or the client is gone."""
        return self._is_over

    def leave(self) -> None:
        """Leave the fan-out group if this event stream is a member of a group."""
        if self.group is not None:
            self.group.leave(self)

    def _begin(self, done: ReadDone) -> tuple[ResponseStream, sse.SseEncoder]:
        head = responses.sse_response(facts_of(done, generation=self._live.engine.generation))
        start = done.slices[0].offset if done.slices else done.next_offset
        self._number = done.row.number
        self._has_begun = True
        self._begun = begun = (
            self._responder.start(head.status, head.headers),
            sse.SseEncoder(done.row.content_type, start),
        )
        self._timer = self._live.loop.call_later(self._live.sse_seconds, self.finish)
        return begun

    def finish(self) -> None:
        """End the response, after the event of which a part is written.

        Do nothing before the first read, because no response has begun yet.
        """
        if self._is_in_event:
            self._is_last_event = True
        elif not self._is_over and self._begun is not None:
            self._end()
            self._begun[0].end()

    def _end(self) -> None:
        super()._end()
        self.leave()


# ---- encoding ------------------------------------------------------------------------------------


class _Receiver(Protocol):
    """The event stream or the fan-out group that an event is encoded for."""

    @property
    def is_over(self) -> bool:
        """True if the event is no longer needed."""


class _Encoding:
    """The encoding of the messages of `done` as an event. Most events have one part.

    Call `step` once: it encodes and writes the first part, and one per turn of the event loop
    later. Until the last part is written, memory is reserved for the longest possible event. If
    `receiver` is over before, the rest is dropped.

    This is an object, and not a function that refers to itself: a cycle of references would keep
    the messages in memory until the next run of the garbage collector.
    """

    __slots__ = ("_done", "_live", "_parts", "_receiver", "_size", "_write", "_write_last")

    def __init__(
        self,
        live: Live,
        receiver: _Receiver,
        parts: sse.EventParts,
        done: ReadDone,
        write: Callable[[bytes], None],
        write_last: Callable[[bytes], None],
    ) -> None:
        self._live = live
        self._receiver = receiver
        self._parts = parts
        self._done = done
        self._write = write
        self._write_last = write_last
        self._size = 0

    def step(self) -> None:
        """Write the next part, or the last one."""
        try:
            if not self._receiver.is_over:
                self._write(next(self._parts))
                if not self._size:
                    payload = sum(len(each.payload) for each in self._done.slices)
                    self._size = sse.EVENT_GROWTH_MAX * payload
                    self._live.reads.unread.reserve(self._size)
                self._live.loop.call_soon(self.step)
                return
        except StopIteration as last:
            self._write_last(last.value)
        if self._size:
            self._live.reads.unread.release(self._size)


# ---- fan-out groups ------------------------------------------------------------------------------


def control_of(
    encoder: sse.SseEncoder,
    cursor: int,
    is_at_tail: bool,
    is_closed: bool,
    blocker: Blocker | None = None,
) -> bytes:
    """Return the control event that follows the data events of `encoder`."""
    return sse.control_event(
        encoder.next_offset,
        cursor=cursor,
        is_up_to_date=is_at_tail,
        is_closed=is_closed,
        blocked_by=None if blocker is None else blocker.transaction,
    )


class FanoutGroup:
    """Event streams that have the same isolation and wait at the tail of the same stream.

    While the group has members, it either waits for messages (`_waiting`) or reads
    (`_is_reading`), but never both.
    """

    def __init__(
        self, live: Live, groups: "FanoutGroups", key: tuple[str, str], done: ReadDone
    ) -> None:
        self._live = live
        self._groups = groups
        self._key = key
        self._path, self._isolation = key
        self.number = done.row.number
        self.offset = done.next_offset
        self._members: dict[EventStream, None] = {}
        self._waiting: Waiting | None = None
        self._is_reading = False

    @property
    def is_over(self) -> bool:
        """True if the group has no members. A group without members is never used again."""
        return not self._members

    @property
    def account(self) -> None:
        """None, because the result of a read is for all members."""

    def join(self, member: EventStream) -> None:
        """Add a member. If it is the first member, start to wait for new messages."""
        self._members[member] = None
        member.group = self
        self._wait()

    def leave(self, member: EventStream) -> None:
        """Remove a member. If it was the last member, cancel the wait and drop the group."""
        self._members.pop(member, None)
        member.group = None
        if not self._members:
            self._close()

    def _wait(self) -> None:
        """Start to wait for new messages, unless the group is already waiting or reading."""
        if self._is_reading or self._waiting is not None or self.is_over:
            return
        self._waiting = self._live.engine.wait(self._path, self.offset, self._read, self._isolation)
        if self._waiting is None:
            self._is_reading = True
            self._live.loop.call_soon(self._read)

    def _read(self) -> None:
        self._waiting = None
        self._is_reading = True
        read = AdmittedRead(
            self._path,
            self.offset,
            self._deliver,
            self,
            isolation=self._isolation,
            is_refusable=False,
            is_divisible=False,  # a part would not reach the tail, and every member would leave
        )
        self._live.reads.begin(read)

    def _deliver(self, outcome: Outcome) -> None:
        if not isinstance(outcome, ReadDone) or not self._is_shared(outcome):
            self._is_reading = False
            self._detach_all(outcome)
            return
        encoder = sse.SseEncoder(outcome.row.content_type, self.offset)
        parts = encoder.data_parts(outcome.slices, next_offset=outcome.next_offset)
        event: list[SharedBytes] = []
        _Encoding(
            self._live,
            self,
            parts,
            outcome,
            lambda data: event.append(SharedBytes(data)),
            partial(self._deliver_event, outcome, encoder, event),
        ).step()

    def _deliver_event(
        self, done: ReadDone, encoder: sse.SseEncoder, event: list[SharedBytes], data: bytes
    ) -> None:
        self._is_reading = False
        if encoder.is_holding:
            self._detach_all(done)  # each encoder must hold back the incomplete character
        else:
            control = control_of(encoder, self._live.cursor(None), True, False)
            self._share([*event, SharedBytes(data + control)], done)

    def _share(self, event: Sequence[SharedBytes], done: ReadDone) -> None:
        self.offset = done.next_offset
        for member in list(self._members):
            if not member.share(event, done.next_offset):
                member.leave()
                member.take(done)
        self._wait()

    def _detach_all(self, outcome: Outcome) -> None:
        members, self._members = list(self._members), {}
        self._close()
        for member in members:
            member.group = None
            member.take(outcome)

    def _is_shared(self, done: ReadDone) -> bool:
        """Return True if all members get the same event, and False if each must handle `done`."""
        is_at_tail = done.next_offset >= done.tail.tail
        is_same_stream = done.row.number == self.number
        return bool(done.slices) and is_at_tail and is_same_stream and not done.tail.is_closed

    def _close(self) -> None:
        if self._waiting is not None:
            self._live.engine.stop_waiting(self._waiting)
            self._waiting = None
        if self._groups.get(self._key) is self:
            del self._groups[self._key]


FanoutGroups = dict[tuple[str, str], FanoutGroup]  # keyed by path and isolation
