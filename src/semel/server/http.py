"""HTTP as values: what a handler gets, what it answers with, and refusals made before it."""

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
    """What the head of a request says. Requests with the same head share it (`heads.py`).

    `plan` is the handler's: what it made of this head, for the next request that has it.
    """

    method: str
    path: str  # still percent-encoded, without the query
    query: str  # still percent-encoded, without the "?"
    headers: Mapping[str, str]  # lower-case names; one that came twice is joined with ", "
    repeated: frozenset[str] = _NOTHING  # the names that came more than once
    is_modern: bool = True  # HTTP/1.1
    is_head: bool = False
    closes: bool = False  # the client will not go on after this request
    is_expecting: bool = False  # the client waits for a word from us before it sends the body
    is_exposed: bool = True  # a script of another site may read the headers of the answer
    plan: AppendPlan | None = None


class Request(Struct, gc=False, eq=False):
    """One whole request. Bytes above ASCII in its head are read as Latin-1."""

    head: Head
    body: bytes = b""
    # The two numbers that differ between requests of the same head; empty: `head` has them, if any.
    length: bytes = b""  # Content-Length
    seq: bytes = b""  # Producer-Seq

    @property
    def method(self) -> str:
        """The method, as it was sent."""
        return self.head.method

    @property
    def path(self) -> str:
        """The path, still percent-encoded, without the query."""
        return self.head.path

    @property
    def query(self) -> str:
        """The query, still percent-encoded, without the "?"."""
        return self.head.query

    @property
    def headers(self) -> Mapping[str, str]:
        """All header lines by their lower-case names. They are shared: nobody changes them."""
        headers = self.head.headers
        if self.length:
            headers = {**headers, "content-length": self.length.decode("ascii")}
        if self.seq:
            headers = {**headers, "producer-seq": self.seq.decode("ascii")}
        return headers

    @property
    def repeated(self) -> frozenset[str]:
        """The names of the headers that came more than once."""
        return self.head.repeated


class SharedBytes:
    """A piece of many answers: framed once for all of them."""

    __slots__ = ("chunk", "data")

    def __init__(self, data: bytes) -> None:
        self.data: Final = data
        self.chunk: Final = b"%x\r\n%b\r\n" % (len(data), data)


class ResponseStream(Protocol):
    """An answer that is written piece by piece."""

    def write(self, data: bytes) -> None:
        """Send a piece; to a client that is gone, nothing."""

    def write_piece(self, piece: SharedBytes) -> bool:
        """Send a piece that others get as well; tell whether the stream is blocked now."""

    def end(self) -> None:
        """The answer is complete."""

    @property
    def is_blocked(self) -> bool:
        """The client reads too slowly, or an earlier answer is not out yet: better wait."""

    def on_drain(self, callback: Callable[[], None]) -> None:
        """Call back once, when the stream is not, or no longer, blocked."""


class Responder(Protocol):
    """Answers one request, now or later; the wire keeps the order of the requests."""

    def send(self, response: Response) -> None:
        """Answer, once."""

    def send_lines(self, status: int, lines: bytes) -> None:
        """Answer, once, without a body and with header lines that are encoded already."""

    def start(self, status: int, headers: Headers) -> ResponseStream:
        """Begin an answer of unknown length."""

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Call back if the client goes away before the answer is complete."""

    @property
    def is_over(self) -> bool:
        """The answer is complete, or its client is gone."""


Handler = Callable[[Request, Responder], None]


class HttpRefused(Exception):
    """The request is answered here and the connection ends."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


def malformed(message: str) -> HttpRefused:
    """The request is not the HTTP we speak; nobody may guess what was meant."""
    return HttpRefused(400, "malformed_request", message)


def internal_error() -> HttpRefused:
    """Return the refusal of a request at which the server failed."""
    return HttpRefused(500, "internal_error", "the server has a bug; see its log")


def problem(refused: HttpRefused) -> Response:
    """A refusal as an answer."""
    is_overloaded = refused.status == HTTPStatus.SERVICE_UNAVAILABLE
    headers = [("Retry-After", "1")] if is_overloaded else []
    # Only a request that reached its handler, which then broke, can have had an effect.
    applied = "unknown" if refused.status == HTTPStatus.INTERNAL_SERVER_ERROR else "no"
    told = Problem(refused.status, refused.code, refused.message, {}, headers, applied)
    return problem_response(told)
