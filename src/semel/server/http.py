"""HTTP as values: what a handler gets, what it answers with, and refusals made before it."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Final, Protocol

from msgspec import Struct, json

from semel.wire.media import PROBLEM

Headers = list[tuple[str, str]]

_NOTHING: Final[frozenset[str]] = frozenset()


class Request(Struct, gc=False):
    """One whole request. Header names are lower-case; bytes above ASCII are read as Latin-1."""

    method: str
    path: str  # still percent-encoded, without the query
    query: str  # still percent-encoded, without the "?"
    headers: dict[str, str]  # one that came twice is joined with ", "
    repeated: frozenset[str] = _NOTHING  # the names that came more than once
    body: bytes = b""
    is_head: bool = False


class Response(Struct, gc=False):
    """A whole answer. Content-Length, Transfer-Encoding and Connection are not the handler's."""

    status: int
    headers: Headers
    body: bytes = b""


class Stream(Protocol):
    """An answer that is written piece by piece."""

    def write(self, data: bytes) -> None:
        """Send a piece; to a client that is gone, nothing."""

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

    def start(self, status: int, headers: Headers) -> Stream:
        """Begin an answer of unknown length."""

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Call back if the client goes away before the answer is complete."""


Handler = Callable[[Request, Responder], None]


class Refused(Exception):
    """The request is answered here and the connection ends."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


def malformed(message: str) -> Refused:
    """The request is not the HTTP we speak; nobody may guess what was meant."""
    return Refused(400, "malformed_request", message)


def problem(refused: Refused) -> Response:
    """A refusal as an answer."""
    headers = [("Content-Type", PROBLEM)]
    if refused.status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers.append(("Retry-After", "1"))
    # Only a request that reached its handler, which then broke, can have had an effect.
    applied = "unknown" if refused.status == HTTPStatus.INTERNAL_SERVER_ERROR else "no"
    body = {"code": refused.code, "message": refused.message, "applied": applied}
    return Response(refused.status, headers, json.encode(body))
