"""One request's answer: encoded here, sent in its turn by the connection."""

import logging
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, Protocol

from msgspec import Struct

from semel.broker.clock import Clock
from semel.server.http import Headers, HttpRefused, Response, ResponseStream, SharedBytes, problem
from semel.wire.rendering import CONSTANT_LINES, EXPOSED_LINE

# ---- starts --------------------------------------------------------------------------------------
# The first lines of every answer: the status, the date, and what is the same on all of them.
#
# Nothing of it is made per answer: a line is made once per status and second, when it is needed.


_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus
}


class PrefixLines(dict[int, bytes]):
    """The first lines of an answer, by its status."""

    def __init__(self, constant: str) -> None:
        super().__init__()
        self._constant = constant
        self._date = ""

    def __missing__(self, status: int) -> bytes:
        line = _STATUS_LINES.get(status) or f"HTTP/1.1 {status} \r\n"
        return self.setdefault(status, (line + self._date + self._constant).encode("ascii"))

    def turn(self, date: str) -> None:
        """Begin another second."""
        self._date = date
        self.clear()


class PrefixCache:
    """The first lines of all answers of a listener; `turn` must be called every second."""

    def __init__(self, clock: Clock) -> None:
        self.plain: Final = PrefixLines(CONSTANT_LINES)
        self.exposed: Final = PrefixLines(CONSTANT_LINES + EXPOSED_LINE)
        self._clock = clock
        self._second = -1
        self.turn()

    def turn(self) -> None:
        """Look whether another second has begun."""
        second = self._clock.now_ms() // 1000
        if second != self._second:
            self._second = second
            date = f"Date: {formatdate(second, usegmt=True)}\r\n"
            self.plain.turn(date)
            self.exposed.turn(date)


# ---- exchange ------------------------------------------------------------------------------------


_log: Final = logging.getLogger("semel.server")

# Below this, one copy is cheaper than a second buffer on its way to the kernel.
_JOIN_BYTES_MAX: Final = 16 * 1024
_BARE: Final = frozenset({204, 304})  # never with a body, nor with its length

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"


class ExchangeLine(Protocol):
    """What an exchange needs of its connection."""

    @property
    def is_write_blocked(self) -> bool:
        """The client reads too slowly."""

    def is_turn(self, exchange: "Exchange") -> bool:
        """Nothing is owed to the client before this exchange's answer."""

    def emit(self, data: bytes) -> None:
        """Send bytes of the exchange whose turn it is."""

    def complete(self, exchange: "Exchange", data: bytes) -> bool:
        """Send the last bytes of an exchange and pass the turn on; False if it is not its turn."""

    def advance(self) -> None:
        """Look whether the next exchange's turn has come."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call back from the loop."""

    def abort(self) -> None:
        """Cut the line: what was sent cannot be completed."""


