"""Admission of reads, and an overview of all limits that apply to a read.

The response to a read can be much larger than the request. Three limits apply, one after the other:

1. **Memory** (this module). `UnreadBudget` counts the unread bytes of long responses, and reserves
   memory for running reads. While the budget is used up, new reads wait in a queue. While reads
   wait, connections of clients that stopped reading are closed. All reads are admitted here.
2. **Time** (`semel.broker.worker`). An admitted read runs immediately, unless earlier reads have
   used up the time of this turn of the event loop. Therefore long reads do not block appends.
3. **Back-pressure** (`semel.server.connection`). A connection starts a GET only when all earlier
   responses have been sent. It accepts no request while its client does not read. Therefore a
   connection has at most one running read, and at most one long response in its buffer.

A fan-out group (clients that wait at the tail of one stream) reads an event once for all members.
The event counts as unread for each member that cannot receive it immediately. Such a member leaves
the group. Therefore a member's buffer contains at most one event in addition to
`HttpLimits.write_buffer_bytes`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Protocol

from msgspec import Struct

from semel.broker.broker import Reply
from semel.broker.engine import Engine
from semel.model.commands import READ_UNCOMMITTED
from semel.model.limits import BODY_BYTES_MAX, KIB, READ_BYTES_DEFAULT
from semel.model.outcomes import Outcome
from semel.server.http import Responder
from semel.server.limits_http import HttpLimits
from semel.wire.rendering import Response, compress

# The memory that is reserved for a read. It does not depend on the limit of the read: a read
# returns at least one append, and an append is never split.
_RESPONSE_BYTES_MAX: Final = BODY_BYTES_MAX
_GZIP_HERE_BYTES_MAX: Final = 32 * KIB


class UnreadHolder(Protocol):
    """The part of a connection that UnreadBudget uses."""

    @property
    def unread_bytes(self) -> int:
        """The number of bytes that the budget counts for this connection."""

    @property
    def unread_since(self) -> float:
        """The event loop's time at which the budget began to count bytes for this connection."""

    def abort(self) -> None:
        """Close the connection immediately, without completing any response."""


class UnreadBudget:
    """The memory that unread responses can use, for all connections of a listener together."""

    def __init__(self, limits: HttpLimits | None = None) -> None:
        limits = limits or HttpLimits()
        self.bytes = 0  # unread bytes in the buffers of connections
        self.reserved_bytes = 0  # for responses that are not written yet
        self.waiting_bytes = 0  # requested by reads that wait for admission
        self.on_release: Callable[[], None] | None = None
        self._bytes_max = limits.unread_bytes_max
        self._stall_seconds_max = limits.crowded_stall_seconds

    @property
    def is_full(self) -> bool:
        """True if the budget is used up, so that new reads have to wait."""
        return self.bytes + self.reserved_bytes >= self._bytes_max

    def add(self, count: int) -> None:
        """Add bytes that were written to a connection and that its client has not read yet."""
        self.bytes += count

    def remove(self, count: int) -> None:
        """Remove bytes, because the client has read them or the connection is closed."""
        self.bytes -= count
        self._released()

    def reserve(self, count: int) -> None:
        """Reserve bytes for a response that is not written yet."""
        self.reserved_bytes += count

    def release(self, count: int) -> None:
        """Release reserved bytes, because the read or the compression has ended."""
        self.reserved_bytes -= count
        self._released()

    def _released(self) -> None:
        if self.waiting_bytes and self.on_release is not None:
            self.on_release()

    def close_stalled(self, holders: Iterable[UnreadHolder], now: float) -> None:
        """Close the connections that have stalled longest, until enough memory is free."""
        target = self._bytes_max - min(self.waiting_bytes, self._bytes_max // 2)
        if self.bytes <= target:
            return
        stalled = [
            holder
            for holder in holders
            if holder.unread_bytes and now - holder.unread_since > self._stall_seconds_max
        ]
        remaining = self.bytes
        for holder in sorted(stalled, key=lambda holder: holder.unread_since):
            if remaining <= target:
                return
            remaining -= holder.unread_bytes
            holder.abort()


class Reader(Protocol):
    """The receiver of a read's result: a Responder or a FanoutGroup."""

    @property
    def is_over(self) -> bool:
        """True if the result of the read is no longer needed."""


class AdmittedRead(Struct, eq=False):
    """A waiting or running read. `reply` is called with the result: a ReadDone or a refusal."""

    path: str
    offset: int | None
    reply: Reply
    reader: Reader
    bytes_max: int = READ_BYTES_DEFAULT
    isolation: str = READ_UNCOMMITTED


class ReadAdmission:
    """Starts the reads of one engine. A read is queued until there is memory for its response."""

    def __init__(self, engine: Engine, unread: UnreadBudget) -> None:
        self._engine = engine
        self.unread = unread
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[AdmittedRead] = deque()
        self._is_due = False
        unread.on_release = self._continue_soon

    def begin(self, read: AdmittedRead) -> None:
        """Start a read now, or put it into the queue if reads are waiting or the budget is full."""
        if self._waiting or self.unread.is_full:
            self._waiting.append(read)
            self.unread.waiting_bytes += read.bytes_max
        else:
            self._start(read)

    def _start(self, read: AdmittedRead) -> None:
        self.unread.reserve(_RESPONSE_BYTES_MAX)
        self._engine.read(
            read.path,
            read.offset,
            partial(self._finish, read),
            bytes_max=read.bytes_max,
            isolation=read.isolation,
        )

    def _finish(self, read: AdmittedRead, outcome: Outcome) -> None:
        self.unread.release(_RESPONSE_BYTES_MAX)
        read.reply(outcome)

    def _continue_soon(self) -> None:
        # The reads start on the next turn of the loop, because the caller is still working.
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._continue)

    def _continue(self) -> None:
        self._is_due = False
        while self._waiting and not self.unread.is_full:
            read = self._waiting.popleft()
            self.unread.waiting_bytes -= read.bytes_max
            if not read.reader.is_over:
                self._start(read)


def send_response(
    responder: Responder, response: Response, unread: UnreadBudget | None = None
) -> None:
    """Send a response. If `response.is_to_gzip` is True, compress the body first.

    A long body is compressed on a different thread, so that other requests are not delayed. During
    that time, the size of the body is reserved in `unread`.
    """
    if not response.is_to_gzip:
        responder.send(response)
        return
    size = len(response.body)
    if size <= _GZIP_HERE_BYTES_MAX:
        responder.send(compress(response))
        return
    if unread is not None:
        unread.reserve(size)

    def compressed(work: asyncio.Future[Response]) -> None:
        responder.send(work.result())
        if unread is not None:
            unread.release(size)

    work = asyncio.get_running_loop().run_in_executor(None, compress, response)
    work.add_done_callback(compressed)
