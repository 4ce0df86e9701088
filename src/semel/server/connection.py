"""One HTTP/1.1 connection: strict parsing, responses in the order of the requests, bounded memory.

`phases.py` has the legal transitions between the phases of a connection. A connection stops reading
while too many requests wait for their responses, or while the client does not read responses.

A connection has no timer of its own: the listener calls `check` at regular intervals. A connection
waits for only one thing at a time, so one start time (`_clock`) is enough for all deadlines. Code
that begins a new wait must set `_clock` to `_UNSET`. The next `check` sets it to the current time.
"""

import asyncio
import logging
import socket
import struct
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, cast

from semel.server.exchange import CONTINUE_RESPONSE, ConnectionOutput, Exchange
from semel.server.http import Handler, Head, HttpRefused, Request, internal_error
from semel.server.limits_http import HttpLimits
from semel.server.phases import (
    CONNECTION,
    INPUT,
    ConnectionEvent,
    ConnectionPhase,
    ExchangePhase,
    InputEvent,
    InputPhase,
)
from semel.server.request_body import PartialBody
from semel.server.request_head import check_partial_head, head_too_large, head_too_slow
from semel.server.tls_transport import TlsTransport
from semel.server.unread_budget import UnreadAccount, client_address

if TYPE_CHECKING:
    from semel.server.listener import ConnectionSet

_log: Final = logging.getLogger("semel.server")

_READS: Final = (b"GET ", b"HEAD ")
_UNSET: Final = -1.0
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: a close drops unsent bytes and resets

# Looking up a global name is faster than looking up a member of an enum. Every request uses these.
_IDLE: Final = ConnectionPhase.IDLE
_CONTINUE: Final = ConnectionPhase.CONTINUE
_BODY: Final = ConnectionPhase.BODY
_HALF_CLOSED: Final = ConnectionPhase.HALF_CLOSED
_FLUSHING: Final = ConnectionPhase.FLUSHING
_RUNNING: Final = InputPhase.RUNNING
_PAUSED: Final = InputPhase.PAUSED
_COMPLETE: Final = ExchangePhase.COMPLETE


