"""The calls that are about a server and not one stream, and semel's own about producers."""

from math import inf
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Struct

from semel.client.errors import NotSupported, ProtocolError, Refused
from semel.client.flows import Exchanged, Flow, RetrySafety, ask
from semel.client.refusals import error_of
from semel.client.requests import Request, query
from semel.client.response_parser import Response
from semel.client.stream_calls import ServerConfig, StreamCalls
from semel.client.values import ProducerClaim, ProducerState, Registration, StreamEntry, to_plain
from semel.model.media import JSON_MEDIA_TYPE, normalise
from semel.wire.headers import PROBLEM

# ---- operator calls ------------------------------------------------------------------------------
# The calls of an operator: transactions decided by hand, sinks and groups looked after.


Document = dict[str, Any]
_TRANSACTIONS: Final = "/v1/transactions"
_SINKS: Final = "/v1/sinks"
_GROUPS: Final = "/v1/groups"


class _Transactions(Struct, frozen=True):
    transactions: list[Document]
    next: int | None = None


class _Sinks(Struct, frozen=True):
    sinks: list[Document]


# ---- transactions --------------------------------------------------------------------------------


def list_transactions(
    site: ServerConfig, state: str | None, stream: str | None
) -> Flow[list[Document]]:
    """List the transactions that are not decided."""
    found: list[Document] = []
    after = 0
    while True:
        target = _target(site, _TRANSACTIONS) + query(
            state=state, stream=stream, after=after, limit=_LISTING_COUNT
        )
        page = decoded((yield from get(site, target)), _Transactions)
        found += page.transactions
        if page.next is None:
            return found
        if page.next <= after:
            raise ProtocolError("a list does not go on after its page")
        after = page.next


def show_transaction(site: ServerConfig, name: str, epoch: int | None) -> Flow[Document]:
    """Tell all about a transaction: the newest of its id, or that of an epoch."""
    target = _target(site, _TRANSACTIONS, name) + query(epoch=epoch)
    return decoded((yield from get(site, target)), Document)


def end_transaction(site: ServerConfig, name: str, epoch: int, action: str) -> Flow[Document]:
    """Commit, abort or fence a transaction by hand, whoever owns it."""
    target = _target(site, _TRANSACTIONS, name, action)
    wanted = {"transaction_epoch": epoch, "operator": True}
    return (yield from _post(site, target, wanted))


# ---- sinks ---------------------------------------------------------------------------------------


def list_sinks(site: ServerConfig) -> Flow[list[Document]]:
    """List the sinks."""
    return decoded((yield from get(site, _target(site, _SINKS))), _Sinks).sinks


def show_sink(site: ServerConfig, app: str) -> Flow[Document]:
    """Tell all about a sink."""
    return decoded((yield from get(site, _target(site, _SINKS, app))), Document)


def rebind_sink(site: ServerConfig, app: str, query_id: str, last_version: int) -> Flow[Document]:
    """Give a sink to another query, at a version."""
    wanted = {"query_id": query_id, "last_version": last_version}
    return (yield from _post(site, _target(site, _SINKS, app, "rebind"), wanted))


def forget_sink(site: ServerConfig, app: str) -> Flow[None]:
    """Drop what is known of a sink."""
    request = Request("DELETE", _target(site, _SINKS, app))
    asked = yield from ask(request, RetrySafety.REPEATABLE, retries=site.retries)
    require_page(asked)
    if asked.was_lost and asked.answer.status == 404:
        return  # the try whose answer was lost did it
    asked.expect(204)


# ---- groups --------------------------------------------------------------------------------------


def show_group(site: ServerConfig, group: str) -> Flow[Document]:
    """Tell where a group stands, and the step it has pinned."""
    found = decoded((yield from get(site, _target(site, _GROUPS, group, "offsets"))), Document)
    try:
        page = yield from get(site, _target(site, _GROUPS, group, "snapshot"))
    except Refused as error:
        if error.code != "snapshot_not_found":
            raise
        return {**found, "snapshot": None}
    return {**found, "snapshot": decoded(page, Document)}


# ---- all of them ---------------------------------------------------------------------------------


def _target(site: ServerConfig, prefix: str, *names: str) -> str:
    return site.address.target("/".join([prefix, *[quote(name, safe="") for name in names]]))


def _post(
    site: ServerConfig, target: str, document: object, kind: RetrySafety = RetrySafety.REPEATABLE
) -> Flow[Document]:
    request = Request("POST", target, _JSON, msgspec.json.encode(document))
    asked = yield from ask(request, kind, retries=site.retries)
    require_page(asked)
    return decoded(asked.expect(200), Document)


# ---- site calls ----------------------------------------------------------------------------------


_LISTING_COUNT: Final = 1_000
_PRODUCERS: Final = "/v1/producers"


