"""Calls about a server and not about one stream. Pure: flows, no sockets."""

from math import inf
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec

from semel.client.errors import NotSupported, ProtocolError, Refused
from semel.client.flows import Exchanged, Flow, RetrySafety, ask
from semel.client.refusals import error_of
from semel.client.requests import Request, query
from semel.client.response_parser import Response
from semel.client.stream_calls import ServerConfig, StreamCalls
from semel.client.values import to_plain
from semel.model.media import JSON_MEDIA_TYPE, normalise
from semel.wire.headers import PROBLEM
from semel.wire.paths import (
    CLAIM,
    EXPLAIN,
    GROUPS,
    HEALTH,
    PRODUCERS,
    SINKS,
    STREAMS,
    TRANSACTIONS,
)
from semel.wire.schema import StreamsPage
from semel.wire.schema.commits import RebindRequest, SinksPage
from semel.wire.schema.producers import (
    ClaimRequest,
    ProducerClaim,
    ProducersPage,
    ProducerState,
    RegisterRequest,
    Registration,
)
from semel.wire.schema.transactions import TransactionsPage, TxnRequest

T = TypeVar("T")
# A JSON document as it came: the calls of an operator show it as it is.
Document = dict[str, Any]
_JSON: Final = (("Content-Type", JSON_MEDIA_TYPE),)
_LISTING_COUNT: Final = 1_000
# Codes of 404 that mean that an object does not exist. Any other 404 means that the server lacks
# the address.
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

# ---- requests and responses ----------------------------------------------------------------------


def get(site: ServerConfig, target: str) -> Flow[Response]:
    """Send a GET. Raises NotSupported if the server lacks the address."""
    exchange = yield from ask(Request("GET", target), RetrySafety.READ, retries=site.retries)
    _require_address(exchange)
    return exchange.expect(200)


def post(
    site: ServerConfig, target: str, document: Any, *, silence_seconds: float = inf
) -> Flow[Exchanged]:
    """Send a document whose repeat changes nothing. Raises NotSupported."""
    request = Request("POST", target, _JSON, msgspec.json.encode(document, enc_hook=to_plain))
    exchange = yield from ask(
        request, RetrySafety.REPEATABLE, retries=site.retries, silence_seconds=silence_seconds
    )
    _require_address(exchange)
    return exchange


def _delete(site: ServerConfig, target: str) -> Flow[Exchanged]:
    request = Request("DELETE", target)
    exchange = yield from ask(request, RetrySafety.REPEATABLE, retries=site.retries)
    _require_address(exchange)
    return exchange


def _require_address(exchange: Exchanged) -> None:
    """Distinguish a server that lacks an address from one that lacks the object asked for."""
    answer = exchange.answer
    if answer.status not in (404, 405):
        return
    error = error_of(answer.status, answer.headers, answer.body)
    is_semel = normalise(answer.headers.get("content-type", "")) == PROBLEM
    if not is_semel or error.code not in _LACKING:
        raise NotSupported(f"this server has no such page: {error.message}", status=answer.status)


def decoded(response: Response, kind: type[T]) -> T:
    """Decode the body of a response. Raises ProtocolError if it is another document."""
    try:
        return msgspec.json.decode(response.body, type=kind)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"the answer is not what was asked for: {error}") from None


def _target(site: ServerConfig, prefix: str, *names: str) -> str:
    return site.address.target("/".join([prefix, *[quote(name, safe="") for name in names]]))


def _require_progress(next_page: Any, after: Any) -> None:
    """Raise ProtocolError for a listing that would never end."""
    if next_page is not None and after is not None and next_page <= after:
        raise ProtocolError("a list does not go on after its page")


# ---- transactions, sinks and groups: for an operator ---------------------------------------------


def list_transactions(
    site: ServerConfig, state: str | None, stream: str | None
) -> Flow[list[Document]]:
    """Return the pending transactions."""
    transactions: list[Document] = []
    after: int | None = 0
    while after is not None:
        target = _target(site, TRANSACTIONS) + query(
            state=state, stream=stream, after=after, limit=_LISTING_COUNT
        )
        page = decoded((yield from get(site, target)), TransactionsPage[Document])
        transactions += page.transactions
        _require_progress(page.next, after)
        after = page.next
    return transactions


def show_transaction(site: ServerConfig, name: str, epoch: int | None) -> Flow[Document]:
    """Return a transaction: the newest of its id, or that of an epoch."""
    target = _target(site, TRANSACTIONS, name) + query(epoch=epoch)
    return decoded((yield from get(site, target)), Document)


