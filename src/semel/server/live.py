"""What live reads share: the engine, their times, and a good end for all of them."""

import asyncio
from typing import Any, Protocol

from semel.broker.broker import TAIL, ReadDone
from semel.broker.durable_view import StreamView, Waiter
from semel.broker.engine import Engine
from semel.machine.txn.views import holding_view
from semel.model.outcomes import NotFound
from semel.model.transactions import READ_COMMITTED
from semel.server.admission import AdmittedRead, ReadAdmission, send_response
from semel.server.http import Responder
from semel.wire import queries, responses
from semel.wire.queries import ReadRequest
from semel.wire.rendering import Response as WireResponse
from semel.wire.responses import Blocker, StreamFacts


class LiveReader(Protocol):
    """A long-poll or an event stream."""

    def finish(self) -> None:
        """End, in good order."""


class Live:
    """All live readers of one engine."""

    def __init__(
        self, engine: Engine, reads: ReadAdmission, *, long_poll_seconds: float, sse_seconds: float
    ) -> None:
        self.engine = engine
        self.reads = reads
        self.long_poll_seconds = long_poll_seconds
        self.sse_seconds = sse_seconds
        self.loop = asyncio.get_running_loop()
        self.readers: set[LiveReader] = set()
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
            jitter_s += int.from_bytes(clock.random_bytes(2)) % queries.JITTER_S_MAX
        return queries.next_cursor(given, now_ms=clock.now_ms(), jitter_s=jitter_s)


def blocker_of(engine: Engine, done: ReadDone) -> Blocker | None:
    """Name the transaction that stands between a reader of decided messages and the tail."""
    stable = done.tail.stable
    if not stable <= done.next_offset < done.tail.tail:
        return None
    view = holding_view(engine.broker.state, done.row.path)
    if view is None:
        return None  # it is decided, and that is on its way to the disk
    firsts = [known.first_offset for known in view.streams if known.path == done.row.path]
    # The state runs ahead of the disk: only one whose first message is durable may be told.
    return Blocker(view.id, view.begun_ms) if firsts == [stable] else None


def facts_of(done: ReadDone, blocker: Blocker | None = None) -> StreamFacts:
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
        tail.stable,
        blocker,
    )


# ---- long poll -----------------------------------------------------------------------------------
# Long-polls: one answer each, as soon as there is something, or when their time is over.


class LongPoll:
    """Waits for one answer."""

    def __init__(self, live: Live, path: str, wanted: ReadRequest, responder: Responder) -> None:
        self._live = live
        self._path = path
        self._wanted = wanted
        self._responder = responder
        self._is_committed = wanted.isolation == READ_COMMITTED
        self._offset: int | None = TAIL if wanted.is_now else wanted.offset
        self._last: ReadDone | None = None
        self._waiting: tuple[StreamView, Waiter] | None = None
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
            isolation = self._wanted.isolation
            responder = self._responder
            read = AdmittedRead(
                self._path, self._offset, self._found, responder, isolation=isolation
            )
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
        elif found.tail.is_closed and found.next_offset >= found.tail.tail:
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
        self._waiting = self._live.engine.broker.wait(
            self._path, found.next_offset, self._read, self._wanted.isolation
        )
        if self._waiting is None:
            self._live.loop.call_soon(self._read)  # it moved on in between

    def finish(self) -> None:
        """The time is over: there was nothing."""
        if not self._is_over and self._last is not None:
            self._send(self._nothing(self._last))

    def _answer(self, found: ReadDone) -> WireResponse:
        return responses.read_response(
            self._facts(found),
            self._wanted,
            found.slices,
            start=found.slices[0].offset,
            next_offset=found.next_offset,
            cursor=self._live.cursor(self._wanted.cursor),
        )

    def _nothing(self, found: ReadDone) -> WireResponse:
        cursor = self._live.cursor(self._wanted.cursor)
        return responses.empty_poll_response(
            self._facts(found),
            next_offset=found.next_offset,
            cursor=cursor,
            is_committed=self._is_committed,
        )

    def _facts(self, found: ReadDone) -> StreamFacts:
        blocker = blocker_of(self._live.engine, found) if self._is_committed else None
        return facts_of(found, blocker)

    def _send(self, response: WireResponse) -> None:
        self._end()
        send_response(self._responder, response, self._live.reads.unread)

    def _end(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._live.readers.discard(self)
        if self._waiting is not None:
            self._live.engine.broker.stop_waiting(self._waiting)
        if self._timer is not None:
            self._timer.cancel()
