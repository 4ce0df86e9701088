"""The calls about subscriptions and their wakes, as generators without sockets.

All of these requests are sent again after a lost response. What the second one then returns:

- create, delete, link, unlink, resume: the same as the first one.
- claim: AlreadyClaimed, if the first one has claimed the wake. Its token is lost, so the wake can
  be claimed again only when the lease has expired.
- ack and release: WakeFenced, if the first one has ended the wake. An ack that is not `done` is
  accepted twice.
"""

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Struct

from semel.client import errors
from semel.client.addresses import STREAM_PATH
from semel.client.flows import Exchanged, Flow, RetrySafety, ask
from semel.client.requests import Request, query
from semel.client.server_calls import decoded, require_progress
from semel.client.stream_calls import ServerConfig
from semel.client.subscription_values import (
    PULL_WAKE,
    WEBHOOK,
    AckedWake,
    SubscribedStream,
    SubscriptionState,
    WakeInfo,
    WakeStream,
)
from semel.client.transport import random_id
from semel.model.limits import LEASE_MS_MAX, LEASE_MS_MIN
from semel.model.messages import JSON_MEDIA_TYPE
from semel.wire.paths import SUBSCRIPTIONS, WEBHOOK_KEYS
from semel.wire.schema.subscriptions import (
    AckRequest,
    LinkRequest,
    ReleaseRequest,
    SubscriptionRequest,
    WakeClaimRequest,
    WakeRequest,
    WebhookRequest,
)

_JSON: Final = (("Content-Type", JSON_MEDIA_TYPE),)
_LISTING_COUNT: Final = 1_000
_LOST_CLAIM: Final = (
    "an earlier attempt of this call got no response, and has perhaps claimed the wake; it can be"
    " claimed again when its lease has expired"
)
_LOST_ACK: Final = "an earlier attempt of this call got no response, and has perhaps ended the wake"


class SubscriptionConfig(Struct, frozen=True):
    """The configuration of a new subscription. Exactly one of the last two fields is set."""

    pattern: str | None = None
    streams: tuple[str, ...] = ()
    lease_ttl_ms: int | None = None
    description: str | None = None
    webhook_url: str | None = None
    wake_stream: str | None = None

    def request(self) -> SubscriptionRequest:
        """Return the body of the request. Raises ValueError, or BadRequest for a bad lease."""
        if (self.webhook_url is None) == (self.wake_stream is None):
            raise ValueError("pass either webhook_url or wake_stream")
        if self.pattern is None and not self.streams:
            raise ValueError("a subscription follows nothing; pass a pattern, or streams")
        if self.wake_stream in self.streams:
            raise ValueError(f"{self.wake_stream} is the wake stream, so it cannot be followed")
        lease = self.lease_ttl_ms
        if lease is not None and not LEASE_MS_MIN <= lease <= LEASE_MS_MAX:
            raise errors.BadRequest(  # as the server, which names a field of the request instead
                f"lease={lease / 1000:g} is invalid; expected from {LEASE_MS_MIN / 1000:g} to"
                f" {LEASE_MS_MAX / 1000:g} seconds"
            )
        return SubscriptionRequest(
            PULL_WAKE if self.webhook_url is None else WEBHOOK,
            self.pattern,
            list(self.streams) or None,
            None if self.webhook_url is None else WebhookRequest(self.webhook_url),
            self.wake_stream,
            lease_ttl_ms=self.lease_ttl_ms,
            description=self.description,
        )


class SubscriptionList(Struct, frozen=True):
    """Some of the subscriptions. The next page begins after the id `next`."""

    subscriptions: list[SubscriptionState]
    next: str | None = None


class _Claimed(Struct, frozen=True):
    wake_id: str
    generation: int
    token: str
    streams: list[WakeStream] = []
    lease_ttl_ms: int = 30_000


class _AckResult(Struct, frozen=True):
    next_wake: bool = False


# ---- subscriptions -------------------------------------------------------------------------------


