"""Calls that list streams, manage producers, and send operator requests. They do no I/O."""

from collections.abc import Sequence
from math import inf
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from semel.client.errors import DamagedResponse, NotSupported, ProtocolError, Refused
from semel.client.flows import Exchanged, Flow, RetrySafety, T, ask
from semel.client.requests import Request, query
from semel.client.response_parser import Response
from semel.client.stream_calls import ServerConfig, StreamCalls
from semel.client.values import Policy, to_plain
from semel.model.limits import RETIRE_LIST_MAX
from semel.model.messages import JSON_MEDIA_TYPE, normalise
from semel.wire.headers import PROBLEM
from semel.wire.paths import (
    CLAIM,
    EXPLAIN,
    GROUPS,
    HEALTH,
    POLICIES,
    PRODUCERS,
    RETIRE,
    SINKS,
    STREAMS,
    TRANSACTIONS,
)
from semel.wire.schema import PoliciesPage, PolicyEntry, PolicyRequest, StreamsPage
from semel.wire.schema.commits import RebindRequest, SinksPage
from semel.wire.schema.producers import (
    ClaimRequest,
    ProducerClaim,
    ProducersPage,
    ProducerState,
    RegisterRequest,
    Registration,
    RetiredEntry,
    RetireEntry,
    RetireRequest,
    RetireResponse,
)
from semel.wire.schema.transactions import TransactionsPage, TxnRequest

# A JSON document as the server sent it. The operator calls return it unchanged.
Document = dict[str, Any]
_JSON: Final = (("Content-Type", JSON_MEDIA_TYPE),)
_LISTING_COUNT: Final = 1_000
RETIRE_SECONDS_MAX: Final = 1.0  # a client that is closed waits at most this long
UNKNOWN_PRODUCER: Final = "UNKNOWN_PRODUCER_ID"
# A 404 with one of these codes means that an object does not exist. Any other 404 means that the
# server does not know the request target.
_LACKING: Final = frozenset(
    {
        "stream_not_found",
        "stream_gone",
        UNKNOWN_PRODUCER,
        "INVALID_TXN_ID",
        "unknown_sink",
        "snapshot_not_found",
        "policy_not_found",
        "topic_not_found",
        "partition_not_found",
        "group_not_found",
        "unknown_member",
        "token_not_found",
        "thing_not_found",
    }
)

# ---- requests and responses ----------------------------------------------------------------------


def get(site: ServerConfig, target: str, kind: type[T], *, stream: str | None = None) -> Flow[T]:
    """Get the document at `target` and decode it as `kind`.

    Raises NotSupported if the server does not know the target. If a stream is missing, the error
    names `stream`.
    """
    request = Request("GET", target)
    exchange = yield from ask_server(site, request, RetrySafety.READ, stream=stream)
    return decoded(exchange.expect(200), kind)


def post(
    site: ServerConfig,
    target: str,
    document: Any,
    kind: type[T],
    *statuses: int,
    stream: str | None = None,
) -> Flow[T]:
    """Send a document and decode the response as `kind`.

    The request must be safe to repeat, because it is sent again if no response comes.

    Raises NotSupported if the server does not know the target. Raises Refused if the server
    refuses the request, and ProtocolError if the status is not one of `statuses`. If a stream is
    missing, the error names `stream`.
    """
    exchange = yield from send(site, target, document, stream=stream)
    return decoded(exchange.expect(*statuses), kind)


def send(
    site: ServerConfig,
    target: str,
    document: Any,
    *,
    silence_seconds: float = inf,
    stream: str | None = None,
) -> Flow[Exchanged]:
    """Send a document and return the response.

    The request must be safe to repeat, because it is sent again if no response comes.

    Raises NotSupported if the server does not know the target.
    """
    request = Request("POST", target, _JSON, msgspec.json.encode(document, enc_hook=to_plain))
    return ask_server(site, request, RetrySafety.REPEATABLE, silence_seconds, stream)


def ask_server(
    site: ServerConfig,
    request: Request,
    safety: RetrySafety,
    silence_seconds: float = inf,
    stream: str | None = None,
) -> Flow[Exchanged]:
    """Send a request that only semel understands, and return the response.

    Raises NotSupported if the server does not know the target.
    """
    exchange = yield from ask(
        request, safety, retries=site.retries, silence_seconds=silence_seconds, stream=stream
    )
    response = exchange.response
    if response.status in (404, 405):
        error = exchange.error()
        is_semel = normalise(response.headers.get("content-type", "")) == PROBLEM
        if not is_semel or error.code not in _LACKING:
            message = f"this server does not support the call: {error.message}"
            raise NotSupported(message, status=response.status)
    return exchange


def decoded(response: Response, kind: type[T]) -> T:
    """Decode the body of a response as `kind`.

    Raises DamagedResponse if the body is not JSON, and ProtocolError if it is not like `kind`.
    """
    try:
        return msgspec.json.decode(response.body, type=kind)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"the client cannot decode the response: {error}") from None
    except msgspec.DecodeError as error:
        raise DamagedResponse(f"the client cannot decode the response: {error}") from error


