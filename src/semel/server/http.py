"""HTTP as values: the requests a handler gets, how it responds, and refusals of the connection."""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, Protocol

from msgspec import Struct

from semel.wire.problems import Problem
from semel.wire.rendering import Response
from semel.wire.requests import AppendPlan
from semel.wire.responses import problem_response

__all__ = [
    "Handler",
    "Head",
    "Headers",
    "HttpRefused",
    "Request",
    "Responder",
    "Response",
    "ResponseStream",
    "SharedBytes",
    "internal_error",
    "malformed",
    "problem",
]

Headers = list[tuple[str, str]]

_NOTHING: Final[frozenset[str]] = frozenset()


class Head(Struct, gc=False, eq=False):
    """A parsed request head. Requests with the same head share one (`HeadCache`).

    `plan` is set by the handler: the parsed append, for later requests with the same head.
    """

    method: str
    path: str  # still percent-encoded, without the query
    query: str  # still percent-encoded, without the "?"
    headers: Mapping[str, str]  # by lower-case name; repeated ones are joined with ", "
    repeated: frozenset[str] = _NOTHING  # the names of repeated headers
    is_modern: bool = True  # HTTP/1.1
    is_head: bool = False
    closes: bool = False  # the client sends no further request
    is_expecting: bool = False  # the client waits for 100 Continue before it sends the body
    is_exposed: bool = True  # scripts of other origins may read the headers of the response
    plan: AppendPlan | None = None


class Request(Struct, gc=False, eq=False):
    """One complete request. Bytes above ASCII in its head are decoded as Latin-1."""

    head: Head
    body: bytes = b""
    # The two numbers that may differ between requests with the same head. Empty: see `head`.
    length: bytes = b""  # Content-Length
    seq: bytes = b""  # Producer-Seq

    @property
    def method(self) -> str:
        return self.head.method

    @property
    def path(self) -> str:
        return self.head.path

    @property
    def query(self) -> str:
        return self.head.query

    @property
    def headers(self) -> Mapping[str, str]:
        """All headers, by lower-case name. The mapping may be shared: do not change it."""
        headers = self.head.headers
        if self.length:
            headers = {**headers, "content-length": self.length.decode("ascii")}
        if self.seq:
            headers = {**headers, "producer-seq": self.seq.decode("ascii")}
        return headers

    @property
    def repeated(self) -> frozenset[str]:
        return self.head.repeated


class SharedBytes:
    """A part of several responses, framed once for all of them."""

    __slots__ = ("chunk", "data")

    def __init__(self, data: bytes) -> None:
        self.data: Final = data
        self.chunk: Final = b"%x\r\n%b\r\n" % (len(data), data)


class ResponseStream(Protocol):
    """A response that is written in parts."""

    def write(self, data: bytes) -> None:
        """Send a part; nothing if the client is gone."""

    def write_piece(self, piece: SharedBytes) -> bool:
        """Send a part that several responses share; return whether the stream is blocked now."""

    def end(self) -> None:
        """Complete the response."""

    @property
    def is_blocked(self) -> bool:
        """Whether to wait: the client reads too slowly, or an earlier response is not sent yet."""

    def on_drain(self, callback: Callable[[], None]) -> None:
        """Call back once, when the stream is not, or no longer, blocked."""


class Responder(Protocol):
    """Responds to one request, now or later; responses are sent in the order of the requests."""

    def send(self, response: Response) -> None:
        """Send the response. A second one is logged and dropped."""

    def send_lines(self, status: int, lines: bytes) -> None:
        """Send a response without a body, with encoded header lines; else as `send`."""

    def start(self, status: int, headers: Headers) -> ResponseStream:
        """Begin a response of unknown length. A second response is logged and dropped."""

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Call back if the client goes away before the response is complete."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more can be sent: the response is complete, or the client is gone."""


Handler = Callable[[Request, Responder], None]


class HttpRefused(Exception):
    """Raised for a request that the connection refuses; the connection is closed after it."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


def malformed(message: str) -> HttpRefused:
    """Return the refusal of a request that is not valid HTTP: its meaning is never guessed."""
    return HttpRefused(400, "malformed_request", message)


def internal_error() -> HttpRefused:
    """Return the refusal of a request at which the server failed."""
    return HttpRefused(500, "internal_error", "the server has a bug; see its log")


def problem(refused: HttpRefused) -> Response:
    """Return the response to a refused request."""
    is_overloaded = refused.status == HTTPStatus.SERVICE_UNAVAILABLE
    headers = [("Retry-After", "1")] if is_overloaded else []
    # Only a request whose handler failed can have had an effect.
    applied = "unknown" if refused.status == HTTPStatus.INTERNAL_SERVER_ERROR else "no"
    return problem_response(
        Problem(refused.status, refused.code, refused.message, {}, headers, applied)
    )
