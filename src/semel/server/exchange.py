"""Exchanges encode responses, send the responses in order, and count unread bytes."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from semel.broker.settings import Clock
from semel.model.rights import Caller
from semel.server.http import (
    Headers,
    HttpRefused,
    Response,
    ResponseStream,
    SharedBytes,
    internal_error,
    problem,
)
from semel.server.limits_http import HttpLimits
from semel.server.phases import EXCHANGE, ExchangeEvent, ExchangePhase
from semel.server.unread_budget import UnreadAccount

if TYPE_CHECKING:
    from semel.server.connection import ServerConnection

_log: Final = logging.getLogger("semel.server")

_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus
}
_HELD_BYTES_MAX: Final = 64 * 1024  # above it, held bytes are written immediately
# Up to this size, copying the body is faster than passing the head and the body to the kernel as
# two buffers.
_JOIN_BYTES_MAX: Final = 16 * 1024
_BODILESS: Final = frozenset({204, 304})  # responses with neither a body nor a Content-Length

CONTINUE_RESPONSE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"

Callbacks = tuple[Callable[[], None], ...]

# Looking up a global name is faster than looking up a member of an enum or a transition.
_WAITING: Final = ExchangePhase.WAITING
_STREAMING: Final = ExchangePhase.STREAMING
_COMPLETE: Final = EXCHANGE.next(_WAITING, ExchangeEvent.RESPONSE_COMPLETE)


class PrefixLines(dict[int, bytes]):
    """A mapping from a status to the first lines of a response with that status.

    The first lines are the status line, the Date header and the headers that never change. These
    lines are encoded at most once per second for each status.
    """

    def __init__(self, constant: str) -> None:
        super().__init__()
        self._constant = constant
        self._date = ""

    def __missing__(self, status: int) -> bytes:
        line = _STATUS_LINES.get(status) or f"HTTP/1.1 {status} \r\n"
        return self.setdefault(status, (line + self._date + self._constant).encode("ascii"))

    def turn(self, date: str) -> None:
        """Set the Date line for later responses."""
        self._date = date
        self.clear()


class PrefixCache:
    """The status lines, Date and constant headers of responses. Call `turn` every second.

    `constant` has the constant header lines for each value of `Head.cors`.
    """

    def __init__(self, clock: Clock, constant: Mapping[str, str]) -> None:
        self.by_cors: Final = {cors: PrefixLines(lines) for cors, lines in constant.items()}
        self._clock = clock
        self._second = -1
        self.turn()

    def turn(self) -> None:
        """Update the Date lines if a new second has begun."""
        second = self._clock.now_ms() // 1000
        if second != self._second:
            self._second = second
            date = f"Date: {formatdate(second, usegmt=True)}\r\n"
            for lines in self.by_cors.values():
                lines.turn(date)


class ConnectionOutput:
    """The output of a connection. Responses to requests that arrive together are written together.

    The output also counts the bytes that the client has not read yet, and detects when a client has
    stopped reading.
    """

    __slots__ = (
        "_delivered_bytes",
        "_held_bytes",
        "_limits",
        "_loop",
        "_mark_at",
        "_mark_bytes",
        "_progress_at",
        "_sent_bytes",
        "_transport",
        "account",
        "held",
        "is_blocked",
    )

    def __init__(
        self, transport: asyncio.Transport, limits: HttpLimits, account: UnreadAccount
    ) -> None:
        self._transport = transport
        self._limits = limits
        self.account: Final = account
        self._loop = asyncio.get_running_loop()
        self.held: list[bytes] | None = None  # set while input is parsed; collects responses
        self._held_bytes = 0
        self._sent_bytes = 0
        self._delivered_bytes = 0
        self._progress_at: float | None = None  # when the client last read something
        self.is_blocked = False  # the client reads too slowly
        # The last time at which the client had read enough (see `is_stuck`), and how many bytes the
        # kernel had accepted by then.
        self._mark_at = 0.0
        self._mark_bytes = 0

    def emit(self, data: bytes) -> None:
        """Send bytes. Only the exchange whose turn it is may call this method."""
        size = len(data)
        self._sent_bytes += size
        held = self.held
        if held is None:
            self._transport.write(data)
            if size > self._limits.write_buffer_bytes:
                self._count(size)
            return
        held.append(data)
        self._held_bytes += size
        if self._held_bytes > _HELD_BYTES_MAX:
            self.held = []
            self.write(held)

    def write(self, held: list[bytes]) -> None:
        """Write held responses to the transport."""
        size, self._held_bytes = self._held_bytes, 0
        if len(held) == 1:
            self._transport.write(held[0])
        else:
            self._transport.writelines(held)
        if size > self._limits.write_buffer_bytes:
            self._count(size)

    @property
    def peercert(self) -> Mapping[str, Any] | None:
        """The verified certificate of the client, as `ssl` returns it, or None."""
        peercert: Mapping[str, Any] | None = self._transport.get_extra_info("peercert")
        return peercert

    def block(self) -> None:
        """Record that the transport's buffer is full. Count the bytes in the buffer as unread."""
        self.is_blocked = True
        self._count(0)

    def unblock(self) -> None:
        """Record that the transport's buffer is empty, so that no bytes count as unread."""
        self.is_blocked = False
        self.account.clear()

    def _count(self, size: int) -> None:
        """Count unread bytes: the size of the transport's buffer or `size`, whichever is larger.

        If the buffer is empty, count nothing.
        """
        unread = self._transport.get_write_buffer_size()
        more = max(unread, size) - self.account.bytes
        if unread and more > 0:
            if not self.account.bytes:
                self._mark_at = self._loop.time()
                self._mark_bytes = self._sent_bytes - unread
            self.account.add(more)

    def is_stuck(self, now: float) -> bool:
        """Return True if the client reads too slowly while others wait for memory.

        It has to read `crowded_bytes_per_second_min`, on average over `crowded_stall_seconds`.
        """
        limits = self._limits
        sent = self._sent_bytes - self._transport.get_write_buffer_size()
        enough = limits.crowded_bytes_per_second_min * limits.crowded_stall_seconds
        if sent - self._mark_bytes >= enough:
            self._mark_at, self._mark_bytes = now, sent
        return now - self._mark_at > limits.crowded_stall_seconds

    @property
    def is_unread(self) -> bool:
        """True if some sent bytes are unread, or if `is_stalled` has not yet seen them as read."""
        return self._sent_bytes != self._delivered_bytes

    def is_stalled(self, now: float) -> bool:
        """Return True if there are unread bytes and the client read nothing for `stall_seconds`."""
        if not self.is_unread:
            return False
        unread = self._transport.get_write_buffer_size()
        delivered = self._sent_bytes - unread
        if delivered != self._delivered_bytes or self._progress_at is None:
            self._delivered_bytes = delivered
            self._progress_at = now
        if unread:
            return now - self._progress_at > self._limits.stall_seconds
        self.account.clear()
        self._progress_at = None
        return False


