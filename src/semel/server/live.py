"""Long-polls, and the base class of all live reads. Event streams are in `event_stream.py`."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

from semel.broker.broker import TAIL, ReadDone
from semel.broker.engine import Engine, Waiting
from semel.model.commands import READ_COMMITTED
from semel.model.limits import READ_BYTES_DEFAULT
from semel.model.outcomes import NotFound, Outcome
from semel.model.outcomes_access import Unauthenticated
from semel.model.outcomes_txn import IncarnationConflict
from semel.model.policies import DedupSource
from semel.model.rights import Caller
from semel.server.admission import AdmittedRead, ReadAdmission, send_response
from semel.server.http import Responder
from semel.wire import requests, responses
from semel.wire.rendering import Response as WireResponse
from semel.wire.rendering import as_private
from semel.wire.requests import ReadRequest
from semel.wire.responses import Blocker, StreamFacts, content_id


class Live:
    """All live reads of one engine, and their time limits."""

    def __init__(
        self,
        engine: Engine,
        reads: ReadAdmission,
        *,
        long_poll_seconds: float,
        sse_seconds: float,
        is_called: Callable[[Caller | None], bool] = lambda _caller: True,
    ) -> None:
        self.engine = engine
        self.reads = reads
        self.long_poll_seconds = long_poll_seconds
        self.sse_seconds = sse_seconds
        self.loop = asyncio.get_running_loop()
        self.readers: set[LiveRead] = set()
        self.is_draining = False
        self.is_called = is_called  # returns True while a caller is valid

    def end_uncalled(self) -> None:
        """End the live reads whose callers are no longer valid."""
        for reader in list(self.readers):
            if not self.is_called(reader.caller):
                reader.refuse()

    def drain(self) -> None:
        """Complete the responses of all live reads before a shutdown, so that clients reconnect."""
        self.is_draining = True
        for reader in list(self.readers):
            reader.finish()

    def cursor(self, previous: int | None) -> int:
        """Return the read cursor for a response. `previous` is the request's cursor, or None."""
        clock = self.engine.clock
        jitter_s = 1
        if previous is not None:
            jitter_s += int.from_bytes(clock.random_bytes(2)) % requests.JITTER_S_MAX
        return requests.next_cursor(previous, now_ms=clock.now_ms(), jitter_s=jitter_s)


def blocker_of(engine: Engine, done: ReadDone, isolation: str) -> Blocker | None:
    """Return the pending transaction that blocks the reader, or None if the reader is not blocked.

    A reader at `read_committed` is blocked at the first message of a pending transaction (the
    stable offset). The result is also None if the engine has already ended the transaction.
    """
    # The engine's state is ahead of the disk. The result is None if the transaction has ended in
    # that state, even before this is durable, or if the transaction in that state is a later one.
    stable = done.tail.stable
    if isolation != READ_COMMITTED or not stable <= done.next_offset < done.tail.tail:
        return None
    view = engine.holding_txn(done.row.path)
    if view is None:
        return None
    firsts = [stream.first_offset for stream in view.streams if stream.path == done.row.path]
    return Blocker(view.id, view.begun_ms) if firsts == [stable] else None


def facts_of(
    done: ReadDone,
    *,
    generation: int,
    blocker: Blocker | None = None,
    source: DedupSource | None = None,
) -> StreamFacts:
    """Copy the facts about a stream that a response needs. `generation` is the directory's.

    `source` is where the setting for duplicates comes from. Only responses to HEAD need it.

    They are copied, because `semel.wire` must not import the classes of `done.row` and `done.tail`.
    """
    row, tail = done.row, done.tail
    return StreamFacts(
        incarnation=row.incarnation,
        content_type=row.content_type,
        tail=tail.tail,
        is_closed=tail.is_closed,
        ttl_ms=row.ttl_ms,
        expires_at_ms=row.expires_at_ms,
        dedup_from=tail.dedup_from,
        dedup_source=source or DedupSource(),
        stable=tail.stable,
        blocker=blocker,
        generation=generation,
    )


def refuse_other(outcome: Outcome, request: ReadRequest, generation: int) -> Outcome:
    """Return the outcome of a read, or a refusal if the request names another incarnation.

    After a restore, the name of an incarnation contains the generation: otherwise a cache would
    return messages that were stored under the same offsets before.
    """
    if not isinstance(outcome, ReadDone) or request.incarnation is None:
        return outcome
    row = outcome.row
    current = content_id(row.incarnation, generation)
    return outcome if request.incarnation == current else IncarnationConflict(row.path, current)


