"""Admission of reads: which limits a read passes, from the request to the client.

A read can cost much more than its request, so three limits apply to it, one after another:

1. **Memory: unread bytes** (here). `UnreadBudget` counts the long responses that clients have not
   read yet, and reserves memory for reads that are under way. While it is full, `ReadAdmission`
   lets further reads wait, in order. While one waits, the connections whose responses have been
   unread for the longest time are closed. All reads of messages go this way: catch-up reads,
   long-polls, event streams, and the shared reads of fan-out groups.
2. **Time: seconds per turn of the loop** (`semel.broker.worker`). A read that was admitted runs
   at once, unless the reads before it have used up this turn of the loop. So appends and other
   requests are served between long reads.
3. **Back-pressure: the pause of one connection** (`semel.server.connection`). A connection starts a
   GET only when no earlier response is owed, and accepts no request while its client does not
   read. So a client has at most one read under way per connection, and one long response in its
   buffer.

A response counts as unread from the moment it is written until the buffer of its connection is
empty. An event for a fan-out group is read, and reserved, once, but it counts for every member that
does not receive it at once. Such a member leaves the group, and continues with reads of its own: so
it never holds more than one event above `HttpLimits.write_buffer_bytes`.
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

# However little a read asks for, it gets one append, which is never split.
_RESPONSE_BYTES_MAX: Final = BODY_BYTES_MAX
_GZIP_HERE_BYTES_MAX: Final = 32 * KIB


class UnreadHolder(Protocol):
    """A connection, as the holder of responses that its client has not read."""

    @property
    def unread_bytes(self) -> int:
        """How many bytes it is counted for."""

    @property
    def unread_since(self) -> float:
        """Since when, by the loop's time."""

    def abort(self) -> None:
        """Close the connection at once."""


class UnreadBudget:
    """The memory that responses of all connections of a listener use until they are read."""

    def __init__(self, limits: HttpLimits | None = None) -> None:
        limits = limits or HttpLimits()
        self.bytes = 0  # in the buffers of connections
        self.reserved_bytes = 0  # for reads that are under way
        self.waiting_bytes = 0  # requested by reads that wait for admission
        self.on_release: Callable[[], None] | None = None
        self._bytes_max = limits.unread_bytes_max
        self._stall_seconds_max = limits.crowded_stall_seconds

    @property
    def is_full(self) -> bool:
        """Whether no read is admitted now."""
        return self.bytes + self.reserved_bytes >= self._bytes_max

    def add(self, count: int) -> None:
        """Count bytes that were written to a connection."""
        self.bytes += count

    def remove(self, count: int) -> None:
        """Stop counting bytes that were read, or whose connection is closed."""
        self.bytes -= count
        self._released()

    def reserve(self, count: int) -> None:
        """Count bytes that will be written."""
        self.reserved_bytes += count

    def release(self, count: int) -> None:
        """Stop counting bytes that were reserved: they are written now."""
        self.reserved_bytes -= count
        self._released()

    def _released(self) -> None:
        if self.waiting_bytes and self.on_release is not None:
            self.on_release()

    def close_stalled(self, holders: Iterable[UnreadHolder], now: float) -> None:
        """Close the longest stalled connections, as few as the waiting reads need."""
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
    """Who waits for the result of a read: a response, or a fan-out group."""

    @property
    def is_over(self) -> bool:
        """Whether the result is not needed any more."""


class AdmittedRead(Struct, eq=False):
    """A read that waits for admission, or runs. `reply` gets a ReadDone or a refusal."""

    path: str
    offset: int | None
    reply: Reply
    reader: Reader
    bytes_max: int = READ_BYTES_DEFAULT
    isolation: str = READ_UNCOMMITTED


class ReadAdmission:
    """Starts the reads of one engine, in order, while there is memory for their responses."""

    def __init__(self, engine: Engine, unread: UnreadBudget) -> None:
        self._engine = engine
        self.unread = unread
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[AdmittedRead] = deque()
        self._is_due = False
        unread.on_release = self._continue_soon

    def begin(self, read: AdmittedRead) -> None:
        """Start a read now, or after those that wait already."""
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
        # On the next turn of the loop: memory is released while something else is being ended.
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
    """Send a response, compressed if it is to be; memory for that is reserved in `unread`.

    A long body is compressed on another thread: it would delay every other request.
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
