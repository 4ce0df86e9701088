"""One HTTP/1.1 connection: strict in what it reads, in order in what it answers, bounded in both.

Reading stops while too many requests wait for their answers or the client does not read them.
There is no timer per connection: a sweep looks at each from time to time. One clock serves every
deadline, because a connection waits for one thing at a time; it restarts when that thing changes.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from semel.server.connections import ConnectionSet
from semel.server.exchange import CONTINUE, Exchange
from semel.server.http import Handler, HttpRefused, Request, problem
from semel.server.limits_http import HttpLimits
from semel.server.request_body import PartialBody
from semel.server.request_head import check_partial_head, head_too_large

_log: Final = logging.getLogger("semel.server")

_OUT_BYTES_MAX: Final = 64 * 1024
_READS: Final = (b"GET ", b"HEAD ")
_UNSET: Final = -1.0


class ServerConnection(asyncio.Protocol):
    """One client. All methods belong to the loop's thread."""

    __slots__ = (
        "_body",
        "_buffer",
        "_clock",
        "_delivered_bytes",
        "_handler",
        "_has_stopped_reading",
        "_held_bytes",
        "_is_begun",
        "_is_continue_due",
        "_is_fresh",
        "_is_half_closed",
        "_is_paused",
        "_is_reading",
        "_is_resume_due",
        "_is_shut",
        "_limits",
        "_loop",
        "_out",
        "_out_bytes",
        "_progress_at",
        "_registry",
        "_sent_bytes",
        "_transport",
        "_waiting",
        "_will_shut",
        "is_write_blocked",
        "unread_bytes",
        "unread_since",
    )

    def __init__(self, handler: Handler, limits: HttpLimits, registry: ConnectionSet) -> None:
        self._handler = handler
        self._limits = limits
        self._registry = registry
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        # What is being read.
        self._buffer = b""  # arrived, not consumed
        self._is_begun = False  # a head has begun and is not whole
        self._is_fresh = True  # no request was ever whole
        self._body: PartialBody | None = None  # of a request that is not whole
        self._is_continue_due = False
        self._is_reading = False
        self._is_paused = False
        self._is_resume_due = False
        self._has_stopped_reading = False  # what arrives no longer matters
        # What is owed and sent.
        self._waiting: deque[Exchange] = deque()
        self._held_bytes = 0
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._sent_bytes = 0
        self.is_write_blocked = False
        self.unread_bytes = 0
        self.unread_since = _UNSET
        # How it ends.
        self._will_shut = False
        self._is_shut = False
        self._is_half_closed = False
        self._clock = _UNSET
        self._progress_at = _UNSET
        self._delivered_bytes = 0

    # ---- the transport's calls -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        self._transport = cast("asyncio.Transport", transport)
        # It is fed again when all is read: a buffer that is still in use is held as a whole.
        self._transport.set_write_buffer_limits(high=self._limits.write_buffer_bytes, low=0)
        self._registry.enter(self)

    def data_received(self, data: bytes) -> None:
        """Bytes have arrived."""
        if self._has_stopped_reading:
            return
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        if self._is_paused:
            self._buffer = data
        else:
            self._read(data)

    def eof_received(self) -> bool:
        """The client says no more. It may still read: what it asked for is answered first."""
        is_streaming = bool(self._waiting) and self._waiting[0].is_started
        can_half_close = self._transport.can_write_eof()  # TLS cannot
        if self._is_shut or not self._waiting or is_streaming or not can_half_close:
            return False
        self._stop_reading()
        self._is_half_closed = True
        self._clock = _UNSET
        self._waiting[-1].closes = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        del exc
        self._stop_reading()
        self._drop_waiting()
        self._registry.held_bytes -= self._held_bytes
        self._held_bytes = 0
        self._uncount_unread()
        self._registry.leave(self)

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self.is_write_blocked = True
        self._count_unread(0)

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.is_write_blocked = False
        self._uncount_unread()
        if self._waiting:
            self._waiting[0].drained()
        self._resume_soon()

    # ---- reading -------------------------------------------------------------------------------

    def _read(self, data: bytes) -> None:
        self._is_reading = True
        try:
            position = self._consume(data)
            if position < len(data) and not self._has_stopped_reading:
                self._buffer = data[position:]
        except HttpRefused as refused:
            self.refuse(refused)
        except Exception:  # noqa: BLE001 - the boundary of a connection
            _log.exception("a connection failed")
            self.refuse(HttpRefused(500, "internal_error", "the server has a bug; see its log"))
        self._is_reading = False
        self._flush()

    def _consume(self, data: bytes) -> int:
        """Take every whole request; where the rest begins."""
        position = 0
        while position < len(data) and not self._has_stopped_reading:
            if (self._waiting or self.is_write_blocked) and self._is_crowded():
                self._pause()
                break
            before = position
            if self._body is None:
                position = self._take_head(data, position)
            else:
                position = self._take_body(data, position, self._body)
            if position == before:
                break
        return position

    def _take_head(self, data: bytes, position: int) -> int:
        # Some clients end a body with one line end too many.
        start = position + 2 if data.startswith(b"\r\n", position) else position
        if self._waiting and data.startswith(_READS, start):
            # It must see what the writes before it do. And its answer may be long: one is enough.
            self._pause()
            return position
        end = data.find(b"\r\n\r\n", start)
        if end < 0:
            self._begin_head(data[start:], is_new=position > 0)
            return position
        self._is_begun = False
        if end + 4 - start > self._limits.head_bytes_max:
            raise head_too_large(data[start:end], self._limits)
        request, length = self._registry.heads.read(data[start:end])
        position = end + 4
        if 0 <= length <= len(data) - position:
            if length:
                request.body = data[position : position + length]
                self._hold(length)
            self._dispatch(request)
            return position + length
        is_continue_due = request.head.is_expecting and position == len(data)
        self._begin_body(request, length, is_continue_due)
        return position

    def _begin_head(self, partial: bytes, *, is_new: bool) -> None:
        if partial:
            check_partial_head(partial, self._limits)
            if is_new or not self._is_begun:
                self._is_begun = True
                self._clock = _UNSET

    def _begin_body(self, request: Request, length: int, is_continue_due: bool) -> None:
        self._body = PartialBody(request, length, self._limits)
        self._clock = _UNSET
        self._is_continue_due = is_continue_due
        self._continue_if_due()

    def _continue_if_due(self) -> None:
        if self._is_continue_due and not self._waiting:
            self._is_continue_due = False
            self.emit(CONTINUE)

    def _take_body(self, data: bytes, position: int, body: PartialBody) -> int:
        self._is_continue_due = False
        position, grown = body.take(data, position)
        self._hold(grown)
        if body.is_complete:
            self._body = None
            self._dispatch(body.request)
        return position

    def _dispatch(self, request: Request) -> None:
        self._is_fresh = False
        head = request.head
        closes = head.closes or self._registry.is_draining
        if closes:
            self._stop_reading()
        starts = self._registry.starts
        lines = starts.exposed if head.is_exposed else starts.plain
        exchange = Exchange(self, lines, head.is_head, head.is_modern, closes, len(request.body))
        self._waiting.append(exchange)
        try:
            self._handler(request, exchange)
        except Exception:  # noqa: BLE001 - the boundary of a request
            _log.exception("the handler of %s %s failed", request.method, request.path)
            self._stop_reading()
            exchange.fail()

    # ---- back-pressure -------------------------------------------------------------------------

    def _hold(self, count: int) -> None:
        self._held_bytes += count
        self._registry.held_bytes += count
        if self._registry.held_bytes > self._limits.held_bytes_max:
            raise HttpRefused(503, "overloaded", "too many bodies wait to be stored")

    def _is_crowded(self) -> bool:
        """Whether to take nothing more for now. A body that has begun may end."""
        if self._body is not None:
            return False
        return (
            self.is_write_blocked
            or len(self._waiting) >= self._limits.pipelined_max
            or (self._held_bytes >= self._limits.pipelined_bytes_max and bool(self._waiting))
        )

    def _pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            if not self._transport.is_closing():
                self._transport.pause_reading()

    def _resume_soon(self) -> None:
        # From the loop: an answer may come from deep inside the engine, a request must not.
        if self._is_paused and not self._is_resume_due and not self._has_stopped_reading:
            self._is_resume_due = True
            self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._is_resume_due = False
        if self._has_stopped_reading or self._is_crowded():
            return
        self._is_paused = False
        data, self._buffer = self._buffer, b""
        self._read(data)
        if not self._is_paused and not self._transport.is_closing():
            self._transport.resume_reading()

    # ---- answering -----------------------------------------------------------------------------

    def is_turn(self, exchange: Exchange) -> bool:
        """Nothing is owed to the client before this exchange's answer."""
        waiting = self._waiting
        return bool(waiting) and waiting[0] is exchange

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call back from the loop."""
        self._loop.call_soon(callback)

    def emit(self, data: bytes) -> None:
        """Send bytes; those of one read go out together."""
        self._sent_bytes += len(data)
        if not self._is_reading:
            self._transport.write(data)
            if len(data) > self._limits.write_buffer_bytes:
                self._count_unread(len(data))
            return
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes > _OUT_BYTES_MAX:
            self._flush()

    def complete(self, exchange: Exchange, data: bytes) -> bool:
        """Send the last bytes of an exchange and pass the turn on; False if it is not its turn."""
        waiting = self._waiting
        if not waiting or waiting[0] is not exchange:
            return False
        self.emit(data)
        self.advance()
        return True

    def _flush(self) -> None:
        out = self._out
        if out:
            size = self._out_bytes
            self._out = []
            self._out_bytes = 0
            if len(out) == 1:
                self._transport.write(out[0])
            else:
                self._transport.writelines(out)
            if size > self._limits.write_buffer_bytes:
                self._count_unread(size)
        if self._will_shut and not self._is_reading:
            self._shut()

    def _count_unread(self, size: int) -> None:
        """Count what was just written as long as a part of it is in the buffer."""
        unread = self._transport.get_write_buffer_size()
        more = max(unread, size) - self.unread_bytes
        if not unread or more <= 0:
            return
        if not self.unread_bytes:
            self.unread_since = self._loop.time()
        self.unread_bytes += more
        self._registry.unread.add(more)

    def _uncount_unread(self) -> None:
        count, self.unread_bytes = self.unread_bytes, 0
        if count:
            self._registry.unread.take(count)

    def advance(self) -> None:
        """Pass the turn on while answers are complete."""
        waiting = self._waiting
        while waiting and waiting[0].is_complete:
            exchange = waiting.popleft()
            self._held_bytes -= exchange.body_bytes
            self._registry.held_bytes -= exchange.body_bytes
            if exchange.closes:
                self._shut_soon()
                return
            if waiting:
                waiting[0].take_turn()
        if not self._is_begun and self._body is None:
            self._clock = _UNSET
        if self._is_continue_due:
            self._continue_if_due()
        if self._is_paused:
            self._resume_soon()

    def refuse(self, refused: HttpRefused) -> None:
        """Answer what cannot be served, after all that is owed, and end."""
        self._stop_reading()
        exchange = Exchange(self, self._registry.starts.exposed, closes=True)
        self._waiting.append(exchange)
        exchange.send(problem(refused))

    # ---- the end -------------------------------------------------------------------------------

    def _stop_reading(self) -> None:
        self._has_stopped_reading = True
        self._is_begun = self._is_continue_due = False
        self._buffer = b""
        self._body = None

    def _drop_waiting(self) -> None:
        """Nothing more can be said: whatever is still owed has lost its client."""
        waiting = tuple(self._waiting)
        self._waiting.clear()
        for exchange in waiting:
            exchange.client_gone()

    def _shut_soon(self) -> None:
        self._stop_reading()
        self._drop_waiting()
        self._will_shut = True
        if not self._is_reading:
            self._shut()

    def _shut(self) -> None:
        """Say no more, and wait for the client to see it: an early end could cost it the answer."""
        if self._is_shut or self._transport.is_closing():
            return
        self._is_shut = True
        self._clock = _UNSET
        if self._is_half_closed or not self._transport.can_write_eof():
            self._transport.close()
            return
        self._transport.write_eof()
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    def abort(self) -> None:
        """Cut the line: what was sent cannot be completed."""
        self._stop_reading()
        self._out = []
        self._drop_waiting()
        self._transport.abort()

    def drain(self) -> None:
        """End once nothing is owed."""
        if self._is_shut:
            return
        if self._waiting:
            if not self._is_begun and self._body is None:
                self._stop_reading()
                self._waiting[-1].closes = True
        elif not self._is_begun and self._body is None:
            self._hang_up()

    def _hang_up(self) -> None:
        """End a connection that owes nothing."""
        self._stop_reading()
        self._transport.close()

    # ---- deadlines -----------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Look whether the client lets us wait too long."""
        if self._sent_bytes != self._delivered_bytes and self._is_stalled(now):
            self.abort()
        elif self._clock == _UNSET or self._is_paused:
            self._clock = now
        else:
            self._check_elapsed(now - self._clock)

    def _is_stalled(self, now: float) -> bool:
        unread = self._transport.get_write_buffer_size()
        delivered = self._sent_bytes - unread
        if delivered != self._delivered_bytes or self._progress_at == _UNSET:
            self._delivered_bytes = delivered
            self._progress_at = now
        if not unread:
            self._uncount_unread()
            self._progress_at = _UNSET
            return False
        if self._is_shut:
            self._clock = now
        return now - self._progress_at > self._limits.stall_seconds

    def _check_elapsed(self, elapsed: float) -> None:
        limits = self._limits
        if self._is_shut or self._is_half_closed:
            rest = limits.linger_seconds if self._is_shut else limits.half_closed_seconds
            if elapsed > rest:
                self.abort()
        elif self._body is not None:
            if self._body.is_late(elapsed):
                self.refuse(HttpRefused(408, "request_timeout", "the body comes too slowly"))
        elif self._is_begun:
            if elapsed > limits.header_seconds:
                self.refuse(HttpRefused(408, "request_timeout", "the headers come too slowly"))
        elif not self._waiting:
            idle = limits.header_seconds if self._is_fresh else limits.keep_alive_seconds
            if elapsed > idle:
                self._hang_up()