class LiveRead(ABC):
    """A long-poll or an event stream. It reads and waits for messages until the response ends."""

    def __init__(
        self,
        live: Live,
        path: str,
        request: ReadRequest,
        responder: Responder,
        bytes_max: int = READ_BYTES_DEFAULT,
    ) -> None:
        self._live = live
        self._path = path
        self._request = request
        self._responder = responder
        self._bytes_max = bytes_max
        self._offset: int | None = TAIL if request.is_now else request.offset
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False
        self._has_begun = False  # the response has begun, so that it is too late for a refusal

    def start(self) -> None:
        """Start the first read. Its result determines the response."""
        self._live.readers.add(self)
        self._responder.on_gone(self._end)
        self.read()

    @property
    def caller(self) -> Caller | None:
        """Who reads; None if access is off."""
        return self._responder.caller

    def refuse(self) -> None:
        """End because the caller is no longer valid. If no response has begun, respond with 401."""
        if not self._is_over:
            if self._has_begun:
                self.finish()
            else:
                self._end()
                send_response(self._responder, responses.outcome_response(Unauthenticated()))

    def read(self) -> None:
        """Read from the current offset, unless this live read is over."""
        if not self._is_over and not self._live.is_called(self.caller):
            self.refuse()
        elif not self._is_over:
            self._live.reads.begin(
                AdmittedRead(
                    self._path,
                    self._offset,
                    self.take,
                    self._responder,
                    self._bytes_max,
                    self._request.isolation,
                    is_refusable=not self._has_begun,
                )
            )

    @abstractmethod
    def take(self, outcome: Outcome) -> None:
        """Handle the result of a read: respond, read again, or wait for new messages."""

    @abstractmethod
    def finish(self) -> None:
        """Complete the response. Do nothing if the first read is not done yet."""

    def _end(self) -> None:
        self._is_over = True
        self._live.readers.discard(self)
        if self._timer is not None:
            self._timer.cancel()


class LongPoll(LiveRead):
    """A live read that sends new messages, or an empty response after `long_poll_seconds`."""

    _last: ReadDone | None = None  # the result of the last read; it had no messages
    _waiting: Waiting | None = None

    def read(self) -> None:
        """Read from the current offset, unless this live read is over."""
        self._waiting = None
        super().read()

    def take(self, outcome: Outcome) -> None:
        """On messages, an error, or the end of a closed stream, respond. Otherwise wait."""
        if self._is_over:
            return
        outcome = refuse_other(outcome, self._request, self._live.engine.generation)
        if not isinstance(outcome, ReadDone):
            self._send(responses.outcome_response(outcome))
        elif self._last is not None and outcome.row.number != self._last.row.number:
            self._send(responses.outcome_response(NotFound()))  # a new stream has the path now
        elif outcome.slices:
            self._send(
                responses.read_response(
                    self._facts(outcome),
                    self._request,
                    outcome.slices,
                    start=outcome.slices[0].offset,
                    next_offset=outcome.next_offset,
                    cursor=self._live.cursor(self._request.cursor),
                )
            )
        elif outcome.tail.is_closed and outcome.next_offset >= outcome.tail.tail:
            self._send_empty(outcome)
        else:
            self._wait(outcome)

    def _wait(self, done: ReadDone) -> None:
        self._offset, self._last = done.next_offset, done
        if self._live.is_draining:
            self.finish()
            return
        if self._timer is None:
            self._timer = self._live.loop.call_later(self._live.long_poll_seconds, self.finish)
        self._waiting = self._live.engine.wait(
            self._path, done.next_offset, self.read, self._request.isolation
        )
        if self._waiting is None:
            self._live.loop.call_soon(self.read)  # the stream has changed since this read

    def finish(self) -> None:
        """Respond without messages. Do nothing if the first read is not done yet."""
        if not self._is_over and self._last is not None:
            self._send_empty(self._last)

    def _send_empty(self, done: ReadDone) -> None:
        self._send(
            responses.empty_poll_response(
                self._facts(done),
                next_offset=done.next_offset,
                cursor=self._live.cursor(self._request.cursor),
                is_committed=self._request.isolation == READ_COMMITTED,
            )
        )

    def _facts(self, done: ReadDone) -> StreamFacts:
        engine = self._live.engine
        blocker = blocker_of(engine, done, self._request.isolation)
        return facts_of(done, generation=engine.generation, blocker=blocker)

    def _send(self, response: WireResponse) -> None:
        self._end()
        if self.caller is not None:
            response = as_private(response)
        send_response(self._responder, response, self._live.reads.unread)

    def _end(self) -> None:
        super()._end()
        if self._waiting is not None:
            self._live.engine.stop_waiting(self._waiting)