class Listing(Struct, frozen=True):
    """A page of a listing; `next` is where the next one begins."""

    streams: list[StreamEntry]
    next: str | None = None


class _Producers(Struct, frozen=True):
    producers: list[ProducerState]
    next: str | None = None


def list_streams(
    site: ServerConfig, prefix: str, after: str | None, limit: int = _LISTING_COUNT
) -> Flow[Listing]:
    """Ask for a page of the streams whose paths begin so."""
    target = site.address.target("/v1/streams") + query(
        prefix=prefix or None, after=after, limit=limit
    )
    answer = yield from get(site, target)
    page = decoded(answer, Listing)
    _require_progress(page.next, after)
    return page


def health(site: ServerConfig) -> Flow[dict[str, Any]]:
    """Ask how the server is."""
    answer = yield from get(site, site.address.target("/health"))
    return decoded(answer, dict[str, Any])


def producers(calls: StreamCalls, producer_id: str | None) -> Flow[list[ProducerState]]:
    """Ask what the server knows of a stream's producers."""
    found: list[ProducerState] = []
    after = None
    limit = _LISTING_COUNT if producer_id is None else None
    while True:
        target = calls.site.address.target(_PRODUCERS) + query(
            stream=calls.path, id=producer_id, after=after, limit=limit
        )
        answer = yield from get(calls.site, target)
        page = decoded(answer, _Producers)
        found += page.producers
        if page.next is None:
            return found
        _require_progress(page.next, after)
        after = page.next


def register_producer(site: ServerConfig, producer_id: str | None) -> Flow[Registration]:
    """Get an id, or the next epoch of one; asking again only raises it once more."""
    wanted = {} if producer_id is None else {"producer_id": producer_id}
    asked = yield from post(site, site.address.target(_PRODUCERS), wanted)
    return decoded(asked.expect(200, 201), Registration)


def claim_producer(
    calls: StreamCalls, producer_id: str, session: str, mode: str
) -> Flow[ProducerClaim]:
    """Take a producer over, and learn what is stored; the same session again changes nothing."""
    wanted = {"stream": calls.path, "producer_id": producer_id, "session": session, "mode": mode}
    target = calls.site.address.target(f"{_PRODUCERS}/claim")
    asked = yield from post(calls.site, target, wanted)
    return decoded(asked.expect(200), ProducerClaim)


def explain_append(
    calls: StreamCalls,
    producer_id: str,
    seq: int | str,
    *,
    epoch: int | None = None,
    session: str | None = None,
    mode: str | None = None,
) -> Flow[dict[str, Any]]:
    """Ask what would become of an append, and why."""
    target = calls.site.address.target(f"{_PRODUCERS}/explain") + query(
        stream=calls.path, id=producer_id, seq=seq, epoch=epoch, session=session, mode=mode
    )
    answer = yield from get(calls.site, target)
    return decoded(answer, dict[str, Any])


def forget_producer(calls: StreamCalls, producer_id: str) -> Flow[None]:
    """Let a stream forget a producer."""
    target = calls.site.address.target(_PRODUCERS) + query(stream=calls.path, id=producer_id)
    request = Request("DELETE", target)
    asked = yield from ask(request, RetrySafety.REPEATABLE, retries=calls.site.retries)
    require_page(asked)
    asked.expect(200, 204)


def _require_progress(next_page: str | None, after: str | None) -> None:
    if next_page is not None and after is not None and next_page <= after:
        raise ProtocolError("a list does not go on after its page")


# ---- documents -----------------------------------------------------------------------------------
# JSON documents of semel's own calls: sent, asked for, and read.


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


def get(site: ServerConfig, target: str) -> Flow[Response]:
    """Ask for a page."""
    asked = yield from ask(Request("GET", target), RetrySafety.READ, retries=site.retries)
    require_page(asked)
    return asked.expect(200)


def post(
    site: ServerConfig, target: str, document: Any, *, silence_seconds: float = inf
) -> Flow[Exchanged]:
    """Send a document that changes nothing the second time."""
    request = Request("POST", target, _JSON, msgspec.json.encode(document, enc_hook=to_plain))
    asked = yield from ask(
        request, RetrySafety.REPEATABLE, retries=site.retries, silence_seconds=silence_seconds
    )
    require_page(asked)
    return asked


def require_page(asked: Exchanged) -> None:
    """Tell a server that lacks a page from one that lacks what was asked for there."""
    answer = asked.answer
    if answer.status not in (404, 405):
        return
    error = error_of(answer.status, answer.headers, answer.body)
    is_semel = normalise(answer.headers.get("content-type", "")) == PROBLEM
    if not is_semel or error.code not in _LACKING:
        raise NotSupported(f"this server has no such page: {error.message}", status=answer.status)


def decoded(answer: Response, kind: type[T]) -> T:
    """Read a document; ProtocolError if it is another one."""
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"the answer is not what was asked for: {error}") from None