class Exchange(Struct, eq=False, gc=False):
    """A request that waits for its answer: its Responder, and its Stream if it has one.

    A Struct because one is made per request. It is in no cycle once it is complete or lost.
    """

    _line: ExchangeLine
    _starts: PrefixLines
    _is_head: bool = False
    _is_modern: bool = True
    closes: bool = False
    body_bytes: int = 0
    is_started: bool = False
    is_complete: bool = False
    _is_chunked: bool = False
    _omits_body: bool = False
    _is_gone: bool = False
    _held: list[bytes] | None = None
    _gone: list[Callable[[], None]] | None = None
    _drained: list[Callable[[], None]] | None = None

    # ---- a whole answer ------------------------------------------------------------------------

    def send(self, response: Response) -> None:
        """Answer, once."""
        if self.is_started:
            _log.error("a request was answered twice, with %d last", response.status)
            return
        status, body = response.status, response.body
        # To HEAD no length is better than one that GET would not have.
        is_bare = status in _BARE or (self._is_head and not body)
        framing = "" if is_bare else f"Content-Length: {len(body)}\r\n"
        try:
            data = self._encode_head(status, response.headers, framing)
        except (ValueError, TypeError):
            _log.exception("an answer could not be encoded")
            self.fail()
            return
        if body and framing and not self._is_head:
            if len(body) <= _JOIN_BYTES_MAX:
                data += body
            else:
                self._put(data)
                data = body
        self._complete(data)

    def send_lines(self, status: int, lines: bytes) -> None:
        """Answer, once, without a body and with header lines that are encoded already."""
        if self.is_started:
            _log.error("a request was answered twice, with %d last", status)
            return
        framing = b"" if status in _BARE else b"Content-Length: 0\r\n"
        if self.closes or not self._is_modern:
            framing += self._connection_line().encode("ascii")
        self._complete(b"%b%b%b\r\n" % (self._starts[status], lines, framing))

    def _complete(self, data: bytes) -> None:
        """Send the end of the answer, or all of it."""
        self.is_started = self.is_complete = True
        self._gone = None
        if not self._line.complete(self, data):
            self._hold(data)

    def _connection_line(self) -> str:
        if self.closes:
            return "Connection: close\r\n"
        return "" if self._is_modern else "Connection: keep-alive\r\n"

    def _encode_head(self, status: int, headers: Headers, framing: str) -> bytes:
        framing += self._connection_line()
        if not 200 <= status <= 599:
            raise ValueError(f"{status} is not the status of an answer")
        fields = "".join([f"{name}: {value}\r\n" for name, value in headers])
        # A value may quote what a client sent: it must not become a line of its own.
        if not fields.count("\r") == fields.count("\n") == len(headers) or "\0" in fields:
            raise ValueError("an answer's header holds a line end")
        return self._starts[status] + f"{fields}{framing}\r\n".encode("latin-1")

    def fail(self) -> None:
        """The handler broke: say so if nothing was said yet, and end the connection."""
        self.closes = True
        if not self.is_started:
            self.send(
                problem(HttpRefused(500, "internal_error", "the server has a bug; see its log"))
            )
        elif not self.is_complete:
            self._line.abort()

    # ---- an answer in pieces -------------------------------------------------------------------

    def start(self, status: int, headers: Headers) -> ResponseStream:
        """Begin an answer of unknown length."""
        if self.is_started:
            _log.error("a request was answered twice, with %d last", status)
            return _Nowhere()
        self._omits_body = self._is_head or status in _BARE
        self._is_chunked = self._is_modern and status not in _BARE
        if not self._is_modern and not self._omits_body:
            self.closes = True  # its end is the end of the connection
        framing = "Transfer-Encoding: chunked\r\n" if self._is_chunked else ""
        try:
            head = self._encode_head(status, headers, framing)
        except (ValueError, TypeError):
            _log.exception("an answer could not be encoded")
            self.fail()
            return _Nowhere()
        self.is_started = True
        self._put(head)
        self._line.advance()
        return self

    def write(self, data: bytes) -> None:
        """Send a piece; to a client that is gone, nothing."""
        if self._omits_body or self._is_gone or not data:
            return
        if self.is_complete:
            _log.error("a piece was written after the end of its answer")
        elif self._is_chunked:
            self._put(b"%x\r\n%b\r\n" % (len(data), data))
        else:
            self._put(data)

    def write_piece(self, piece: SharedBytes) -> bool:
        """Send a piece that others get as well; tell whether the stream is blocked now."""
        line = self._line
        if not self._is_chunked or self._omits_body or not line.is_turn(self):
            self.write(piece.data)
            return self.is_blocked
        line.emit(piece.chunk)
        return line.is_write_blocked

    def end(self) -> None:
        """The answer is complete."""
        if self._is_gone or self.is_complete:
            return
        if self._is_chunked and not self._omits_body:
            self._put(LAST_CHUNK)
        self.is_complete = True
        self._gone = self._drained = None
        self._line.advance()

    @property
    def is_blocked(self) -> bool:
        """The client reads too slowly, or an earlier answer is not out yet: better wait."""
        if self._is_gone:
            return False
        return not self._line.is_turn(self) or self._line.is_write_blocked

    def on_drain(self, callback: Callable[[], None]) -> None:
        """Call back once, when the stream is not, or no longer, blocked."""
        if not self.is_blocked:
            self._line.call_soon(lambda: _guarded(callback))
        elif self._drained is None:
            self._drained = [callback]
        else:
            self._drained.append(callback)

    # ---- the connection's side -----------------------------------------------------------------

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Call back if the client goes away before the answer is complete."""
        if self._is_gone:
            _guarded(callback)
        elif self._gone is None:
            self._gone = [callback]
        else:
            self._gone.append(callback)

    @property
    def is_over(self) -> bool:
        """The answer is complete, or its client is gone."""
        return self.is_complete or self._is_gone

    def client_gone(self) -> None:
        """The client is gone."""
        if self._is_gone:
            return
        self._is_gone = True
        callbacks, self._gone, self._drained, self._held = self._gone, None, None, None
        for callback in callbacks or ():
            _guarded(callback)

    def _put(self, data: bytes) -> None:
        if self._line.is_turn(self):
            self._line.emit(data)
        else:
            self._hold(data)

    def _hold(self, data: bytes) -> None:
        if self._is_gone:
            return
        if self._held is None:
            self._held = [data]
        else:
            self._held.append(data)

    def take_turn(self) -> None:
        """Every earlier answer is out: send what was held back."""
        held, self._held = self._held, None
        for data in held or ():
            self._line.emit(data)
        if self._drained is not None:
            self.drained()

    def drained(self) -> None:
        """The client has caught up."""
        callbacks, self._drained = self._drained, None
        for callback in callbacks or ():
            _guarded(callback)


class _Nowhere:
    """The stream of an answer that was refused: everything written is dropped."""

    is_blocked: Final = False

    def write(self, data: bytes) -> None:
        """Drop it."""

    def write_piece(self, piece: SharedBytes) -> bool:
        """Drop it."""
        del piece
        return False

    def end(self) -> None:
        """Nothing was begun."""

    def on_drain(self, callback: Callable[[], None]) -> None:
        """It will never drain."""


def _guarded(callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception:  # noqa: BLE001 - the boundary of a callback
        _log.exception("a callback of an answer failed")
