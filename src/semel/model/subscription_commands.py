"""Commands on subscriptions. The rules are in `docs/reference/subscriptions.md`."""

from collections.abc import Collection
from typing import Final

from msgspec import Struct

from semel.model.limits import (
    ACKS_MAX,
    DELIVERY_ERROR_BYTES_MAX,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    NUMBER_MAX,
    PATH_BYTES_MAX,
    SUBSCRIPTION_DESCRIPTION_BYTES_MAX,
    SUBSCRIPTION_ID_BYTES_MAX,
    SUBSCRIPTION_NAMES_MAX,
    TXN_LIST_MAX,
    WAKE_ID_BYTES_MAX,
    WEBHOOK_URL_BYTES_MAX,
    WORKER_BYTES_MAX,
)
from semel.model.names import first_invalid, is_name, is_number, is_optional_name
from semel.model.patterns import is_pattern

# The types of subscriptions.
WEBHOOK: Final = "webhook"
PULL_WAKE: Final = "pull-wake"


class CreateSubscription(Struct, frozen=True, gc=False):
    """Create a subscription, unless it exists with the same configuration.

    `url` is set for a webhook, and `wake_stream` for a pull-wake. At least one of `pattern` and
    `streams` is set.
    """

    now_ms: int
    id: str
    type: str
    pattern: str | None = None
    streams: tuple[str, ...] = ()
    url: str | None = None
    wake_stream: str | None = None
    lease_ms: int = 30_000
    description: str | None = None


class DeleteSubscription(Struct, frozen=True, gc=False):
    """Delete a subscription, its links and its wake."""

    now_ms: int
    id: str


class LinkStreams(Struct, frozen=True, gc=False):
    """Let a subscription name more streams."""

    now_ms: int
    id: str
    streams: tuple[str, ...]


class UnlinkStream(Struct, frozen=True, gc=False):
    """Let a subscription no longer name a stream."""

    now_ms: int
    id: str
    path: str


class IssueWake(Struct, frozen=True, gc=False):
    """Issue a wake if the subscription needs one. `wake_id` is a new random id."""

    now_ms: int
    id: str
    wake_id: str


class ClaimWake(Struct, frozen=True, gc=False):
    """Give the wake of a pull-wake subscription to a worker."""

    now_ms: int
    id: str
    worker: str


class WakeAck(Struct, frozen=True, gc=False):
    """What a worker says of its wake: how far it has processed streams, and whether it is done.

    `acks` has (path, offset) pairs. `is_permitted` is True if a commit had a valid token of the
    wake. It is not used outside of commits.
    """

    id: str
    wake_id: str
    generation: int
    acks: tuple[tuple[str, int], ...] = ()
    done: bool = False
    is_permitted: bool = False


class AckWake(Struct, frozen=True, gc=False):
    """Ack a wake. `type` is the type that the subscription must have, or None if it may have any.

    `has_token` is False if the request had no valid token of this subscription. With `by_snapshot`,
    the snapshot is acked, and `ack.acks` is empty.
    """

    now_ms: int
    ack: WakeAck
    type: str | None = None
    has_token: bool = True
    by_snapshot: bool = False


class ReleaseWake(Struct, frozen=True, gc=False):
    """End the wake of a pull-wake subscription without an ack. `has_token` is as in `AckWake`."""

    now_ms: int
    id: str
    wake_id: str
    generation: int
    has_token: bool = True


class ExpireWake(Struct, frozen=True, gc=False):
    """End a wake whose lease has expired.

    `elapsed_ms` is the time since the lease began or was renewed, by the monotonic clock.
    """

    now_ms: int
    id: str
    generation: int
    elapsed_ms: int


class NoteDelivery(Struct, frozen=True, gc=False):
    """Record that a delivery of a wake has failed or, with `error` None, that it has succeeded.

    After `attempts_max` failures in a row, the subscription is suspended. The wake is not delivered
    again before `retry_after_ms` have passed. `wake_id` is the id of the wake that was delivered: a
    new subscription with the id of a deleted one can have a wake with the same generation.
    """

    now_ms: int
    id: str
    generation: int
    error: str | None
    attempts_max: int = NUMBER_MAX
    retry_after_ms: int = 0
    wake_id: str | None = None  # None if it is not known


