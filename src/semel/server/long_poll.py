"""Long-polls: one answer each, as soon as there is something, or when their time is over."""

import asyncio
from typing import Any

from semel.broker.broker import TAIL, ReadDone
from semel.broker.seen import View, Waiter
from semel.model.outcomes import NotFound
from semel.model.transactions import READ_COMMITTED
from semel.server.answers import send
from semel.server.http import Responder
from semel.server.live import Live, blocker_of, facts_of
from semel.server.reads import Read
from semel.wire import responses
from semel.wire.queries import ReadRequest
from semel.wire.rendering import Response as WireResponse
from semel.wire.responses import StreamFacts


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
            isolation = self._wanted.isolation
            responder = self._responder
            read = Read(self._path, self._offset, self._found, responder, isolation=isolation)
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
