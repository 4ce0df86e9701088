"""The answers that clients have not read yet: what they may hold together, and who waits for room.

A connection counts here while a long answer is in its buffer, until that is empty. A read counts
from its beginning, because its answer will. Beyond the limit no read is begun. While one waits,
those who have let their answers lie the longest have to go.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from msgspec import Struct

from semel.broker.engine import Engine
from semel.model.limits import BODY_BYTES_MAX, KIB, READ_BYTES_DEFAULT
from semel.model.transactions import READ_UNCOMMITTED
from semel.server.http import Responder
from semel.server.limits_http import HttpLimits
from semel.wire.rendering import Response, compress


class UnreadHolder(Protocol):
    """A connection, as one that holds answers."""

    @property
    def unread_bytes(self) -> int:
        """What it counts for."""

    @property
    def unread_since(self) -> float:
        """Since when, by the loop's time."""

    def abort(self) -> None:
        """Cut the line."""


class UnreadBudget:
    """What the answers of all connections of a listener hold together."""

    def __init__(self, limits: HttpLimits | None = None) -> None:
        limits = limits or HttpLimits()
        self.bytes = 0  # in the buffers of connections
        self.reserved_bytes = 0  # for reads under way
        self.wanted_bytes = 0  # by reads that wait for room
        self.on_room: Callable[[], None] | None = None
        self._bytes_max = limits.unread_bytes_max
        self._stall_seconds_max = limits.crowded_stall_seconds

    @property
    def is_full(self) -> bool:
        """Whether no read may begin now."""
        return self.bytes + self.reserved_bytes >= self._bytes_max

    def add(self, count: int) -> None:
        """Count bytes."""
        self.bytes += count

    def take(self, count: int) -> None:
        """Count them no longer."""
        self.bytes -= count
        self._tell()

    def reserve(self, count: int) -> None:
        """Keep room for what will be counted."""
        self.reserved_bytes += count

    def give_back(self, count: int) -> None:
        """Keep it no longer."""
        self.reserved_bytes -= count
        self._tell()

    def _tell(self) -> None:
        if self.wanted_bytes and self.on_room is not None:
            self.on_room()

    def cut(self, holders: Iterable[UnreadHolder], now: float) -> None:
        """Make room for the reads that wait: cut the longest stuck, and no more than needed."""
        enough = self._bytes_max - min(self.wanted_bytes, self._bytes_max // 2)
        if self.bytes <= enough:
            return
        stuck = [
            holder
            for holder in holders
            if holder.unread_bytes and now - holder.unread_since > self._stall_seconds_max
        ]
        left = self.bytes
        for holder in sorted(stuck, key=lambda each: each.unread_since):
            if left <= enough:
                return
            left -= holder.unread_bytes
            holder.abort()


# ---- reads ---------------------------------------------------------------------------------------
# Reads of messages, begun only when there is room for their answers.


# No matter how little was asked for: one append is never split.
_ANSWER_BYTES: Final = BODY_BYTES_MAX


class AdmittedRead(Struct, eq=False):
    """A read that was asked for, and whom its answer is for."""

    path: str
    offset: int | None
    reply: Callable[[Any], None]
    responder: Responder
    bytes_max: int = READ_BYTES_DEFAULT
    isolation: str = READ_UNCOMMITTED


class ReadAdmission:
    """Begins the reads of one engine, in their order."""

    def __init__(self, engine: Engine, unread: UnreadBudget) -> None:
        self._engine = engine
        self.unread = unread
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[AdmittedRead] = deque()
        self._is_due = False
        unread.on_room = self._go_on_soon

    def begin(self, read: AdmittedRead) -> None:
        """Read as soon as there is room."""
        if self._waiting or self.unread.is_full:
            self._waiting.append(read)
            self.unread.wanted_bytes += read.bytes_max
        else:
            self._begin(read)

    def _begin(self, read: AdmittedRead) -> None:
        unread = self.unread

        def reply(found: Any) -> None:
            unread.give_back(_ANSWER_BYTES)
            read.reply(found)

        unread.reserve(_ANSWER_BYTES)
        self._engine.read(
            read.path, read.offset, reply, bytes_max=read.bytes_max, isolation=read.isolation
        )

    def _go_on_soon(self) -> None:
        # From the loop: room is found deep inside the end of something else.
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_due = False
        while self._waiting and not self.unread.is_full:
            read = self._waiting.popleft()
            self.unread.wanted_bytes -= read.bytes_max
            if not read.responder.is_over:
                self._begin(read)


# ---- answers -------------------------------------------------------------------------------------
# Sending what `wire` made of an outcome.


_GZIP_HERE_BYTES_MAX: Final = 32 * KIB


def send_response(
    responder: Responder, response: Response, unread: UnreadBudget | None = None
) -> None:
    """Send an answer of `wire`; a long one counts as unread from now on."""
    if not response.is_to_gzip:
        responder.send(response)
    elif len(response.body) <= _GZIP_HERE_BYTES_MAX:
        send_response(responder, compress(response))
    else:
        # A long body would keep everybody else waiting; the order of answers is the connection's.
        size = len(response.body)
        if unread is not None:
            unread.reserve(size)

        def compressed(work: asyncio.Future[Response]) -> None:
            send_response(responder, work.result())
            if unread is not None:
                unread.give_back(size)

        work = asyncio.get_running_loop().run_in_executor(None, compress, response)
        work.add_done_callback(compressed)