def require_progress(next_page: Any, after: Any) -> None:
    """Raise ProtocolError if the next page does not begin later than the current page.

    Without this check, reading the list could continue forever.
    """
    if next_page is not None and after is not None and next_page <= after:
        raise ProtocolError(
            "the server's list is invalid: the next page does not begin later than the current page"
        )


# ---- transactions, sinks and groups, for operators -----------------------------------------------


def list_transactions(
    site: ServerConfig, state: str | None, stream: str | None
) -> Flow[list[Document]]:
    """Return the pending transactions.

    If `state` is given, return only transactions in that state. If `stream` is given, return only
    transactions that can write to that stream or move a group's position in that stream.
    """
    transactions: list[Document] = []
    after: int | None = 0
    while after is not None:
        target = site.address.target(TRANSACTIONS) + query(
            state=state, stream=stream, after=after, limit=_LISTING_COUNT
        )
        page = yield from get(site, target, TransactionsPage[Document])
        transactions += page.transactions
        require_progress(page.next, after)
        after = page.next
    return transactions


def show_transaction(site: ServerConfig, name: str, epoch: int | None) -> Flow[Document]:
    """Return the transaction with the id `name` and the transaction epoch `epoch`.

    If `epoch` is None, return the newest transaction with that id.
    """
    return get(site, site.address.target(TRANSACTIONS, name) + query(epoch=epoch), Document)


def end_transaction(site: ServerConfig, name: str, epoch: int, action: str) -> Flow[Document]:
    """Commit, abort or fence a transaction of any owner. Only operators need this.

    `action` is "commit", "abort" or "fence".
    """
    request = TxnRequest(transaction_epoch=epoch, operator=True)
    return post(site, site.address.target(TRANSACTIONS, name, action), request, Document, 200)


def list_sinks(site: ServerConfig) -> Flow[list[Document]]:
    """Return all sinks."""
    return (yield from get(site, site.address.target(SINKS), SinksPage[Document])).sinks


def show_sink(site: ServerConfig, app: str) -> Flow[Document]:
    """Return a sink with its retained versions."""
    return get(site, site.address.target(SINKS, app), Document)


def rebind_sink(site: ServerConfig, app: str, query_id: str, last_version: int) -> Flow[Document]:
    """Bind a sink to a different query. That query continues after `last_version`."""
    request = RebindRequest(query_id, last_version)
    return post(site, site.address.target(SINKS, app, "rebind"), request, Document, 200)


def forget_sink(site: ServerConfig, app: str) -> Flow[None]:
    """Remove everything that the server stores about a sink."""
    yield from _delete(site, site.address.target(SINKS, app))


def _delete(site: ServerConfig, target: str) -> Flow[None]:
    exchange = yield from ask_server(site, Request("DELETE", target), RetrySafety.REPEATABLE)
    # A 404 after an attempt without a response is a success: that attempt has removed it.
    if not (exchange.was_lost and exchange.response.status == 404):
        exchange.expect(204)


def show_group(site: ServerConfig, group: str) -> Flow[Document]:
    """Return the group's positions. The key `snapshot` contains the pinned step, or None."""
    page = yield from get(site, site.address.target(GROUPS, group, "offsets"), Document)
    target = site.address.target(GROUPS, group, "snapshot")
    return {**page, "snapshot": (yield from pinned_step(site, target, Document))}


def pinned_step(site: ServerConfig, target: str, kind: type[T]) -> Flow[T | None]:
    """Return the step that a group has pinned, or None if the group never pinned a step.

    A pinned step is a stored list of ranges to read. `target` is the request target.
    """
    try:
        return (yield from get(site, target, kind))
    except Refused as error:
        if error.code != "snapshot_not_found":
            raise
        return None


# ---- policies ------------------------------------------------------------------------------------


def list_policies(site: ServerConfig) -> Flow[list[Policy]]:
    """Return all policies, sorted by prefix."""
    page = yield from get(site, site.address.target(POLICIES), PoliciesPage)
    return [_policy(entry) for entry in page.policies]


def show_policy(site: ServerConfig, prefix: str) -> Flow[Policy]:
    """Return the policy of a prefix. Raises PolicyNotFound if the prefix has none."""
    return _policy((yield from get(site, _policy_target(site, prefix), PolicyEntry)))


def set_policy(site: ServerConfig, prefix: str, *, dedup: bool) -> Flow[Policy]:
    """Set the policy of a prefix. A repeat changes nothing."""
    body = msgspec.json.encode(PolicyRequest(("off", "on")[dedup]))
    request = Request("PUT", _policy_target(site, prefix), _JSON, body)
    exchange = yield from ask_server(site, request, RetrySafety.REPEATABLE)
    return _policy(decoded(exchange.expect(200, 201), PolicyEntry))


