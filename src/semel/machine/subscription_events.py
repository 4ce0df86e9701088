"""The rows of subscriptions, and the events of commands on them."""

from typing import Final

from msgspec import Struct

from semel.machine.rows import Row

# ---- rows ----------------------------------------------------------------------------------------


class SubscriptionRow(Row, frozen=True, gc=False, array_like=True):
    """The configuration of a subscription, and the streams that it names now (`names`).

    `streams` are those that it named at its creation, sorted and without repetition.
    """

    type: str
    pattern: str | None
    streams: tuple[str, ...]
    url: str | None
    wake_stream: str | None
    lease_ms: int
    description: str | None
    created_ms: int
    names: tuple[str, ...] = ()


class WakeRow(Row, frozen=True, gc=False, array_like=True):
    """The newest wake of a subscription.

    `wake_id` is empty if no wake is in flight. `worker` is the one that has claimed it, or empty.
    `snapshot` has the number and the stable offset of each stream that was pending. `attempts` is
    how many deliveries have failed in a row, the last one with `error`. `next_stream` is the lowest
    number that no stream had when the wake was issued. `last` stays when the wake ends: it is the
    stream after which the next snapshot begins, or 0 if the snapshot had all pending streams.
    """

    generation: int = 0
    wake_id: str = ""
    issued_ms: int = 0
    worker: str = ""
    snapshot: tuple[tuple[int, int], ...] = ()
    attempts: int = 0
    error: str = ""
    is_suspended: bool = False
    next_stream: int = 0
    last: int = 0


# The values of `LinkRow.kinds`, which are added.
NAMED: Final = 1
MATCHED: Final = 2
NEVER_ACKED: Final = -1


class LinkRow(Row, frozen=True, gc=False, array_like=True):
    """The link between a stream and a subscription. `acked` can be NEVER_ACKED."""

    acked: int
    kinds: int


# ---- events --------------------------------------------------------------------------------------


class Subscribed(Struct, frozen=True, gc=False, array_like=True):
    """A subscription is created.

    `links` has the number, the acked offset and the kinds of each stream that it is linked to.
    """

    id: str
    row: SubscriptionRow
    links: tuple[tuple[int, int, int], ...] = ()


class Unsubscribed(Struct, frozen=True, gc=False, array_like=True):
    """A subscription is deleted, with its links and its wake."""

    id: str


class Linked(Struct, frozen=True, gc=False, array_like=True):
    """A subscription names more streams.

    `links` has the number and the acked offset of each of them that exists.
    """

    id: str
    names: tuple[str, ...]
    links: tuple[tuple[int, int], ...] = ()


class Unlinked(Struct, frozen=True, gc=False, array_like=True):
    """A subscription no longer names a stream. `stream` is its number, or 0 if there is none."""

    id: str
    name: str
    stream: int = 0


class WakeIssued(Struct, frozen=True, gc=False, array_like=True):
    """A wake is issued. Its message in the wake stream, if any, is in the section."""

    id: str
    wake_id: str
    generation: int
    snapshot: tuple[tuple[int, int], ...]


class Claimed(Struct, frozen=True, gc=False, array_like=True):
    """A worker has claimed the wake."""

    id: str
    worker: str


class Acked(Struct, frozen=True, gc=False, array_like=True):
    """Streams are processed up to an offset. `acks` has (stream, offset). The wake can be done."""

    id: str
    acks: tuple[tuple[int, int], ...]
    is_done: bool


class WakeEnded(Struct, frozen=True, gc=False, array_like=True):
    """A wake has ended without an ack, because of a release or of its lease."""

    id: str
    is_expired: bool


class DeliveryNoted(Struct, frozen=True, gc=False, array_like=True):
    """A delivery has failed, for the `attempts`-th time in a row; or, with 0, has not.

    With `is_resumed`, the suspension of the subscription has ended. The next delivery is not made
    before `retry_after_ms` have passed.
    """

    id: str
    attempts: int
    error: str = ""
    is_suspended: bool = False
    is_resumed: bool = False
    retry_after_ms: int = 0


SubscriptionEvent = (
    Subscribed
    | Unsubscribed
    | Linked
    | Unlinked
    | WakeIssued
    | Claimed
    | Acked
    | WakeEnded
    | DeliveryNoted
)