def create_subscription(
    site: ServerConfig, name: str, config: SubscriptionConfig, *, exist_ok: bool
) -> Flow[SubscriptionState]:
    """Create a subscription and return it.

    If it exists with the same configuration, it is returned with `exist_ok`. Otherwise, and with
    another configuration, raises SubscriptionExists. A subscription that exists is resumed.
    """
    body = msgspec.json.encode(config.request())
    request = Request("PUT", _target(site, name), _JSON, body)
    exchange = yield from _sent(site, request, name)
    response = exchange.expect(200, 201)
    if response.status == 200 and not (exist_ok or exchange.was_lost):
        raise errors.SubscriptionExists(
            f"the subscription {name} exists with the same configuration",
            status=200,
            code="SUBSCRIPTION_ALREADY_EXISTS",
        )
    return decoded(response, SubscriptionState)


def show_subscription(
    site: ServerConfig,
    name: str,
    streams_after: int | str | None = None,
    streams_limit: int | None = None,
) -> Flow[SubscriptionState]:
    """Return a subscription with its first streams, or those after `streams_after`."""
    target = _target(site, name) + query(streams_after=streams_after, streams_limit=streams_limit)
    exchange = yield from _sent(site, Request("GET", target), name, RetrySafety.READ)
    return decoded(exchange.expect(200), SubscriptionState)


def next_streams(
    site: ServerConfig, name: str, after: int | str | None
) -> Flow[tuple[list[SubscribedStream], int | str | None]]:
    """Return streams of a subscription, and where the next page begins."""
    info = yield from show_subscription(site, name, after, _LISTING_COUNT)
    require_progress(info.streams_next, after)
    return info.streams, info.streams_next


def list_subscriptions(
    site: ServerConfig, prefix: str, after: str | None
) -> Flow[SubscriptionList]:
    """Return the subscriptions whose ids begin with `prefix`, after the id `after`."""
    target = _target(site) + query(prefix=prefix or None, after=after, limit=_LISTING_COUNT)
    exchange = yield from _sent(site, Request("GET", target), safety=RetrySafety.READ)
    page = decoded(exchange.expect(200), SubscriptionList)
    require_progress(page.next, after)
    return page


def delete_subscription(site: ServerConfig, name: str) -> Flow[None]:
    """Delete a subscription. Nothing happens if there is none."""
    exchange = yield from _sent(site, Request("DELETE", _target(site, name)))
    exchange.expect(204, 200)


def link_streams(site: ServerConfig, name: str, paths: Iterable[str]) -> Flow[None]:
    """Let a subscription follow more streams, from their present ends on."""
    body = msgspec.json.encode(LinkRequest(list(paths)))
    request = Request("POST", _target(site, name, "streams"), _JSON, body)
    (yield from _sent(site, request, name)).expect(204, 200)


def unlink_streams(site: ServerConfig, name: str, paths: Iterable[str]) -> Flow[None]:
    """Let a subscription no longer name streams. Those that its pattern matches stay."""
    for path in paths:
        request = Request("DELETE", _target(site, name, "streams", path))
        (yield from _sent(site, request, name)).expect(204, 200)


def resume_subscription(site: ServerConfig, name: str) -> Flow[None]:
    """End the suspension of a subscription."""
    request = Request("POST", _target(site, name, "resume"), _JSON, b"{}")
    (yield from _sent(site, request, name)).expect(204, 200)


def fetch_webhook_keys(site: ServerConfig) -> Flow[bytes]:
    """Return the JWKS document with the keys that verify the signatures of deliveries."""
    address = site.address
    target = address.target(address.stream_path + WEBHOOK_KEYS.removeprefix(STREAM_PATH))
    exchange = yield from _sent(site, Request("GET", target), safety=RetrySafety.READ)
    return exchange.expect(200).body


# ---- wakes ---------------------------------------------------------------------------------------


