"""The JSON bodies of `/v1/stream/__ds`: subscriptions, wakes, and what a webhook receives.

The requests are those of the Durable Streams protocol. Its reference server ignores members that it
does not have, so these do as well.
"""

from msgspec import UNSET, Struct, UnsetType

from semel.wire.schema.transactions import Offset

# ---- requests ------------------------------------------------------------------------------------


class WebhookRequest(Struct, frozen=True, omit_defaults=True):
    """Where the wakes of a subscription are delivered."""

    url: str


class SubscriptionRequest(Struct, frozen=True, omit_defaults=True):
    """The body of `PUT /v1/stream/__ds/subscriptions/{id}`.

    `type` is `webhook`, with `webhook`, or `pull-wake`, with `wake_stream`. Null is the same as an
    absent member.
    """

    type: str = ""
    pattern: str | None = None
    streams: list[str] | None = None
    webhook: WebhookRequest | None = None
    wake_stream: str | None = None
    lease_ttl_ms: int | None = None
    description: str | None = None


class LinkRequest(Struct, frozen=True):
    """The body of `POST /v1/stream/__ds/subscriptions/{id}/streams`."""

    streams: list[str]


class WakeClaimRequest(Struct, frozen=True):
    """The body of `POST /v1/stream/__ds/subscriptions/{id}/claim`."""

    worker: str


class AckRequest(Struct, frozen=True, omit_defaults=True):
    """An ack in `WakeRequest`: the stream, in `stream` or `path`, is processed up to `offset`."""

    offset: Offset
    stream: str | None = None
    path: str | None = None


class WakeRequest(Struct, frozen=True, omit_defaults=True):
    """The body of `callback` and `ack`. Without `done`, the lease of the wake is renewed."""

    wake_id: str
    generation: int
    acks: list[AckRequest] | None = None
    done: bool = False


class ReleaseRequest(Struct, frozen=True):
    """The body of a request that releases a wake."""

    wake_id: str
    generation: int


# ---- responses -----------------------------------------------------------------------------------


class SigningInfo(Struct, frozen=True):
    """How deliveries are signed. `jwks_url` is null if the server has no URL that others reach."""

    alg: str
    kid: str
    jwks_url: str | None


class WebhookInfo(Struct, frozen=True):
    """Where the wakes of a subscription are delivered, and how they are signed."""

    url: str
    signing: SigningInfo


class LinkEntry(Struct, frozen=True):
    """A stream of a subscription. Offsets are `-1` before the first ack, or without a stream.

    `link_type` is `explicit` if the subscription names the stream, and `glob` if only its pattern
    matches it. `tail_offset` is the stable offset.
    """

    path: str
    link_type: str
    acked_offset: str
    tail_offset: str
    has_pending: bool


class SubscriptionEntry(Struct, frozen=True, kw_only=True):
    """A subscription in a list. `id` and `subscription_id` are the same.

    `status` is `active`; `failed`, if a delivery has failed and will be repeated; or `suspended`.
    `generation` counts the wakes. `worker` has claimed the current one. `attempts` is how many
    deliveries of it have failed in a row, the last one with `last_error`.
    """

    id: str
    subscription_id: str
    type: str
    pattern: str | UnsetType = UNSET
    webhook: WebhookInfo | UnsetType = UNSET
    wake_stream: str | UnsetType = UNSET
    lease_ttl_ms: int
    created_at: str
    status: str
    description: str | UnsetType = UNSET
    stream_count: int
    pending_count: int
    generation: int
    worker: str | None
    attempts: int
    last_error: str | None


class SubscriptionInfo(SubscriptionEntry, frozen=True, kw_only=True):
    """A subscription with a page of its streams.

    `streams_next` is the value of `streams_after` with which the next page begins.
    """

    streams: list[LinkEntry]
    streams_next: int | UnsetType = UNSET


class SubscriptionsPage(Struct, frozen=True):
    """A page of the list of subscriptions, sorted by id. `next` is None on the last page."""

    subscriptions: list[SubscriptionEntry]
    next: str | None = None


class ClaimResponse(Struct, frozen=True):
    """What a worker gets with its claim. `token` permits it to ack and to release the wake."""

    wake_id: str
    generation: int
    token: str
    streams: list[LinkEntry]
    lease_ttl_ms: int


class AckResponse(Struct, frozen=True):
    """The response to `callback` and `ack`.

    `next_wake` is True if this wake has ended, and there is more to process.
    """

    ok: bool
    next_wake: bool


class DeliveryBody(Struct, frozen=True):
    """The body that a webhook receives."""

    subscription_id: str
    wake_id: str
    generation: int
    streams: list[LinkEntry]
    callback_url: str
    callback_token: str


class DeliveryResponse(Struct, frozen=True):
    """The body with which a webhook responds. With `done`, the whole delivery is processed."""

    done: bool = False
