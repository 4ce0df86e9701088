"""JSON documents of semel's own calls: sent, asked for, and read."""

from math import inf
from typing import Any, Final, TypeVar

import msgspec

from semel.client.answers import Answer
from semel.client.calls import Site
from semel.client.errors import NotSupported, ProtocolError
from semel.client.flows import Asked, Flow, Kind, ask
from semel.client.outgoing import Request
from semel.client.refusals import error_of
from semel.client.values import plain
from semel.model.media import JSON_MEDIA_TYPE, normalise
from semel.wire.media import PROBLEM

T = TypeVar("T")
_JSON: Final = (("Content-Type", JSON_MEDIA_TYPE),)
# What a page of semel's may lack; any other 404 says that there is no such page.
_LACKING: Final = frozenset(
    {
        "stream_not_found",
        "stream_gone",
        "UNKNOWN_PRODUCER_ID",
        "INVALID_TXN_ID",
        "unknown_sink",
        "snapshot_not_found",
    }
)


def get(site: Site, target: str) -> Flow[Answer]:
    """Ask for a page."""
    asked = yield from ask(Request("GET", target), Kind.READ, retries=site.retries)
    require_page(asked)
    return asked.expect(200)


def post(site: Site, target: str, document: Any, *, silence_seconds: float = inf) -> Flow[Asked]:
    """Send a document that changes nothing the second time."""
    request = Request("POST", target, _JSON, msgspec.json.encode(document, enc_hook=plain))
    asked = yield from ask(
        request, Kind.REPEATABLE, retries=site.retries, silence_seconds=silence_seconds
    )
    require_page(asked)
    return asked


def require_page(asked: Asked) -> None:
    """Tell a server that lacks a page from one that lacks what was asked for there."""
    answer = asked.answer
    if answer.status not in (404, 405):
        return
    error = error_of(answer.status, answer.headers, answer.body)
    is_semel = normalise(answer.headers.get("content-type", "")) == PROBLEM
    if not is_semel or error.code not in _LACKING:
        raise NotSupported(f"this server has no such page: {error.message}", status=answer.status)


def decoded(answer: Answer, kind: type[T]) -> T:
    """Read a document; ProtocolError if it is another one."""
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"the answer is not what was asked for: {error}") from None
