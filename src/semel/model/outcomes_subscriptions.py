"""The outcomes of commands on subscriptions."""

from typing import Final

from semel.model.outcomes import Outcome, Refusal


class SubscriptionCreated(Outcome, frozen=True, gc=False):
    """The subscription exists. `is_new` is False if it existed with the same configuration."""

    id: str
    is_new: bool


class SubscriptionDeleted(Outcome, frozen=True, gc=False):
    """The subscription is deleted."""


class LinksChanged(Outcome, frozen=True, gc=False):
    """The subscription names the streams, or names them no longer, as the command demands."""


class WakeChanged(Outcome, frozen=True, gc=False):
    """A wake is issued, released or expired, or a delivery is recorded, if that was needed."""


class WakeClaimed(Outcome, frozen=True, gc=False):
    """The worker has the wake."""

    wake_id: str
    generation: int


class WakeAcked(Outcome, frozen=True, gc=False):
    """The acks are applied. `next_wake` is True if the wake has ended and work is pending."""

    next_wake: bool


# ---- refused -------------------------------------------------------------------------------------


# The reason of WakeStreamRefused if there is no such stream, or if the caller may not know it.
NO_WAKE_STREAM: Final = "it does not exist; create it first, with the content type application/json"


class UnknownSubscription(Refusal, frozen=True, gc=False):
    """There is no such subscription. `id` is set if a commit names it."""

    code = "SUBSCRIPTION_NOT_FOUND"
    id: str = ""


class SubscriptionExists(Refusal, frozen=True, gc=False):
    """The subscription exists with another configuration."""

    code = "SUBSCRIPTION_ALREADY_EXISTS"


class WakeStreamRefused(Refusal, frozen=True, gc=False):
    """The stream cannot be a wake stream, for the given reason."""

    code = "wake_stream_refused"
    path: str
    reason: str


class WrongType(Refusal, frozen=True, gc=False):
    """The call is for subscriptions of another type. `type` is that of the subscription."""

    code = "wrong_type"
    type: str


class TokenInvalid(Refusal, frozen=True, gc=False):
    """The request has no valid token of this subscription."""

    code = "TOKEN_INVALID"


class Fenced(Refusal, frozen=True, gc=False):
    """The wake is not in flight any more. `generation` is that of the newest wake."""

    code = "FENCED"
    id: str
    generation: int


class AlreadyClaimed(Refusal, frozen=True, gc=False):
    """A worker has claimed the wake."""

    code = "ALREADY_CLAIMED"
    current_holder: str
    generation: int


class NoPendingWork(Refusal, frozen=True, gc=False):
    """There is nothing to process."""

    code = "NO_PENDING_WORK"


class InvalidOffset(Refusal, frozen=True, gc=False):
    """An ack names a stream without a link, or an offset that it cannot move to."""

    code = "INVALID_OFFSET"
    id: str
    path: str