def end_transaction(site: ServerConfig, name: str, epoch: int, action: str) -> Flow[Document]:
    """Commit, abort or fence a transaction as an operator, whatever its owner."""
    request = TxnRequest(transaction_epoch=epoch, operator=True)
    exchange = yield from post(site, _target(site, TRANSACTIONS, name, action), request)
    return decoded(exchange.expect(200), Document)


def sinks_target(site: ServerConfig, *names: str) -> str:
    """Return the request target of the sinks, or of one of them."""
    return _target(site, SINKS, *names)


def list_sinks(site: ServerConfig) -> Flow[list[Document]]:
    """Return all sinks."""
    return decoded((yield from get(site, sinks_target(site))), SinksPage[Document]).sinks


def show_sink(site: ServerConfig, app: str) -> Flow[Document]:
    """Return a sink with its retained versions."""
    return decoded((yield from get(site, sinks_target(site, app))), Document)


def rebind_sink(site: ServerConfig, app: str, query_id: str, last_version: int) -> Flow[Document]:
    """Bind a sink to another query, which continues after `last_version`."""
    request = RebindRequest(query_id, last_version)
    exchange = yield from post(site, sinks_target(site, app, "rebind"), request)
    return decoded(exchange.expect(200), Document)


def forget_sink(site: ServerConfig, app: str) -> Flow[None]:
    """Remove what the server stores about a sink."""
    exchange = yield from _delete(site, sinks_target(site, app))
    if exchange.was_lost and exchange.answer.status == 404:
        return  # the request whose response was lost did it
    exchange.expect(204)


def show_group(site: ServerConfig, group: str) -> Flow[Document]:
    """Return where a group is, and the step it has pinned as `snapshot`."""
    page = decoded((yield from get(site, _target(site, GROUPS, group, "offsets"))), Document)
    try:
        snapshot = yield from get(site, _target(site, GROUPS, group, "snapshot"))
    except Refused as error:
        if error.code != "snapshot_not_found":
            raise
        return {**page, "snapshot": None}
    return {**page, "snapshot": decoded(snapshot, Document)}


# ---- streams and producers -----------------------------------------------------------------------


def list_streams(
    site: ServerConfig, prefix: str, after: str | None, limit: int = _LISTING_COUNT
) -> Flow[StreamsPage]:
    """Return a page of the streams whose paths begin with a prefix."""
    target = _target(site, STREAMS) + query(prefix=prefix or None, after=after, limit=limit)
    page = decoded((yield from get(site, target)), StreamsPage)
    _require_progress(page.next, after)
    return page


def health(site: ServerConfig) -> Flow[Document]:
    """Return the health of the server."""
    return decoded((yield from get(site, _target(site, HEALTH))), Document)


def producers(calls: StreamCalls, producer_id: str | None) -> Flow[list[ProducerState]]:
    """Return the producers of a stream, or one of them."""
    states: list[ProducerState] = []
    after = None
    limit = _LISTING_COUNT if producer_id is None else None
    while True:
        target = _target(calls.site, PRODUCERS) + query(
            stream=calls.path, id=producer_id, after=after, limit=limit
        )
        page = decoded((yield from get(calls.site, target)), ProducersPage[ProducerState])
        states += page.producers
        if page.next is None:
            return states
        _require_progress(page.next, after)
        after = page.next


def register_producer(site: ServerConfig, producer_id: str | None) -> Flow[Registration]:
    """Get an id from the server, or the next epoch of one. A retry only raises it once more."""
    exchange = yield from post(site, _target(site, PRODUCERS), RegisterRequest(producer_id))
    return decoded(exchange.expect(200, 201), Registration)


def claim_producer(
    calls: StreamCalls, producer_id: str, session: str, mode: str
) -> Flow[ProducerClaim]:
    """Claim a producer, and return what is stored of it. A repeat of a session changes nothing."""
    request = ClaimRequest(calls.path, producer_id, session, mode)
    exchange = yield from post(calls.site, _target(calls.site, CLAIM), request)
    return decoded(exchange.expect(200), ProducerClaim)


def explain_append(
    calls: StreamCalls,
    producer_id: str,
    seq: int | str,
    *,
    epoch: int | None = None,
    session: str | None = None,
    mode: str | None = None,
) -> Flow[Document]:
    """Return what would happen to an append, and why."""
    target = _target(calls.site, EXPLAIN) + query(
        stream=calls.path, id=producer_id, seq=seq, epoch=epoch, session=session, mode=mode
    )
    return decoded((yield from get(calls.site, target)), Document)


def forget_producer(calls: StreamCalls, producer_id: str) -> Flow[None]:
    """Remove what a stream stores about a producer."""
    target = _target(calls.site, PRODUCERS) + query(stream=calls.path, id=producer_id)
    exchange = yield from _delete(calls.site, target)
    exchange.expect(200, 204)