class Exchange(Struct, eq=False, gc=False):
    """A request and its response. The handler uses the exchange as Responder and ResponseStream.

    `phase` changes according to the table EXCHANGE in `phases.py`.
    """

    # Each request creates an exchange, and `gc=False` makes that faster. Memory does not leak,
    # because an exchange that has ended is not part of a reference cycle.

    _line: "ServerConnection"
    _prefixes: PrefixLines
    _is_head: bool = False
    _is_modern: bool = True
    closes: bool = False
    body_bytes: int = 0
    is_control: bool = False  # errors have the form of the addresses of subscriptions
    phase: ExchangePhase = _WAITING
    _is_chunked: bool = False
    _omits_body: bool = False
    _held: tuple[bytes, ...] = ()  # bytes that wait until all earlier responses are sent
    _gone: Callbacks = ()
    _drained: Callbacks = ()
    is_in_steps: bool = False  # later requests of the connection wait for the last step
    caller: Caller | None = None

    # ---- a complete response -------------------------------------------------------------------

    def send(self, response: Response) -> None:
        """Send the response. If a response was already sent, log an error and drop the new one."""
        status, body = response.status, response.body
        if self.phase is not _WAITING:
            self._drop(status)
            return
        # A response to HEAD without a body has no Content-Length, because the value could differ
        # from the value in the response to GET.
        is_bodiless = status in _BODILESS or (self._is_head and not body)
        framing = "" if is_bodiless else f"Content-Length: {len(body)}\r\n"
        try:
            data = self._encode_head(status, response.headers, framing)
        except (ValueError, TypeError):
            _log.exception("a response could not be encoded")
            self.fail()
            return
        if body and framing and not self._is_head:
            if len(body) <= _JOIN_BYTES_MAX:
                data += body
            else:
                self._put(data)
                data = body
        self._complete(data)

    def send_lines(self, status: int, lines: bytes, body: bytes = b"") -> None:
        """Send a response to a request that is not a HEAD. `lines` are its encoded header lines."""
        if self.phase is not _WAITING:
            self._drop(status)
            return
        framing = b"" if status in _BODILESS else b"Content-Length: %d\r\n" % len(body)
        if self.closes or not self._is_modern:
            framing += self._connection_line().encode("ascii")
        data = b"%b%b%b\r\n%b" % (self._prefixes[status], lines, framing, body)
        self.phase = _COMPLETE  # from here on like `_complete`, which would cost a call per append
        self._gone = ()
        if not self._line.complete(self, data):
            self._held += (data,)

    def run(self, steps: Iterator[None]) -> None:
        """Handle the request in steps: run the first step now, and the others on later turns.

        Later requests of the same connection wait for the last step, so that requests are handled
        in order. If a step raises an exception, the response is 500.
        """
        for _ in steps:
            self.is_in_steps = True
            self._line.steps.add(partial(self._line.run_step, self, steps))
            return
        if self.is_in_steps:
            self.is_in_steps = False
            self._line.resume_soon()

    def _complete(self, data: bytes) -> None:
        self.phase = _COMPLETE  # the callers have checked that the phase was WAITING
        self._gone = ()
        if not self._line.complete(self, data):
            self._held += (data,)

    def _drop(self, status: int) -> None:
        if self.phase is not ExchangePhase.GONE:
            _log.error("a second response (status %d) to the same request was dropped", status)

    def _connection_line(self) -> str:
        if self.closes:
            return "Connection: close\r\n"
        return "" if self._is_modern else "Connection: keep-alive\r\n"

    def _encode_head(self, status: int, headers: Headers, framing: str) -> bytes:
        framing += self._connection_line()
        if not 200 <= status <= 599:
            raise ValueError(f"{status} is not a valid response status (200 to 599)")
        fields = "".join([f"{name}: {value}\r\n" for name, value in headers])
        # A value can contain text from the request, but that text must not add a header line.
        if not fields.count("\r") == fields.count("\n") == len(headers) or "\0" in fields:
            raise ValueError("a response header contains a line end or a NUL character")
        return self._prefixes[status] + f"{fields}{framing}\r\n".encode("latin-1")

    def refuse(self, refused: HttpRefused) -> None:
        """Send the response to a refused request."""
        self.send(problem(refused, is_control=self.is_control))

    def fail(self) -> None:
        """Close the connection after a failure. If no response has begun, first send 500."""
        self.closes = True
        if self.phase is _WAITING:
            self.refuse(internal_error())
        elif self.phase is _STREAMING:
            self._line.abort()

    # ---- a response in parts -------------------------------------------------------------------

    def start(self, status: int, headers: Headers) -> ResponseStream:
        """Begin a response whose length is unknown. Drop it if a response was already sent."""
        if self.phase is not _WAITING:
            self._drop(status)
            return self._nowhere()
        self._omits_body = self._is_head or status in _BODILESS
        self._is_chunked = self._is_modern and status not in _BODILESS
        if not self._is_modern and not self._omits_body:
            self.closes = True  # the end of the connection is the end of the response
        framing = "Transfer-Encoding: chunked\r\n" if self._is_chunked else ""
        try:
            head = self._encode_head(status, headers, framing)
        except (ValueError, TypeError):
            _log.exception("a response could not be encoded")
            self.fail()
            return self._nowhere()
        self.phase = EXCHANGE.next(self.phase, ExchangeEvent.RESPONSE_BEGUN)
        self._put(head)
        self._line.advance()
        return self

    def _nowhere(self) -> "Exchange":
        """Return a stream for a dropped response. Everything that is written to it is dropped."""
        return Exchange(self._line, self._prefixes, phase=ExchangePhase.GONE)

    def write(self, data: bytes) -> None:
        """Send a part of the body. Do nothing if the client is gone."""
        if self._omits_body or not data:
            return
        if self.phase is _STREAMING:
            self._put(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)
        elif self.phase is ExchangePhase.COMPLETE:
            _log.error("a handler wrote to a response that had already ended")

    def write_piece(self, piece: SharedBytes) -> bool:
        """Send a part that several responses share. Return True if the stream is blocked now."""
        line = self._line
        if not self._is_chunked or self._omits_body or not line.is_turn(self):
            self.write(piece.data)
            return self.is_blocked
        line.output.account.is_short = False
        line.output.emit(piece.chunk)
        return line.output.is_blocked

    def end(self) -> None:
        """Complete the response."""
        if self.phase is _STREAMING:
            if self._is_chunked and not self._omits_body:
                self._put(LAST_CHUNK)
            self.phase = EXCHANGE.next(self.phase, ExchangeEvent.RESPONSE_COMPLETE)
            self._gone = self._drained = ()
            self._line.advance()

    @property
    def is_blocked(self) -> bool:
        """True if the writer has to wait before it writes the next part.

        Either the client reads too slowly, or an earlier response is not sent yet.
        """
        if self.phase is ExchangePhase.GONE:
            return False
        return not self._line.is_turn(self) or self._line.output.is_blocked

    def on_drain(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, as soon as the stream is no longer blocked."""
        if not self.is_blocked:
            self._line.loop.call_soon(lambda: _guarded(callback))
        else:
            self._drained += (callback,)

    # ---- disconnects, and the order of responses -------------------------------------------------

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Call `callback` if the client disconnects before the response is complete."""
        if self.phase is ExchangePhase.GONE:
            _guarded(callback)
        else:
            self._gone += (callback,)

    @property
    def is_over(self) -> bool:
        """True if nothing more can be sent: the response is complete, or the client is gone."""
        return self.phase >= ExchangePhase.COMPLETE

    @property
    def account(self) -> UnreadAccount:
        """The account of the connection, which counts the bytes that the client has not read."""
        return self._line.output.account

    @property
    def peercert(self) -> Mapping[str, Any] | None:
        """The verified certificate of the client, as `ssl` returns it, or None."""
        return self._line.output.peercert

    def client_gone(self) -> None:
        """Drop held bytes. If the response is incomplete, call the callbacks set with `on_gone`."""
        self._held = self._drained = ()
        if self.phase < ExchangePhase.COMPLETE:
            self.phase = EXCHANGE.next(self.phase, ExchangeEvent.CLIENT_GONE)
            callbacks, self._gone = self._gone, ()
            for callback in callbacks:
                _guarded(callback)

    def _put(self, data: bytes) -> None:
        if self._line.is_turn(self):
            self._line.output.emit(data)
        else:
            self._held += (data,)

    def take_turn(self) -> None:
        """Send the held bytes, because all earlier responses have been sent."""
        held, self._held = self._held, ()
        for data in held:
            self._line.output.emit(data)
        if self._drained:
            self.drained()

    def drained(self) -> None:
        """Call the callbacks set with `on_drain`, because the stream is no longer blocked."""
        callbacks, self._drained = self._drained, ()
        for callback in callbacks:
            _guarded(callback)


def _guarded(callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception:  # noqa: BLE001 - the boundary of a callback
        _log.exception("a callback for a response raised an exception")
