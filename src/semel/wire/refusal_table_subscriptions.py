"""The entries of the refusal table about subscriptions."""

from typing import Any, Final

from semel.wire.problems import Entry

# The code of every other 400 below `/v1/stream/__ds/`, and of a URL that is not allowed.
INVALID_REQUEST: Final = "INVALID_REQUEST"
URL_REJECTED: Final = "WEBHOOK_URL_REJECTED"


def _not_found(outcome: Any) -> str:
    name = f"subscription {outcome.id!r}" if outcome.id else "such subscription"
    return f"there is no {name}"


SUBSCRIPTION_REFUSALS: Final = (
    Entry(
        "SUBSCRIPTION_NOT_FOUND",
        404,
        outcome="UnknownSubscription",
        message=_not_found,
        names={"id": "subscription"},
        error="SubscriptionNotFound",
        advice="create the subscription, or correct its id",
        cli="`semel subscriptions ls` lists the subscriptions",
    ),
    Entry(
        "SUBSCRIPTION_ALREADY_EXISTS",
        409,
        outcome="SubscriptionExists",
        message="the subscription already exists with another configuration",
        error="SubscriptionExists",
        advice="use the configuration of the existing subscription, or choose a different id",
        cli="`semel subscriptions show` shows the existing configuration; use it, or another id",
    ),
    Entry(
        "wake_stream_refused",
        409,
        outcome="WakeStreamRefused",
        message="{0.path} cannot be the wake stream: {0.reason}",
        names={"path": "stream"},
        error="WakeStreamRefused",
        advice="create a stream for the wakes, with the content type application/json",
        cli="`semel create --content-type application/json` creates a stream for the wakes",
    ),
    Entry(
        "wrong_type",
        400,
        outcome="WrongType",
        message="the subscription has the type {0.type}, and this call is for the other one",
        error="WrongSubscriptionType",
        advice="call back for a webhook; claim, ack and release for a pull-wake",
    ),
    Entry(
        "TOKEN_INVALID",
        401,
        outcome="TokenInvalid",
        message="the request has no valid token of a wake of this subscription",
        error="WakeTokenInvalid",
        advice="send the token that came with the delivery or the claim",
    ),
    Entry(
        "FENCED",
        409,
        outcome="Fenced",
        message=(
            "the wake is not in flight: it has ended, or was not claimed; the newest one has the"
            " generation {0.generation}. Nothing was applied"
        ),
        names={"id": "subscription"},
        error="WakeFenced",
        advice="drop the work of this wake, and wait for the next one",
    ),
    Entry(
        "ALREADY_CLAIMED",
        409,
        outcome="AlreadyClaimed",
        message="the worker {0.current_holder!r} has claimed the wake",
        error="AlreadyClaimed",
        advice="wait for the next message in the wake stream",
    ),
    Entry(
        "NO_PENDING_WORK",
        409,
        outcome="NoPendingWork",
        message="the subscription has nothing to process",
        error="NoPendingWork",
        advice="wait for the next message in the wake stream",
    ),
    Entry(
        "INVALID_OFFSET",
        409,
        outcome="InvalidOffset",
        message=(
            "the stream {0.path} cannot be acked up to this offset: the subscription does not"
            " follow it, or it is newer than the wake, or acked twice, or the offset is -1, before"
            " what was acked, or after the tail. None of the acks was applied"
        ),
        names={"id": "subscription", "path": "stream"},
        error="InvalidAck",
        advice="ack the offsets that the delivery or the claim has, or those of a read",
    ),
    # These are refused before they reach the engine.
    Entry(
        URL_REJECTED,
        400,
        error="WebhookUrlRejected",
        advice="use https and a public host, or let the operator allow the network",
        cli="use https and a public host, or allow its network with `semel serve --webhook-allow`",
    ),
    Entry(INVALID_REQUEST, 400),
)
