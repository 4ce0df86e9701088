"""The types that connections and handlers share: requests, responders and refused requests."""

from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final, Protocol

from msgspec import Struct

from semel.model.rights import Caller
from semel.server.unread_budget import UnreadAccount
from semel.wire.control_errors import control_problem
from semel.wire.problems import Problem
from semel.wire.rendering import Response
from semel.wire.requests import AppendPlan
from semel.wire.responses import problem_response
from semel.wire.topics import TopicPlan

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
    "refused_problem",
]

Headers = list[tuple[str, str]]

_NOTHING: Final[frozenset[str]] = frozenset()


class Head(Struct, gc=False, eq=False):
    """A parsed request head. Requests with the same head share one instance (see `HeadCache`).

    `plan` has the settings of an append, parsed from the headers. The first append with this head
    sets `plan`, unless the requests with this head cannot share the settings. A head with a
    `refusal` never has a plan.
    """

    method: str
    path: str  # still percent-encoded, without the query
    query: str  # still percent-encoded, without the "?"
    # Keyed by lower-case name. The values of a repeated header are joined with ", ".
    headers: Mapping[str, str]
    repeated: frozenset[str] = _NOTHING  # the names of repeated headers
    is_modern: bool = True  # HTTP/1.1
    is_head: bool = False
    closes: bool = False  # the connection closes after the response
    is_expecting: bool = False  # the client waits for 100 Continue before it sends the body
    # What `BrowserPolicy` decided: which constant headers the response has, and the response if the
    # request is refused.
    cors: str = ""
    refusal: Problem | None = None
    is_control: bool = False  # the address is one of subscriptions, whose errors have a form
    plan: AppendPlan | None = None
    topic_plan: TopicPlan | None = None  # the same for appends to a topic
    # Who sends the requests with this head, if the header Authorization names a valid caller. The
    # engine checks with every command whether the caller is still valid.
    caller: Caller | None = None
    # Of a cached head: whether its requests have Content-Length, Producer-Seq and Message-Key.
    has_length: bool = False
    has_seq: bool = False
    has_key: bool = False


class Request(Struct, gc=False, eq=False):
    """One complete request. Non-ASCII bytes in its head are decoded as Latin-1."""

    head: Head
    body: bytes = b""
    # Requests with the same cached head can differ in two numbers and a key. So a cached head does
    # not contain these three headers, and their values are here. If a field is empty, then the
    # header was not sent, or its value is in `head.headers`.
    length: bytes = b""  # Content-Length
    seq: bytes = b""  # Producer-Seq
    message_key: bytes = b""  # Message-Key, printable ASCII, only of appends to topics
    detail: str = ""  # the second name in the address, such as the id of a group's member

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
        """All headers, keyed by lower-case name. Do not change the mapping, as it can be shared."""
        headers = self.head.headers
        if self.length:
            headers = {**headers, "content-length": self.length.decode("ascii")}
        if self.seq:
            headers = {**headers, "producer-seq": self.seq.decode("ascii")}
        if self.message_key:
            headers = {**headers, "message-key": self.message_key.decode("ascii")}
        return headers

    @property
    def repeated(self) -> frozenset[str]:
        return self.head.repeated


class SharedBytes:
    """Bytes that are sent in several responses. They are encoded as a body chunk only once."""

    __slots__ = ("chunk", "data")

    def __init__(self, data: bytes) -> None:
        self.data: Final = data
        self.chunk: Final = b"%x\r\n%b\r\n" % (len(data), data)


class ResponseStream(Protocol):
    """A response whose body is written in parts."""

    def write(self, data: bytes) -> None:
        """Send a part of the body. Do nothing if the client is gone."""

    def write_piece(self, piece: SharedBytes) -> bool:
        """Send a part that several responses share. Return True if the stream is blocked now."""

    def end(self) -> None:
        """Complete the response."""

    @property
    def is_blocked(self) -> bool:
        """True if the writer has to wait before it writes the next part.

        Either the client reads too slowly, or an earlier response is not sent yet.
        """

    def on_drain(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, as soon as the stream is no longer blocked."""


class Responder(Protocol):
    """Sends the response to one request. Responses are sent in the order of the requests.

    `caller` is who sent the request. It is None while access is off, and for `/health`.
    """

    caller: Caller | None

    def send(self, response: Response) -> None:
        """Send the response. If a response was already sent, log an error and drop the new one."""

    def send_lines(self, status: int, lines: bytes, body: bytes = b"") -> None:
        """Send a response to a request that is not a HEAD. `lines` are its encoded header lines."""

    def start(self, status: int, headers: Headers) -> ResponseStream:
        """Begin a response whose length is unknown. Drop it if a response was already sent."""

    def run(self, steps: Iterator[None]) -> None:
        """Handle the request in steps: run the first step now, and the others on later turns.

        Later requests of the same connection wait for the last step, so that requests are handled
        in order. If a step raises an exception, the response is 500.
        """

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Call `callback` if the client disconnects before the response is complete."""

    @property
    def is_over(self) -> bool:
        """True if nothing more can be sent: the response is complete, or the client is gone."""

    @property
    def account(self) -> UnreadAccount:
        """The account of the connection, which counts the bytes that the client has not read."""

    @property
    def peercert(self) -> Mapping[str, Any] | None:
        """The verified certificate of the client, as `ssl` returns it, or None."""


Handler = Callable[[Request, Responder], None]


class HttpRefused(Exception):
    """Raised to refuse a request. The connection sends the refusal as a response, then closes.

    `cors` and `is_control` are those of the request head, if the head was parsed before the request
    was refused. Of another head, `is_control` is set by its beginning.
    """

    def __init__(self, status: int, code: str, message: str, head: Head | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.cors = "" if head is None else head.cors
        self.is_control = head is not None and head.is_control


def malformed(message: str) -> HttpRefused:
    """Return the error for invalid HTTP. The server never guesses what an invalid request means."""
    return HttpRefused(400, "malformed_request", message)


def internal_error() -> HttpRefused:
    """Return the error for a request whose handler raised an exception."""
    return HttpRefused(500, "internal_error", "the server failed during this request; see its log")


def problem(refused: HttpRefused, *, is_control: bool = False) -> Response:
    """Return the response to a refused request, in the form of its address."""
    response_of = control_problem if is_control else problem_response
    return response_of(refused_problem(refused))


def refused_problem(refused: HttpRefused) -> Problem:
    """Return the problem of a refused request."""
    is_overloaded = refused.status == HTTPStatus.SERVICE_UNAVAILABLE
    headers = [("Retry-After", "1")] if is_overloaded else []
    # If the handler failed, it is unknown whether the request was applied. Every other refused
    # request was not applied.
    applied = "unknown" if refused.status == HTTPStatus.INTERNAL_SERVER_ERROR else "no"
    return Problem(refused.status, refused.code, refused.message, {}, headers, applied)
