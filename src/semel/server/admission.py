"""Admission of reads, and an overview of all limits that apply to a read.

The response to a read can be much larger than the request. Three limits apply, one after the other:

1. **Memory** (this module). `UnreadBudget` counts the unread bytes of long responses, and reserves
   memory for running reads. All reads are admitted here (see `ReadAdmission`). Lists and other
   views of the state are refused if they are long and there is no memory (see `send_view`).
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
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from msgspec import Struct

from semel.broker.broker import ReadDone, Reply
from semel.broker.durable_view import ReadTooLong, tail_of_view
from semel.broker.engine import Engine
from semel.model.commands import READ_COMMITTED, READ_UNCOMMITTED
from semel.model.limits import BODY_BYTES_MAX, KIB, READ_BYTES_DEFAULT
from semel.model.outcomes import Outcome, Overloaded
from semel.server.http import Responder
from semel.server.unread_budget import AddressUse, UnreadAccount, UnreadBudget
from semel.wire.problems import Problem
from semel.wire.rendering import Response, compress, problem_of
from semel.wire.responses import problem_response

# The memory that is reserved for a long read. It does not depend on the limit of the read: a read
# returns at least one append, and an append is never split.
_RESPONSE_BYTES_MAX: Final = BODY_BYTES_MAX
# The size of a short read, and of its longest append. So its messages have at most 16 KiB, which is
# the default of `HttpLimits.write_buffer_bytes`: up to it, a response does not count as unread.
_SHORT_READ_BYTES: Final = 8 * KIB
# Reads run on the event loop, one after the other. More than a few that have been started would
# only reserve memory, and delay the short reads that come after them.
_RUNNING_MAX: Final = 2
_GZIP_HERE_BYTES_MAX: Final = 32 * KIB
_SHORT_VIEW_BYTES: Final = 16 * KIB


class Reader(Protocol):
    """The receiver of a read's result: a Responder or a FanoutGroup."""

    @property
    def is_over(self) -> bool:
        """True if the result of the read is no longer needed."""

    @property
    def account(self) -> UnreadAccount | None:
        """The account of the connection that the result is for; None if there are several."""


class AdmittedRead(Struct, eq=False):
    """A waiting or running read. `reply` is called with the result: a ReadDone or a refusal.

    If `is_refusable`, the read is refused when it would have to wait too long. If `is_divisible`,
    the result can be a part of what was requested.
    """

    path: str
    offset: int | None
    reply: Reply
    reader: Reader
    bytes_max: int = READ_BYTES_DEFAULT
    isolation: str = READ_UNCOMMITTED
    is_refusable: bool = True
    is_divisible: bool = True
    waits_since: float = 0.0