def claim_wake(site: ServerConfig, name: str, worker: str) -> Flow[WakeInfo]:
    """Claim the wake of a subscription, and return it.

    Raises NoPendingWork, or AlreadyClaimed. If the latter comes after a lost response and for the
    same worker, its `applied` is "unknown".
    """
    body = msgspec.json.encode(WakeClaimRequest(worker))
    request = Request("POST", _target(site, name, "claim"), _JSON, body)
    exchange = yield from _sent(site, request, name)
    if exchange.response.status >= 400:
        error = exchange.error()
        is_own = isinstance(error, errors.AlreadyClaimed) and error.current_holder == worker
        if is_own and exchange.was_lost:
            error.applied, error.advice = errors.UNKNOWN, _LOST_CLAIM
        raise error
    found = decoded(exchange.expect(200), _Claimed)
    return WakeInfo(
        name, found.wake_id, found.generation, found.token, found.streams, found.lease_ttl_ms
    )


def ack_wake(site: ServerConfig, wake: WakeInfo, ack: AckedWake) -> Flow[bool]:
    """Ack a wake, or only renew its lease. Return True if it has ended and more is pending.

    Raises WakeFenced if the wake has ended, and InvalidAck if an offset cannot be acked.
    """
    action = "callback" if wake.type == WEBHOOK else "ack"
    acks = [AckRequest(offset, path) for path, offset in ack.offsets.items()]
    body = WakeRequest(ack.wake_id, ack.generation, acks or None, ack.done)
    exchange = yield from _with_token(site, wake, action, body)
    return decoded(exchange.expect(200), _AckResult).next_wake


def release_wake(site: ServerConfig, wake: WakeInfo) -> Flow[None]:
    """Give up a wake of a pull-wake subscription, so that another worker can claim the work."""
    body = ReleaseRequest(wake.wake_id, wake.generation)
    (yield from _with_token(site, wake, "release", body)).expect(204, 200)


def worker_name() -> str:
    """Return a name for a worker that no other one has."""
    return f"worker-{random_id()}"


def _with_token(
    site: ServerConfig, wake: WakeInfo, action: str, body: WakeRequest | ReleaseRequest
) -> Flow[Exchanged]:
    """Send a request about a wake, with the token of the wake. Raises what the server refuses."""
    request = Request(
        "POST",
        _target(site, wake.subscription, action),
        _JSON,
        msgspec.json.encode(body),
        bearer=wake.token,
    )
    exchange = yield from _sent(site, request, wake.subscription)
    if exchange.response.status >= 400:
        error = exchange.error()
        if exchange.was_lost and isinstance(error, errors.WakeFenced):
            error.applied, error.advice = errors.UNKNOWN, _LOST_ACK
        raise error
    return exchange


# ---- requests ------------------------------------------------------------------------------------


def _target(site: ServerConfig, *names: str) -> str:
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"the id of a subscription is a str, not a {type(names[0]).__name__}")
    if not all(names):
        raise ValueError("the id of a subscription, and the path of a stream, must not be empty")
    address = site.address
    return address.target(address.stream_path + SUBSCRIPTIONS.removeprefix(STREAM_PATH), *names)


def _sent(
    site: ServerConfig,
    request: Request,
    name: str | None = None,
    safety: RetrySafety = RetrySafety.REPEATABLE,
) -> Flow[Exchanged]:
    """Send a request, about the subscription `name` if there is one.

    Raises SubscriptionNotFound, and NotSupported if the server has no subscriptions.
    """
    exchange = yield from ask(request, safety, retries=site.retries)
    if exchange.response.status in (404, 405):
        error = exchange.error()
        if isinstance(error, errors.SubscriptionNotFound) and name is not None:
            raise errors.SubscriptionNotFound(
                f"there is no subscription {name}", status=404, facts=error.facts
            )
        if not isinstance(error, errors.SubscriptionRefused):
            raise errors.NotSupported(
                f"this server does not support the call: {error.message}",
                status=exchange.response.status,
            )
    return exchange
