"""Requests and responses of `/v1/stream/__ds`, and the bodies that webhooks receive.

The rules are in `docs/reference/subscriptions.md`.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec import UNSET, Struct

from semel.machine.subscription_events import NAMED, NEVER_ACKED
from semel.machine.subscription_views import (
    ClaimView,
    DeliveryView,
    LinkView,
    SubscriptionPage,
    SubscriptionView,
)
from semel.model.limits import (
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    SUBSCRIPTION_STREAMS_LISTED,
)
from semel.model.offsets import print_offset
from semel.model.outcomes import Outcome, Refusal
from semel.model.outcomes_subscriptions import SubscriptionCreated, WakeAcked
from semel.model.patterns import pattern_problem
from semel.model.subscription_commands import (
    PULL_WAKE,
    WEBHOOK,
    ClaimWake,
    CreateSubscription,
    LinkStreams,
    WakeAck,
)
from semel.wire.control_errors import control_refusal
from semel.wire.documents import read_document
from semel.wire.headers import Headers, print_instant, to_number
from semel.wire.paths import linked_path, parse_query, read_limit
from semel.wire.problems import MalformedRequest, Problem, bad_request, parser
from semel.wire.refusal_table_subscriptions import URL_REJECTED
from semel.wire.rendering import STATUS, Response
from semel.wire.responses import json_response
from semel.wire.schema.subscriptions import (
    AckRequest,
    AckResponse,
    ClaimResponse,
    DeliveryBody,
    DeliveryResponse,
    LinkEntry,
    LinkRequest,
    ReleaseRequest,
    SigningInfo,
    SubscriptionEntry,
    SubscriptionInfo,
    SubscriptionRequest,
    SubscriptionsPage,
    WakeClaimRequest,
    WakeRequest,
    WebhookInfo,
)
from semel.wire.wake_acks import NEVER, read_ack
from semel.wire.webhook_signatures import JWKS_TYPE

JWKS_CACHE_SECONDS: Final = 300
_SIGNING_ALG: Final = "ed25519"
_EXPLICIT: Final = "explicit"
_GLOB: Final = "glob"


class Signing(Struct, frozen=True):
    """The key that signs deliveries, and where its public part is. `jwks_url` can be None."""

    kid: str
    jwks_url: str | None


class SubscriptionsQuery(Struct, frozen=True):
    """A query for a page of subscriptions: those after `after` whose ids begin with `prefix`."""

    prefix: str
    after: str
    limit: int


class LinksQuery(Struct, frozen=True):
    """A query for a subscription and at most `limit` of its streams, after number `after`."""

    after: int
    limit: int


# ---- requests ------------------------------------------------------------------------------------


@parser
def parse_create(name: str, headers: Headers, body: bytes, *, now_ms: int) -> CreateSubscription:
    """Parse a request that creates a subscription. Only the syntax of a URL is not checked."""
    request = read_document(headers, body, SubscriptionRequest)
    if request.type not in (WEBHOOK, PULL_WAKE):
        raise _invalid("type", f"must be '{WEBHOOK}' or '{PULL_WAKE}'")
    lease_ms = request.lease_ttl_ms
    if lease_ms is not None and not LEASE_MS_MIN <= lease_ms <= LEASE_MS_MAX:
        raise _invalid("lease_ttl_ms", f"must be from {LEASE_MS_MIN} to {LEASE_MS_MAX}")
    streams = _paths(request.streams or ())
    pattern = (request.pattern or "").strip("/") or None
    problem = None if pattern is None else pattern_problem(pattern)
    if problem is not None:
        raise bad_request("invalid_request", problem, field="pattern")
    if not streams and pattern is None:
        message = "there is nothing to follow; give 'pattern', 'streams', or both"
        raise bad_request("invalid_request", message, field="streams")
    url, wake_stream = _target(request)
    more = {} if lease_ms is None else {"lease_ms": lease_ms}
    return CreateSubscription(
        now_ms,
        name,
        request.type,
        pattern,
        streams,
        url=url,
        wake_stream=wake_stream,
        description=request.description or None,
        **more,
    )


def _target(request: SubscriptionRequest) -> tuple[str | None, str | None]:
    """Return the URL of a webhook, or the wake stream of a pull-wake. The other one is None."""
    if request.type == WEBHOOK:
        if request.webhook is None or not request.webhook.url:
            raise _invalid("webhook", 'must be {"url": ...} for a webhook')
        if request.wake_stream is not None:
            raise _invalid("wake_stream", "is for subscriptions of the type 'pull-wake' only")
        return request.webhook.url, None
    if request.wake_stream is None:
        raise _invalid("wake_stream", "must be the path of a stream for a pull-wake")
    if request.webhook is not None:
        raise _invalid("webhook", "is for subscriptions of the type 'webhook' only")
    return None, _path(request.wake_stream, "wake_stream")


def _invalid(field: str, message: str) -> MalformedRequest:
    return bad_request("invalid_request", f"'{field}' {message}", field=field)


def _path(text: str, field: str) -> str:
    try:
        return linked_path(text)
    except ValueError as error:
        message = f"{text!r} is not the path of a stream: {error}"
        raise bad_request("invalid_request", message, field=field) from None


def _paths(streams: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_path(each, "streams") for each in streams))


def url_rejected(reason: str) -> Problem:
    """Return the problem of a subscription whose URL is not allowed."""
    message = f"the server does not deliver to this URL: {reason}"
    return Problem(400, URL_REJECTED, message, {"field": "webhook"})


def no_deliveries(reason: str) -> Problem:
    """Return the problem of a webhook for a server that cannot deliver."""
    return Problem(400, "invalid_request", reason, {"field": "webhook"})


@parser
def parse_link(name: str, headers: Headers, body: bytes, *, now_ms: int) -> LinkStreams:
    """Parse a request by which a subscription names more streams."""
    streams = _paths(read_document(headers, body, LinkRequest).streams)
    if not streams:
        raise _invalid("streams", "must have at least one path")
    return LinkStreams(now_ms, name, streams)


@parser
def parse_wake_claim(name: str, headers: Headers, body: bytes, *, now_ms: int) -> ClaimWake:
    """Parse a request that claims a wake."""
    return ClaimWake(now_ms, name, read_document(headers, body, WakeClaimRequest).worker)


@parser
def parse_ack(name: str, headers: Headers, body: bytes) -> WakeAck:
    """Parse a request that acks a wake or renews its lease."""
    request = read_document(headers, body, WakeRequest)
    acks = tuple(map(_read_ack, request.acks or ()))
    return WakeAck(name, request.wake_id, request.generation, acks, request.done)


def _read_ack(ack: AckRequest) -> tuple[str, int]:
    path = ack.path if ack.stream is None else ack.stream
    if path is None:
        raise bad_request("invalid_request", "an ack needs 'stream' and 'offset'", field="acks")
    return read_ack(path, ack.offset)


@parser
def parse_release(name: str, headers: Headers, body: bytes) -> WakeAck:
    """Parse a request that releases a wake."""
    request = read_document(headers, body, ReleaseRequest)
    return WakeAck(name, request.wake_id, request.generation)


@parser
def parse_subscriptions_query(query: str) -> SubscriptionsQuery:
    """Parse the query of a request that lists subscriptions: `?prefix=...&after=...&limit=...`."""
    parameters = parse_query(query, ("prefix", "after", "limit"))
    return SubscriptionsQuery(
        parameters.get("prefix", ""),
        parameters.get("after", ""),
        read_limit(parameters.get("limit")),
    )


@parser
def parse_links_query(query: str) -> LinksQuery:
    """Parse the query that selects the streams to show: `?streams_after=...&streams_limit=...`."""
    parameters = parse_query(query, ("streams_after", "streams_limit"))
    after = _number(parameters, "streams_after", 0)
    limit = _number(parameters, "streams_limit", SUBSCRIPTION_STREAMS_LISTED)
    if not 0 < limit <= SUBSCRIPTION_STREAMS_LISTED:
        message = f"'streams_limit' must be from 1 to {SUBSCRIPTION_STREAMS_LISTED}"
        raise bad_request("invalid_query", message, field="streams_limit")
    return LinksQuery(after, limit)


def _number(parameters: Mapping[str, str], name: str, default: int) -> int:
    value = parameters.get(name)
    number = default if value is None else to_number(value)
    if number is None:
        raise bad_request("invalid_query", f"'{name}' must be a number", field=name)
    return number


# ---- responses -----------------------------------------------------------------------------------


def control_response(outcome: Outcome) -> Response:
    """Return the response for an outcome: an error for a refusal, else an empty body."""
    if isinstance(outcome, Refusal):
        return control_refusal(outcome)
    return Response(STATUS[type(outcome)], [])


def created_response(
    outcome: SubscriptionCreated, view: SubscriptionView, signing: Signing | None
) -> Response:
    """Return the response to a creation: 201, or 200 if the subscription existed."""
    return json_response(201 if outcome.is_new else 200, subscription_info(view, signing))


def subscription_info(view: SubscriptionView, signing: Signing | None) -> SubscriptionInfo:
    """Return a subscription as responses show it. `signing` is needed for a webhook."""
    after = view.streams_next
    entry = subscription_entry(view, signing)
    return SubscriptionInfo(
        **msgspec.structs.asdict(entry),
        streams=_entries(view.streams),
        streams_next=UNSET if after is None else after,
    )


def subscription_entry(view: SubscriptionView, signing: Signing | None) -> SubscriptionEntry:
    """Return a subscription as lists show it, without its streams."""
    row, wake = view.row, view.wake
    webhook: WebhookInfo | None = None
    if row.url is not None and signing is not None:
        webhook = WebhookInfo(row.url, SigningInfo(_SIGNING_ALG, signing.kid, signing.jwks_url))
    return SubscriptionEntry(
        id=view.id,
        subscription_id=view.id,
        type=row.type,
        pattern=row.pattern or UNSET,
        webhook=webhook or UNSET,
        wake_stream=row.wake_stream or UNSET,
        lease_ttl_ms=row.lease_ms,
        created_at=print_instant(row.created_ms),
        status=view.status,
        description=row.description or UNSET,
        stream_count=view.stream_count,
        pending_count=view.pending_count,
        generation=wake.generation,
        worker=wake.worker or None,
        attempts=wake.attempts,
        last_error=wake.error or None,
    )


def page_response(page: SubscriptionPage, signing: Signing | None) -> Response:
    """Return the response that lists subscriptions. `signing` is needed if one is a webhook."""
    entries = [subscription_entry(each, signing) for each in page.subscriptions]
    return json_response(200, SubscriptionsPage(entries, page.next))


def wake_claim_response(view: ClaimView, token: str) -> Response:
    """Return the response to a claim."""
    response = ClaimResponse(
        view.wake_id, view.generation, token, _entries(view.streams), view.lease_ms
    )
    return json_response(200, response)


def ack_response(outcome: Outcome) -> Response:
    """Return the response to an ack. It has exactly the members that the protocol demands."""
    if isinstance(outcome, WakeAcked):
        return json_response(200, AckResponse(ok=True, next_wake=outcome.next_wake))
    return control_response(outcome)


def keys_response(jwks: bytes) -> Response:
    """Return the response with the public keys that verify deliveries."""
    cache = f"public, max-age={JWKS_CACHE_SECONDS}"
    return Response(200, [("Content-Type", JWKS_TYPE), ("Cache-Control", cache)], jwks)


def _entries(streams: Iterable[LinkView]) -> list[LinkEntry]:
    return [
        LinkEntry(
            each.path,
            _EXPLICIT if each.kinds & NAMED else _GLOB,
            NEVER if each.acked == NEVER_ACKED else print_offset(each.acked),
            NEVER if each.tail is None else print_offset(each.tail),
            each.has_pending,
        )
        for each in streams
    ]


# ---- deliveries ----------------------------------------------------------------------------------

_responses: Final = msgspec.json.Decoder(DeliveryResponse)


def delivery_body(view: DeliveryView, *, callback_url: str, callback_token: str) -> bytes:
    """Return the body of a delivery. Its bytes are signed."""
    delivery = DeliveryBody(
        view.id,
        view.wake_id,
        view.generation,
        _entries(view.streams),
        callback_url,
        callback_token,
    )
    return msgspec.json.encode(delivery)


def is_done(body: bytes) -> bool:
    """Return True if a webhook has responded that the whole delivery is processed."""
    try:
        return _responses.decode(body).done
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