class ServerConnection(asyncio.Protocol):
    """The connection to one client. All methods must be called on the event loop's thread."""

    __slots__ = (
        "_body",
        "_buffer",
        "_clock",
        "_handler",
        "_held_bytes",
        "_input",
        "_limits",
        "_phase",
        "_registry",
        "_tls",
        "_transport",
        "_waiting",
        "loop",
        "output",
        "steps",
    )

    def __init__(self, handler: Handler, limits: HttpLimits, registry: "ConnectionSet") -> None:
        self._handler = handler
        self._limits = limits
        self._registry = registry
        self.loop = asyncio.get_running_loop()
        self.steps = registry.steps
        self._transport: asyncio.Transport
        self._tls: TlsTransport | None = None
        self._phase = ConnectionPhase.FRESH
        # Input.
        self._input = _RUNNING
        self._buffer = b""  # bytes that were received but not parsed yet
        self._body: PartialBody | None = None  # set in the phases CONTINUE and BODY
        # Output.
        self._waiting: deque[Exchange] = deque()  # exchanges whose responses are owed
        self._held_bytes = 0  # the size of the request bodies of those exchanges
        self.output: ConnectionOutput
        self._clock = _UNSET  # see above

    def _move(self, event: ConnectionEvent) -> None:
        self._phase = CONNECTION.next(self._phase, event)

    def _move_input(self, event: InputEvent) -> None:
        self._input = INPUT.next(self._input, event)

    @property
    def account(self) -> UnreadAccount:
        return self.output.account

    # ---- called by the transport ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if transport.get_extra_info("sslcontext") is not None:
            self._transport = self._tls = TlsTransport(self._transport)
        # Resume only when the buffer is empty, because its memory is freed only as a whole.
        self._transport.set_write_buffer_limits(high=self._limits.write_buffer_bytes, low=0)
        account = self._registry.unread.open(client_address(transport.get_extra_info("peername")))
        self.output = ConnectionOutput(self._transport, self._limits, account)
        self._registry.enter(self)

    def data_received(self, data: bytes) -> None:
        if self._phase > _BODY:
            return
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        if self._input is _RUNNING:
            self._read(data)
        else:
            self._buffer = data

    def eof_received(self) -> bool:
        """Handle the end of the client's input. Return True to keep the transport open.

        It stays open for owed responses, unless the first of them is streaming or TLS is used.
        """
        waiting = self._waiting
        can_half_close = self._transport.can_write_eof()  # TLS cannot do that
        if not waiting or waiting[0].phase is ExchangePhase.STREAMING or not can_half_close:
            return False
        self._end_reading(ConnectionEvent.CLIENT_ENDED)
        self._clock = _UNSET
        waiting[-1].closes = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._closed()
        self._registry.held_bytes -= self._held_bytes
        self._held_bytes = 0
        self._registry.unread.close(self.account)
        self._registry.leave(self)

    def pause_writing(self) -> None:
        if self._tls is not None:
            self._tls.pause()
        self.output.block()

    def resume_writing(self) -> None:
        if self._tls is not None and not self._tls.resume():
            return
        self.output.unblock()
        if self._waiting:
            self._waiting[0].drained()
        self.resume_soon()

    # ---- reading -------------------------------------------------------------------------------

    def _read(self, data: bytes) -> None:
        output = self.output
        output.held = []
        try:
            position = self._consume(data)
            if position < len(data) and self._phase <= _BODY:
                self._buffer = data[position:]
        except HttpRefused as refused:
            self.refuse(refused)
        except Exception:  # noqa: BLE001 - the boundary of a connection
            _log.exception("a connection failed")
            if self._phase <= _BODY:
                self.refuse(internal_error())
            else:
                self.abort()
        held, output.held = output.held, None
        if held:
            output.write(held)
        if self._phase is _FLUSHING:
            self._end_output()

    def _consume(self, data: bytes) -> int:
        """Handle the requests in `data`. Return the position of the first unhandled byte."""
        position = 0
        while position < len(data) and self._phase <= _BODY:
            if (self._waiting or self.output.is_blocked) and self._is_overfull():
                self._pause()
                break
            before = position
            if self._body is None:
                position = self._take_head(data, position)
            else:
                position = self._take_body(data, position, self._body)
            if self._body is not None and self._body.needs_turn:
                self._pause()
                self.resume_soon()
                break
            if position == before:
                break
        return position

    def _take_head(self, data: bytes, position: int) -> int:
        # An extra line end after a body is skipped.
        start = position + (2 if data.startswith(b"\r\n", position) else 0)
        if self._waiting and data.startswith(_READS, start):
            # A read must return what earlier requests on this connection have written. A connection
            # has only one long response at a time, so that its memory is bounded.
            self._pause()
            return position
        end = data.find(b"\r\n\r\n", start)
        if end < 0:
            self._check_partial(data[start:])
            return position
        if end + 4 - start > self._limits.head_bytes_max:
            raise head_too_large(data[start:end], self._limits)
        request, length = self._registry.heads.read(data[start:end])
        position = end + 4
        if 0 <= length <= len(data) - position:
            if length:
                request.body = data[position : position + length]
                self._hold(length, request.head)
            self._dispatch(request)
            return position + length
        is_expecting = request.head.is_expecting and position == len(data)
        is_refused = is_expecting and request.head.refusal is not None
        if is_refused or self._registry.is_stranger(request, self.output):
            self._dispatch(request, is_last=True)  # do not ask for the body, which may still come
            return position
        self._clock = _UNSET
        self._body = PartialBody(request, length, self._limits)
        if is_expecting:
            self._move(ConnectionEvent.CONTINUE_EXPECTED)
            self._send_continue_if_turn()
        else:
            self._move(ConnectionEvent.BODY_BEGUN)
        return position

    def _check_partial(self, head: bytes) -> None:
        if head:
            check_partial_head(head, self._limits)
            if self._phase is not ConnectionPhase.HEAD:
                self._move(ConnectionEvent.HEAD_BEGUN)
                self._clock = _UNSET

    def _send_continue_if_turn(self) -> None:
        if not self._waiting:
            self._move(ConnectionEvent.CONTINUE_SENT)
            self.output.emit(CONTINUE_RESPONSE)

    def _take_body(self, data: bytes, position: int, body: PartialBody) -> int:
        if self._phase is _CONTINUE:
            self._move(ConnectionEvent.BODY_RECEIVED)
        position, grown = body.take(data, position)
        self._hold(grown, body.request.head)
        if body.is_complete:
            self._body = None
            self._dispatch(body.request)
        return position

    def _dispatch(self, request: Request, *, is_last: bool = False) -> None:
        """Call the handler. With `is_last`, the connection closes after the response."""
        if self._phase is not _IDLE:
            self._move(ConnectionEvent.REQUEST_RECEIVED)
        head = request.head
        closes = head.closes or is_last or self._registry.is_draining
        if closes:
            self._end_reading(ConnectionEvent.READING_ENDED)
        self.output.account.is_short = False
        lines = self._registry.prefixes.by_cors[head.cors]
        exchange = Exchange(self, lines, head.is_head, head.is_modern, closes, len(request.body))
        exchange.is_control = head.is_control
        self._waiting.append(exchange)
        try:
            self._handler(request, exchange)
        except Exception:  # noqa: BLE001 - the boundary of a request
            _log.exception("the handler of request %s %s failed", request.method, request.path)
            self._fail(exchange)

    def run_step(self, exchange: Exchange, steps: Iterator[None]) -> None:
        """Run a step of a request that is handled in steps. Called on a turn of its own."""
        try:
            exchange.run(steps)
        except Exception:  # noqa: BLE001 - the boundary of a request
            _log.exception("a request failed")
            self._fail(exchange)

    def _fail(self, exchange: Exchange) -> None:
        """Close the connection after a handler failed. First send 500 if no response was sent."""
        if self._phase <= _BODY:
            self._end_reading(ConnectionEvent.READING_ENDED)
        exchange.fail()
        if not self._waiting and self._phase is ConnectionPhase.FINISHING:
            self._end_output_soon()  # the response was complete before the handler failed

    # ---- back-pressure -------------------------------------------------------------------------

    def _hold(self, count: int, head: Head) -> None:
        self._held_bytes += count
        self._registry.held_bytes += count
        if self._registry.held_bytes > self._limits.held_bytes_max:
            raise HttpRefused(503, "overloaded", "too many request bodies wait to be stored", head)

    def _is_overfull(self) -> bool:
        """Return True if reading must pause until responses are sent. A body is always read."""
        if self._body is not None:
            return False
        return (
            self.output.is_blocked
            or len(self._waiting) >= self._limits.pipelined_max
            or (bool(self._waiting) and self._waiting[-1].is_in_steps)
            or (self._held_bytes >= self._limits.pipelined_bytes_max and bool(self._waiting))
        )

    def _pause(self) -> None:
        if self._input is _RUNNING:
            self._move_input(InputEvent.OVERFULL)
            if not self._transport.is_closing():
                self._transport.pause_reading()

    def resume_soon(self) -> None:
        """Read on if reading has paused, unless there is another reason for the pause."""
        # On the next turn of the loop, because the engine cannot accept a command during a reply.
        if self._input is _PAUSED and self._phase <= _BODY:
            self._move_input(InputEvent.CAPACITY)
            self.loop.call_soon(self._resume)

    def _resume(self) -> None:
        has_ended = self._input is _RUNNING  # the pause ended because the output has ended
        if has_ended:
            return
        if self._phase > _BODY or self._is_overfull():
            self._move_input(InputEvent.STILL_FULL)
            return
        self._move_input(InputEvent.RESUMED)
        data, self._buffer = self._buffer, b""
        self._read(data)
        if self._input is _RUNNING and not self._transport.is_closing():
            self._transport.resume_reading()

    # ---- responding ----------------------------------------------------------------------------

    def is_turn(self, exchange: Exchange) -> bool:
        """Return True if `exchange` can send now, because all earlier responses are sent."""
        return bool(self._waiting) and self._waiting[0] is exchange

    def complete(self, exchange: Exchange, data: bytes) -> bool:
        """If it is the exchange's turn, send its last bytes and return True. Else return False."""
        waiting = self._waiting
        if not waiting or waiting[0] is not exchange:
            return False
        self.output.emit(data)
        self.advance()
        return True

    def advance(self) -> None:
        """Remove complete exchanges. Let the next exchange send the bytes that it has held."""
        waiting = self._waiting
        while waiting and waiting[0].phase is _COMPLETE:
            exchange = waiting.popleft()
            self._held_bytes -= exchange.body_bytes
            self._registry.held_bytes -= exchange.body_bytes
            if exchange.closes:
                self._end_output_soon()
                return
            if waiting:
                waiting[0].take_turn()
        phase = self._phase
        if phase is _IDLE or phase is _HALF_CLOSED:
            self._clock = _UNSET
        elif phase is _CONTINUE:
            self._send_continue_if_turn()
        if self._input is _PAUSED:
            self.resume_soon()

    def refuse(self, refused: HttpRefused) -> None:
        """Send all owed responses, then the refusal, then close the connection."""
        source = refused if self._body is None else self._body.request.head
        self._end_reading(ConnectionEvent.READING_ENDED)
        lines = self._registry.prefixes.by_cors[source.cors]
        self._waiting.append(Exchange(self, lines, closes=True, is_control=source.is_control))
        self._waiting[-1].refuse(refused)

    # ---- closing -------------------------------------------------------------------------------

    def _end_reading(self, event: ConnectionEvent) -> None:
        self._move(event)
        self._buffer = b""
        self._body = None

    def _drop_waiting(self) -> None:
        waiting = tuple(self._waiting)
        self._waiting.clear()
        for exchange in waiting:
            exchange.client_gone()

    def _end_output_soon(self) -> None:
        """Drop all waiting exchanges. Close our side when the earlier responses are written."""
        if self._phase <= _BODY:
            self._end_reading(ConnectionEvent.READING_ENDED)
        self._drop_waiting()
        if self._phase is not _HALF_CLOSED:
            self._move(ConnectionEvent.LAST_RESPONSE)
        if self.output.held is None:
            self._end_output()

    def _end_output(self) -> None:
        """Close our side, and wait until the client closes its side.

        Closing both sides at once could reset the connection before the client has read the
        response. With TLS, both sides are closed at once, because TLS cannot close only one side.
        """
        if self._transport.is_closing():
            return
        is_half_closed = self._phase is _HALF_CLOSED
        self._move(ConnectionEvent.OUTPUT_ENDED)
        self._clock = _UNSET
        if is_half_closed or not self._transport.can_write_eof():
            self._transport.close()
            return
        self._transport.write_eof()
        if self._input is not _RUNNING:
            self._move_input(InputEvent.OUTPUT_ENDED)
            self._transport.resume_reading()

    def _closed(self) -> None:
        if self._phase is not ConnectionPhase.CLOSED:
            self._end_reading(ConnectionEvent.TRANSPORT_CLOSED)
        self._drop_waiting()

    def abort(self) -> None:
        """Close the connection immediately, without completing any response."""
        if self.output.held is not None:
            self.output.held = []
        self._closed()
        self._transport.abort()

    def is_stuck(self, now: float) -> bool:
        """Return True if the client reads too slowly while others wait for memory."""
        return self.output.is_stuck(now)

    def reset(self) -> None:
        """Close the connection immediately, and drop what the kernel has not sent yet.

        Otherwise the kernel would keep it for a client that does not read.
        """
        line = self._transport.get_extra_info("socket")
        if line is not None and not self._transport.is_closing():
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.abort()

    def drain(self) -> None:
        """Close the connection after all owed responses are sent.

        If a request has been received in part, the rest is received, and the request is answered.
        """
        if self._phase > _IDLE:
            return
        if self._waiting:
            self._end_reading(ConnectionEvent.READING_ENDED)
            self._waiting[-1].closes = True
        else:
            self._hang_up()

    def _hang_up(self) -> None:
        """Close the connection. Call this only if no response is owed."""
        self._closed()
        self._transport.close()

    # ---- deadlines -----------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """If a deadline has passed, refuse the current request or close the connection."""
        if self.output.is_stalled(now):
            self._registry.unread.counts.stalled_closed += 1
            self.reset()
        elif (
            self._clock == _UNSET
            or self._input is not _RUNNING
            or (self._phase is ConnectionPhase.LINGERING and self.output.is_unread)
        ):
            self._clock = now
        else:
            self._check_elapsed(now - self._clock)

    def _check_elapsed(self, elapsed: float) -> None:
        if self._body is not None:
            if self._body.is_late(elapsed):
                self.refuse(HttpRefused(408, "request_timeout", "the body arrives too slowly"))
        elif elapsed > self._limits.seconds_in(self._phase):
            if self._phase is ConnectionPhase.HEAD:
                self.refuse(head_too_slow(self._buffer))
            elif self._phase > _BODY:
                self.abort()
            elif not self._waiting:
                self._hang_up()