class ResumeSubscription(Struct, frozen=True, gc=False):
    """End the suspension of a subscription."""

    now_ms: int
    id: str


SubscriptionCommand = (
    CreateSubscription
    | DeleteSubscription
    | LinkStreams
    | UnlinkStream
    | IssueWake
    | ClaimWake
    | AckWake
    | ReleaseWake
    | ExpireWake
    | NoteDelivery
    | ResumeSubscription
)


# ---- fields --------------------------------------------------------------------------------------


def invalid_subscription_field(command: SubscriptionCommand) -> str | None:
    """Return the first invalid field of a command on a subscription, or None."""
    if isinstance(command, AckWake):
        return invalid_wake_acks((command.ack,))
    if not is_name(command.id, SUBSCRIPTION_ID_BYTES_MAX):
        return "id"
    match command:
        case CreateSubscription():
            return _in_create(command)
        case LinkStreams():
            return None if command.streams and _are_paths(command.streams) else "streams"
        case UnlinkStream():
            return None if is_name(command.path, PATH_BYTES_MAX) else "path"
        case IssueWake():
            return None if is_name(command.wake_id, WAKE_ID_BYTES_MAX) else "wake_id"
        case ClaimWake():
            return None if is_name(command.worker, WORKER_BYTES_MAX) else "worker"
        case ReleaseWake():
            return _in_wake(command.wake_id, command.generation)
        case ExpireWake() | NoteDelivery():
            return _in_report(command)
        case _:
            return None


def _in_create(command: CreateSubscription) -> str | None:
    is_webhook, is_pull = command.type == WEBHOOK, command.type == PULL_WAKE
    streams = _are_paths(command.streams) and bool(command.streams or command.pattern)
    is_url = is_optional_name(command.url, WEBHOOK_URL_BYTES_MAX)
    is_wake_stream = is_optional_name(command.wake_stream, PATH_BYTES_MAX)
    return first_invalid(
        ("type", is_webhook or is_pull),
        ("pattern", command.pattern is None or is_pattern(command.pattern)),
        ("streams", streams),
        ("url", is_url and (command.url is not None) == is_webhook),
        ("wake_stream", is_wake_stream and (command.wake_stream is not None) == is_pull),
        ("streams", command.wake_stream not in command.streams),
    ) or first_invalid(
        ("lease_ttl_ms", LEASE_MS_MIN <= command.lease_ms <= LEASE_MS_MAX),
        (
            "description",
            not command.description
            or is_name(command.description, SUBSCRIPTION_DESCRIPTION_BYTES_MAX),
        ),
    )


def _are_paths(paths: tuple[str, ...]) -> bool:
    is_sized = len(paths) <= SUBSCRIPTION_NAMES_MAX
    return is_sized and all(is_name(path, PATH_BYTES_MAX) for path in paths)


def invalid_wake_acks(wakes: Collection[WakeAck]) -> str | None:
    """Return the first invalid field of acks, or None."""
    if len(wakes) > TXN_LIST_MAX:
        return "subscriptions"
    if sum(len(wake.acks) for wake in wakes) > ACKS_MAX:
        return "acks"
    for wake in wakes:
        if not is_name(wake.id, SUBSCRIPTION_ID_BYTES_MAX):
            return "id"
        field = _in_wake(wake.wake_id, wake.generation)
        if field is not None:
            return field
        if not all(is_name(path, PATH_BYTES_MAX) for path, _ in wake.acks):
            return "acks"
    return None


def _in_wake(wake_id: str, generation: int) -> str | None:
    return first_invalid(
        ("wake_id", is_name(wake_id, WAKE_ID_BYTES_MAX)), ("generation", is_number(generation))
    )


def _in_report(command: ExpireWake | NoteDelivery) -> str | None:
    wake_id = command.wake_id if isinstance(command, NoteDelivery) else None
    return first_invalid(
        ("wake_id", is_optional_name(wake_id, WAKE_ID_BYTES_MAX)),
        ("generation", is_number(command.generation)),
    )


def shorten_error(error: str) -> str:
    """Return the first characters of an error, so that it can be stored with the attempts."""
    encoded = error.encode("utf-8", "replace")[:DELIVERY_ERROR_BYTES_MAX]
    return encoded.decode("utf-8", "ignore")