def delete_policy(site: ServerConfig, prefix: str) -> Flow[None]:
    """Delete the policy of a prefix. Raises PolicyNotFound if the prefix has none."""
    yield from _delete(site, _policy_target(site, prefix))


def _policy_target(site: ServerConfig, prefix: str) -> str:
    return site.address.target(POLICIES) + query(prefix=prefix)


def _policy(entry: PolicyEntry) -> Policy:
    return Policy(entry.prefix, entry.dedup != "off", entry.changed_at)


# ---- streams and producers -----------------------------------------------------------------------


def list_streams(
    site: ServerConfig, prefix: str, after: str | None, limit: int = _LISTING_COUNT
) -> Flow[StreamsPage]:
    """Return one page of the list of streams whose paths begin with `prefix`.

    The page begins after the path `after` and has at most `limit` streams.
    """
    parameters = query(prefix=prefix or None, after=after, limit=limit)
    page = yield from get(site, site.address.target(STREAMS) + parameters, StreamsPage)
    require_progress(page.next, after)
    return page


def health(site: ServerConfig) -> Flow[Document]:
    """Return the server's report about its own state."""
    return get(site, site.address.target(HEALTH), Document)


def producers(calls: StreamCalls, producer_id: str | None) -> Flow[list[ProducerState]]:
    """Return the stored state of each of the stream's producers.

    If `producer_id` is given, return only the state of that producer.
    """
    site, path = calls.site, calls.require_path("producers()")
    states: list[ProducerState] = []
    after = None
    limit = _LISTING_COUNT if producer_id is None else None
    while True:
        target = site.address.target(PRODUCERS) + query(
            stream=path, id=producer_id, after=after, limit=limit
        )
        page = yield from get(site, target, ProducersPage[ProducerState], stream=path)
        states += page.producers
        if page.next is None:
            return states
        require_progress(page.next, after)
        after = page.next


def register_producer(
    site: ServerConfig, producer_id: str | None, expires: int | None = None
) -> Flow[Registration]:
    """Register the next epoch of a producer. If `producer_id` is None, register a new id.

    The server removes the producer after `expires` seconds without a request of it, if this is not
    None. A retry is harmless. It only increases the epoch once more, or registers one more id.
    """
    request = RegisterRequest(producer_id, expires=_given(expires))
    return post(site, site.address.target(PRODUCERS), request, Registration, 200, 201)


def claim_producer(
    calls: StreamCalls, producer_id: str, session: str, mode: str, expires: int | None = None
) -> Flow[ProducerClaim]:
    """Claim a producer and return its stored state.

    A repeat with the same session changes nothing.
    """
    path = calls.require_path("a claim")
    request = ClaimRequest(path, producer_id, session, mode, _given(expires))
    target = calls.site.address.target(CLAIM)
    return post(calls.site, target, request, ProducerClaim, 200, stream=path)


def _given(number: int | None) -> int | UnsetType:
    """Return `number`, or UNSET instead of None, so that the member is left out."""
    return UNSET if number is None else number


def retire_producers(
    site: ServerConfig, entries: Sequence[RetireEntry]
) -> Flow[list[RetiredEntry]]:
    """Retire producers that are not used any more. Return what became of each of them.

    The server still refuses late copies of their requests for ten minutes. A repeat changes
    nothing. Each request has at most `RETIRE_LIST_MAX` producers.
    """
    results: list[RetiredEntry] = []
    for start in range(0, len(entries), RETIRE_LIST_MAX):
        request = RetireRequest(list(entries[start : start + RETIRE_LIST_MAX]))
        target = site.address.target(RETIRE)
        results += (yield from post(site, target, request, RetireResponse, 200)).producers
    return results


def retire_producer(
    calls: StreamCalls, producer_id: str, epoch: int | None, session: str | None
) -> Flow[RetiredEntry]:
    """Retire a producer of a stream, and return what became of it."""
    entry = RetireEntry(producer_id, calls.path, epoch, session)
    (result,) = yield from retire_producers(calls.site, [entry])
    return result


def explain_append(
    calls: StreamCalls,
    producer_id: str,
    seq: int | str,
    *,
    epoch: int | None = None,
    session: str | None = None,
    mode: str | None = None,
) -> Flow[Document]:
    """Return the outcome that an append would have, and the reason. Nothing is appended."""
    path = calls.require_path("explain()")
    target = calls.site.address.target(EXPLAIN) + query(
        stream=path, id=producer_id, seq=seq, epoch=epoch, session=session, mode=mode
    )
    return get(calls.site, target, Document, stream=path)


def forget_producer(calls: StreamCalls, producer_id: str) -> Flow[None]:
    """Remove everything that a stream stores about a producer."""
    path = calls.require_path("forget_producer()")
    target = calls.site.address.target(PRODUCERS) + query(stream=path, id=producer_id)
    request = Request("DELETE", target)
    exchange = yield from ask_server(calls.site, request, RetrySafety.REPEATABLE, stream=path)
    exchange.expect(200, 204)