class ReadAdmission:
    """Starts the reads of one engine.

    A read starts immediately if there is memory for a long response, in total and for the address
    of its client. Otherwise it first runs as a short read, which needs almost no memory. It has to
    wait only if its first append is long. If there is no memory, a part of the requested messages
    is a sufficient result; the client continues after it.

    The reads that wait are admitted in turn: one of each address, in the order in which they came.
    While they wait, connections of clients that stopped reading are closed. A read that waits for
    too long, or that comes while too many of its address wait, is refused.
    """

    def __init__(self, engine: Engine, unread: UnreadBudget) -> None:
        self._engine = engine
        self.unread = unread
        self._limits = unread.limits
        self._loop = asyncio.get_running_loop()
        self._lines: dict[AddressUse, None] = {}  # the addresses with waiting reads, next one first
        self._running = 0  # long reads that have been started and have not ended
        self._is_due = False
        self._timer: asyncio.TimerHandle | None = None
        unread.on_release = self._continue_soon

    def begin(self, read: AdmittedRead) -> None:
        """Start a read now, or put it into the queue, or refuse it."""
        use = self._use_of(read)
        if not use.waiting and self._running < _RUNNING_MAX and not self._is_full_for(use):
            self._start(read)
        elif self.unread.is_full_for_short:
            self._enqueue(read)
        else:
            self._engine.read(
                read.path,
                read.offset,
                partial(self._finish_short, read),
                bytes_max=min(read.bytes_max, _SHORT_READ_BYTES),
                isolation=read.isolation,
                is_short=True,
            )

    def _use_of(self, read: AdmittedRead) -> AddressUse:
        account = read.reader.account
        return self.unread.server_use if account is None else account.use

    def _is_full_for(self, use: AddressUse) -> bool:
        return self.unread.is_full or use.is_full

    # ---- long and short reads ------------------------------------------------------------------

    def _start(self, read: AdmittedRead) -> None:
        self._running += 1
        self.unread.reserve(_RESPONSE_BYTES_MAX)
        self._engine.read(
            read.path,
            read.offset,
            partial(self._finish, read),
            bytes_max=read.bytes_max,
            isolation=read.isolation,
        )

    def _finish(self, read: AdmittedRead, outcome: Outcome) -> None:
        self._running -= 1
        self._reply(read, outcome, is_short=False)
        self.unread.release(_RESPONSE_BYTES_MAX)

    def _finish_short(self, read: AdmittedRead, outcome: Outcome) -> None:
        is_part = isinstance(outcome, ReadDone) and _is_part(outcome, read.isolation)
        is_enough = read.is_divisible and self._is_full_for(self._use_of(read))
        if isinstance(outcome, ReadTooLong) or (is_part and not is_enough):
            self._enqueue(read)
            self._continue_soon()
        else:
            self._reply(read, outcome, is_short=True)

    def _reply(self, read: AdmittedRead, outcome: Outcome, *, is_short: bool) -> None:
        if read.reader.account is not None:
            read.reader.account.is_short = is_short
        read.reply(outcome)

    # ---- reads that wait -----------------------------------------------------------------------

    def _enqueue(self, read: AdmittedRead) -> None:
        use = self._use_of(read)
        if read.reader.is_over:
            return
        if read.is_refusable and len(use.waiting) >= self._limits.waiting_reads_per_address_max:
            self._refuse(read)
            return
        read.waits_since = self._loop.time()
        use.waiting.append(read)
        self._lines.setdefault(use)
        self.unread.counts.reads_waiting += 1
        if self._timer is None:
            self._timer = self._loop.call_later(self._limits.sweep_seconds, self._sweep)

    def _refuse(self, read: AdmittedRead) -> None:
        self.unread.counts.reads_refused += 1
        read.reply(Overloaded())

    def _continue_soon(self) -> None:
        # The reads start on the next turn of the loop, because the caller is still working.
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._continue)

    def _continue(self) -> None:
        self._is_due = False
        while self._running < _RUNNING_MAX and not self.unread.is_full:
            use = next((use for use in self._lines if not use.is_full), None)
            if use is None:
                return
            read = use.waiting.popleft()
            self.unread.counts.reads_waiting -= 1
            del self._lines[use]
            if use.waiting:
                self._lines[use] = None  # the last one now
            if not read.reader.is_over:
                self._start(read)

    def _sweep(self) -> None:
        """Drop waiting reads whose clients are gone. Refuse those that have waited too long."""
        self._timer = None
        late_before = self._loop.time() - self._limits.read_wait_seconds
        late: list[AdmittedRead] = []
        for use in tuple(self._lines):
            reads = [read for read in use.waiting if not read.reader.is_over]
            late += [read for read in reads if _is_late(read, late_before)]
            kept = [read for read in reads if not _is_late(read, late_before)]
            self.unread.counts.reads_waiting -= len(use.waiting) - len(kept)
            use.waiting = deque(kept)
            if not kept:
                del self._lines[use]
        if self._lines:
            self._timer = self._loop.call_later(self._limits.sweep_seconds, self._sweep)
        for read in late:
            self._refuse(read)


def _is_late(read: AdmittedRead, late_before: float) -> bool:
    return read.is_refusable and read.waits_since < late_before


def _is_part(done: ReadDone, isolation: str) -> bool:
    """Return True if a read has not reached the end of what its reader can see."""
    return done.next_offset < tail_of_view(done.tail, isolation == READ_COMMITTED)


def send_view(
    responder: Responder,
    response: Response,
    response_of: Callable[[Problem], Response] = problem_response,
) -> None:
    """Send a response that shows a part of the state, such as a list.

    If it is long and there is no memory for it, refuse the request. A view cannot wait for memory
    as a read does, because it is already computed. `response_of` returns the response then.
    """
    account = responder.account
    if len(response.body) > _SHORT_VIEW_BYTES and account.is_full:
        account.refuse()
        response = response_of(problem_of(Overloaded()))
    send_response(responder, response)


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
