"""The types between connections and handlers: requests, responders, and refused requests."""

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

    The handler sets `plan` to the parsed append, so that later requests with the same head need not
    be parsed again.
    """

    method: str
    path: str  # still percent-encoded, without the query
    query: str  # still percent-encoded, without the "?"
    headers: Mapping[str, str]  # by lower-case name; values of repeated names are joined with ", "
    repeated: frozenset[str] = _NOTHING  # the names of repeated headers
    is_modern: bool = True  # HTTP/1.1
    is_head: bool = False
    closes: bool = False  # the connection closes after the response
    is_expecting: bool = False  # the client waits for 100 Continue before it sends the body
    is_exposed: bool = True  # scripts of other origins may read the headers of the response
    plan: AppendPlan | None = None


class Request(Struct, gc=False, eq=False):
    """One complete request. Bytes above ASCII in its head are decoded as Latin-1."""

    head: Head
    body: bytes = b""
    # The two numbers that may differ between requests with a cached head, which does not have them.
    # If one is empty, the value, if there is one, is in `head.headers`.
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
    """Bytes that several responses have in common, encoded once as a body chunk."""

    __slots__ = ("chunk", "data")

    def __init__(self, data: bytes) -> None:
        self.data: Final = data
        self.chunk: Final = b"%x\r\n%b\r\n" % (len(data), data)


class ResponseStream(Protocol):
    """A response that is written in parts."""

    def write(self, data: bytes) -> None:
        """Send a part; do nothing if the client is gone."""

    def write_piece(self, piece: SharedBytes) -> bool:
        """Send a part that several responses share; return whether the stream is blocked now."""

    def end(self) -> None:
        """Complete the response."""

    @property
    def is_blocked(self) -> bool:
        """Whether the writer has to wait.

        Either the client reads too slowly, or an earlier response is not sent yet.
        """

    def on_drain(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, as soon as the stream is not blocked."""


class Responder(Protocol):
    """The response side of one request. Responses are sent in the order of their requests."""

    def send(self, response: Response) -> None:
        """Send the response. A second response is logged and dropped."""

    def send_lines(self, status: int, lines: bytes) -> None:
        """Send a response without a body. `lines` are its encoded header lines."""

    def start(self, status: int, headers: Headers) -> ResponseStream:
        """Begin a response of unknown length. A second response is logged and dropped."""

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Call `callback` if the client disconnects before the response is complete."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more can be sent: the response is complete, or the client is gone."""


Handler = Callable[[Request, Responder], None]


class HttpRefused(Exception):
    """Raised for a request that is refused. The connection sends the problem, then closes."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


def malformed(message: str) -> HttpRefused:
    """Return the error for a request that is not valid HTTP; its meaning is never guessed."""
    return HttpRefused(400, "malformed_request", message)


def internal_error() -> HttpRefused:
    """Return the error for a request whose handler raised an exception."""
    return HttpRefused(500, "internal_error", "the server has a bug; see its log")


def problem(refused: HttpRefused) -> Response:
    """Return the response to a refused request."""
    is_overloaded = refused.status == HTTPStatus.SERVICE_UNAVAILABLE
    headers = [("Retry-After", "1")] if is_overloaded else []
    # Only a request whose handler failed may have been applied.
    applied = "unknown" if refused.status == HTTPStatus.INTERNAL_SERVER_ERROR else "no"
    return problem_response(
        Problem(refused.status, refused.code, refused.message, {}, headers, applied)
    )
