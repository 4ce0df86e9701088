"""The errors of calls about subscriptions and their wakes."""

from semel.client.refused import Fact, Refused

__all__ = [
    "AlreadyClaimed",
    "InvalidAck",
    "NoPendingWork",
    "SubscriptionExists",
    "SubscriptionNotFound",
    "SubscriptionRefused",
    "WakeFenced",
    "WakeRefused",
    "WakeStreamRefused",
    "WakeTokenInvalid",
    "WebhookUrlRejected",
    "WrongSubscriptionType",
]


class SubscriptionRefused(Refused):
    """The server refused a call about a subscription or one of its wakes."""

    code = "subscription_refused"
    advice = "get the state of the subscription with client.subscriptions.show()"


class SubscriptionNotFound(SubscriptionRefused):
    """There is no such subscription."""


class SubscriptionExists(SubscriptionRefused):
    """The subscription already exists. With another configuration, `exist_ok` does not help."""


class WakeStreamRefused(SubscriptionRefused):
    """The stream cannot be a wake stream, for the given `reason`."""

    reason = Fact(str, "reason")


class WebhookUrlRejected(SubscriptionRefused):
    """The server does not deliver to this URL, because it is not allowed, or not public."""


class WrongSubscriptionType(SubscriptionRefused):
    """The call is for subscriptions of another type. This one has the type `type`."""

    type = Fact(str, "type")


class WakeRefused(SubscriptionRefused):
    """The wake of `subscription` cannot be claimed or acked. Nothing was applied."""

    code = "wake_refused"
    subscription = Fact(str, "subscription")


class WakeFenced(WakeRefused):
    """The wake has ended: by an ack, by a release, by its lease, or with its subscription.

    `generation` is that of the newest wake. If a request without a commit gets this after an
    attempt without a response, `applied` is "unknown", because that attempt can have ended the
    wake.
    """

    generation = Fact(int, "generation")


class WakeTokenInvalid(WakeRefused):
    """The token is not that of a wake of this subscription, or it has expired."""


class AlreadyClaimed(WakeRefused):
    """The worker `current_holder` has claimed the wake with this `generation`."""

    current_holder = Fact(str, "current_holder")
    generation = Fact(int, "generation")


class NoPendingWork(WakeRefused):
    """The subscription has nothing to process now."""


class InvalidAck(WakeRefused):
    """The wake cannot be acked up to this offset of `stream`. None of the acks was applied.

    The stream is not one of the subscription, or the offset is before what was acked, or after the
    tail.
    """

    stream = Fact(str, "stream")
