"""Subscriptions and their wakes, as the client returns them to its caller."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct, field

from semel.client.values import START, Message, Offset, offset_of
from semel.model.subscription_commands import PULL_WAKE, WEBHOOK
from semel.wire.schema.transactions import CommitAck, CommitWake, CommitWakes

__all__ = [
    "PULL_WAKE",
    "WEBHOOK",
    "AckedWake",
    "SubscribedStream",
    "SubscriptionState",
    "WakeBatch",
    "WakeInfo",
    "WakeStream",
    "Webhook",
]

EXPLICIT: Final = "explicit"


# ---- subscriptions -------------------------------------------------------------------------------


class SubscribedStream(Struct, frozen=True):
    """A stream that a subscription follows.

    `link_type` is "explicit" if the subscription names the stream, and "glob" if only its pattern
    matches it. `acked_offset` is how far it was processed, or "-1" before the first ack of a stream
    that is newer than the subscription. `tail_offset` is the end of what can be read.
    """

    path: str
    link_type: str = EXPLICIT
    acked_offset: str = START
    tail_offset: str | None = None
    has_pending: bool = False


class Webhook(Struct, frozen=True):
    """Where a subscription delivers its wakes. `signing` says with which key it signs them."""

    url: str
    signing: dict[str, str] = {}


class SubscriptionState(Struct, frozen=True):
    """A subscription.

    - `type`: "webhook" or "pull-wake".
    - `pattern`, `streams`: what it follows. A list of subscriptions has no streams. `streams_next`
      is set if there are more streams.
    - `stream_count`, `pending_count`: how many streams it follows, and in how many of them there is
      something to process.
    - `generation`: how many wakes there were. `worker` has claimed the present one.
    - `status`: "active", "failed" (a delivery has failed, and is tried again), or "suspended".
      `attempts` deliveries of the present wake have failed, the last with `last_error`.
    """

    id: str
    type: str
    pattern: str | None = None
    streams: list[SubscribedStream] = []
    webhook: Webhook | None = None
    wake_stream: str | None = None
    lease_ttl_ms: int = 30_000
    created_at: str | None = None
    status: str = "active"
    description: str | None = None
    stream_count: int | None = None
    pending_count: int | None = None
    generation: int = 0
    worker: str | None = None
    attempts: int = 0
    last_error: str | None = None
    streams_next: int | str | None = None


# ---- wakes ---------------------------------------------------------------------------------------


class WakeStream(Struct, frozen=True):
    """A stream of a wake. Its messages from `acked_offset` up to `tail_offset` are pending."""

    path: str
    acked_offset: str = START
    tail_offset: str = START
    link_type: str = EXPLICIT
    has_pending: bool = False


class AckedWake(Struct, frozen=True):
    """What a commit says of a wake: how far its streams were processed, and that it is done.

    `token` is the proof that the caller has the wake. Without it, the right to write to the
    subscription is needed.
    """

    subscription: str
    wake_id: str
    generation: int
    offsets: Mapping[str, str] = {}
    done: bool = True
    token: str | None = None

    def __repr__(self) -> str:
        """Return what the ack is for. The token is a secret."""
        return f"AckedWake({self.subscription!r}, generation={self.generation}, done={self.done})"


class WakeInfo(Struct, frozen=True):
    """A wake of a subscription, and the token with which it can be acked."""

    subscription: str
    wake_id: str
    generation: int
    token: str
    streams: list[WakeStream] = []
    lease_ttl_ms: int = 30_000
    type: str = PULL_WAKE

    def __repr__(self) -> str:
        """Return which wake it is. The token is a secret."""
        return f"WakeInfo({self.subscription!r}, generation={self.generation})"

    @property
    def tails(self) -> dict[str, str]:
        """The end of what is pending in each stream."""
        return {each.path: each.tail_offset for each in self.streams if each.has_pending}

    def acked(self, offsets: Mapping[str, Offset] | None = None, *, done: bool = True) -> AckedWake:
        """Return what a commit says of this wake. By default, everything in it was processed."""
        ends = self.tails if offsets is None else offsets
        texts = {path: offset_of(offset) for path, offset in ends.items()}
        return AckedWake(
            self.subscription, self.wake_id, self.generation, texts, done=done, token=self.token
        )


class WakeBatch(Struct, frozen=True):
    """Messages of a wake: those of one stream after another, in each stream in order.

    Iterating over the batch yields the messages. `message.stream` is the path of its stream.
    """

    subscription: str
    generation: int
    messages: list[Message]
    # How far the streams are processed, once the messages are; and those of which nothing could be
    # read, although something is pending. Both are internal.
    ends: dict[str, str] = field(default_factory=dict)
    unread: frozenset[str] = frozenset()

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def streams(self) -> dict[str, list[Message]]:
        """The messages of each stream."""
        found: dict[str, list[Message]] = {}
        for message in self.messages:
            found.setdefault(message.stream or "", []).append(message)
        return found


def commit_wakes(acks: Iterable[AckedWake]) -> CommitWakes:
    """Return what a commit says of wakes, in the form of a request.

    Raises ValueError if a subscription occurs twice.
    """
    found: CommitWakes = {}
    for ack in acks:
        if ack.subscription in found:
            raise ValueError(f"the subscription {ack.subscription} has two wakes in one commit")
        ends = [CommitAck(path, offset) for path, offset in ack.offsets.items()]
        found[ack.subscription] = CommitWake(ack.wake_id, ack.generation, ends, ack.done, ack.token)
    return found
