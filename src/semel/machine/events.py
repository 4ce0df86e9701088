"""Events, sections and decisions.

An event is stored in one frame, and its messages are in the sections of the same frame. `apply`
does not get the command. Therefore an event contains all data that the state needs.
"""

from typing import Final

from msgspec import Struct

from semel.machine.access_events import AccessEvent
from semel.machine.rows import NewPosition, NewStream, PolicyRow, SnapshotRow
from semel.machine.shared_events import SharedEvent
from semel.machine.subscription_events import Acked, SubscriptionEvent
from semel.model.commands import Metadata, Owner
from semel.model.outcomes import Outcome

# ---- transactions, groups and sinks --------------------------------------------------------------


class Ended(Struct, frozen=True, gc=False, array_like=True):
    """The end of one transaction.

    `markers` contains the stream and the offset of each control record of the transaction.
    """

    txn: int
    is_committed: bool
    reason: str
    markers: tuple[tuple[int, int], ...] = ()


class TxnBegun(Struct, frozen=True, gc=False, array_like=True):
    """A transaction begins.

    `ended` contains the pending transactions of the producer's older instances. The same frame
    aborts these transactions.
    """

    number: int
    id: str
    epoch: int
    kind: str
    owner: Owner
    is_implicit: bool
    timeout_ms: int | None
    streams: tuple[int, ...] = ()
    ended: tuple[Ended, ...] = ()


class TxnExtended(Struct, frozen=True, gc=False, array_like=True):
    """A transaction is allowed to write to more streams.

    `positions` is set only in old journals, as tuples of (group, stream, offset). New journals have
    `PositionsNamed` events instead.
    """

    txn: int
    streams: tuple[int, ...] = ()
    positions: tuple[tuple[str, int, int], ...] = ()


class PositionsNamed(Struct, frozen=True, gc=False, array_like=True):
    """A transaction names positions that its commit will move.

    A position that the transaction has already named gets a new target offset.
    """

    txn: int
    positions: tuple[NewPosition, ...]


class PositionsNamedWithMetadata(PositionsNamed, frozen=True, gc=False, array_like=True):
    """A transaction names positions, and the metadata that their moves will set.

    `metadata` has one element for each position. It is empty if a move sets no metadata.
    """

    metadata: tuple[Metadata, ...] = ()


class PositionsNamedByMembers(PositionsNamedWithMetadata, frozen=True, gc=False, array_like=True):
    """A transaction names positions, some of which members of their groups will move.

    `members` has one element for each position: the id of the member and the epoch at which it owns
    the stream, or None. `metadata` is empty if no move sets metadata.
    """

    members: tuple[tuple[str, int] | None, ...] = ()


class ChunkStaged(Struct, frozen=True, gc=False, array_like=True):
    """A chunk is staged. Its messages are in the frame's section and have no offsets yet.

    An append to a topic stages a chunk for each partition that gets messages.
    """

    txn: int
    seq: int


class TxnPrepared(Struct, frozen=True, gc=False, array_like=True):
    """A transaction is prepared."""

    txn: int


class CommitStamp(Struct, frozen=True, gc=False, array_like=True):
    """The producer in a `Decided` event.

    If `seq` is set, the event is a one-shot commit with that sequence. If `seq` is None, the event
    raises the producer's epoch to `epoch` in order to fence older instances.
    """

    id: str
    epoch: int
    seq: int | None
    digest: int = 0


class SinkStamp(Struct, frozen=True, gc=False, array_like=True):
    """The sink of a one-shot commit."""

    app: str
    query_id: str
    version: int
    input: str | None


class Decided(Struct, frozen=True, gc=False, array_like=True):
    """Transactions end, their chunks get offsets, and positions move, all in one frame.

    `extents` contains the offsets of each chunk, packed (see `txn/draft.py`), in the order of
    `ended`. In the sections, the messages of a one-shot commit come before the control records.
    """

    ended: tuple[Ended, ...] = ()
    extents: bytes = b""
    positions: tuple[tuple[str, int, int], ...] = ()
    producer: CommitStamp | None = None
    sink: SinkStamp | None = None
    by_operator: bool = False


class DecidedWithMetadata(Decided, frozen=True, gc=False, array_like=True):
    """A one-shot commit whose moves set metadata: one element for each item of `positions`."""

    metadata: tuple[Metadata, ...] = ()


class DecidedWithAcks(DecidedWithMetadata, frozen=True, gc=False, array_like=True):
    """A commit, of a transaction or one-shot, that also acks wakes of subscriptions."""

    wakes: tuple[Acked, ...] = ()


class PositionsMoved(Struct, frozen=True, gc=False, array_like=True):
    """Positions are moved outside a transaction. Each move is stored as (group, stream, offset)."""

    positions: tuple[tuple[str, int, int], ...]


class PositionsMovedWithMetadata(PositionsMoved, frozen=True, gc=False, array_like=True):
    """Positions are moved, and get metadata: one element for each item of `positions`."""

    metadata: tuple[Metadata, ...] = ()


class SnapshotPinned(Struct, frozen=True, gc=False, array_like=True):
    """A group pins the offset ranges that its next step reads."""

    group: str
    row: SnapshotRow


class SinkRebound(Struct, frozen=True, gc=False, array_like=True):
    """A sink is bound to a query. The query can differ from the previous query."""

    app: str
    query_id: str
    last_version: int


class SinkForgotten(Struct, frozen=True, gc=False, array_like=True):
    """The row of a sink is dropped."""

    app: str


TxnEvent = (
    TxnBegun
    | TxnExtended
    | PositionsNamed
    | PositionsNamedWithMetadata
    | PositionsNamedByMembers
    | ChunkStaged
    | TxnPrepared
    | Decided
    | DecidedWithMetadata
    | DecidedWithAcks
    | PositionsMoved
    | PositionsMovedWithMetadata
    | SnapshotPinned
    | SinkRebound
    | SinkForgotten
)


# ---- streams and producers -----------------------------------------------------------------------


# The kinds of sections: messages, a control record, or a chunk. A chunk has no offsets yet.
SECTION_DATA: Final = 0
SECTION_CONTROL: Final = 4
SECTION_STAGED: Final = 8


class Section(Struct, frozen=True, gc=False):
    """Messages of one stream inside a frame. The first message has the offset `base`.

    If `kind` is SECTION_STAGED, the section is a chunk. A chunk has no offsets yet, so `base` must
    be ignored. If `kind` is SECTION_CONTROL, the section is a control record: the end of a
    transaction. A control record takes one offset, but readers never get it.
    """

    stream: int
    base: int
    count: int
    payload: bytes
    lengths: bytes = b""  # the length of each message as a little-endian u32; empty for one message
    is_joined: bool = False  # True for several JSON messages: commas separate them in `payload`
    extras: bytes = b""  # the keys, headers and timestamps of the messages, or empty
    kind: int = SECTION_DATA


Sections = tuple[Section, ...]


class ProducerStamp(Struct, frozen=True, gc=False, array_like=True):
    """The identity of a producer's append. It is stored in the same frame as the messages."""

    id: str
    mode: str
    epoch: int
    session: str | None
    first_seq: int
    last_seq: int
    digest: int
    cursor: bytes | None


class StreamCreated(Struct, frozen=True, gc=False, array_like=True):
    """A stream is created. Its first messages, if any, are in the sections."""

    row: NewStream
    head: int
    is_closed: bool


class UnguardedCreated(StreamCreated, frozen=True, gc=False, array_like=True):
    """A stream without duplicate detection is created. The setting is the stream's own."""


class StreamAppended(Struct, frozen=True, gc=False, array_like=True):
    """Messages are appended to a stream, or the stream is closed, or both.

    The messages are in the section. If `stream` is a topic, there is a section for each of its
    partitions that gets messages.
    """

    stream: int
    close: bool = False
    stream_seq: str | None = None
    stamp: ProducerStamp | None = None
    key: str | None = None
    digest: int = 0


class StreamDeleted(Struct, frozen=True, gc=False, array_like=True):
    """A stream is deleted on request."""

    stream: int


class StreamExpired(Struct, frozen=True, gc=False, array_like=True):
    """A stream is deleted because it has expired."""

    stream: int


class StreamTrimmed(Struct, frozen=True, gc=False, array_like=True):
    """A stream is trimmed. Its head moves, and the messages before the new head are dropped."""

    stream: int
    head: int


class DedupSwitched(Struct, frozen=True, gc=False, array_like=True):
    """Duplicate detection starts at the offset `dedup_from`, or stops if `dedup_from` is None.

    If it stops, the setting is then the stream's own. If it starts, the stream then inherits; this
    occurs only in old journals. New journals have `StreamConfigured` events instead.
    """

    stream: int
    dedup_from: int | None


class PolicyChanged(Struct, frozen=True, gc=False, array_like=True):
    """A prefix gets the policy `row`, or loses its policy if `row` is None."""

    prefix: str
    row: PolicyRow | None


class ProducerRegistered(Struct, frozen=True, gc=False, array_like=True):
    """A producer is registered, or its epoch is raised.

    `is_assigned` is True if the server assigned the id.
    """

    id: str
    epoch: int
    is_assigned: bool


class ProducerClaimed(Struct, frozen=True, gc=False, array_like=True):
    """A session takes over a producer in a stream. The previous instance is fenced."""

    stream: int
    id: str
    mode: str
    epoch: int
    session: str


class ProducerForgotten(Struct, frozen=True, gc=False, array_like=True):
    """A producer's row in a stream is dropped."""

    stream: int
    id: str


class ProducerExpired(Struct, frozen=True, gc=False, array_like=True):
    """A producer's row in a stream becomes a tombstone."""

    stream: int
    id: str


class ProducersRetired(Struct, frozen=True, gc=False, array_like=True):
    """Producers are retired. Each is stored as (stream, id); stream 0 means the registration.

    A row in a stream becomes a tombstone. A registration that the server assigned is dropped. A
    registration with a name is marked, so that it is dropped after some days without use.
    """

    producers: tuple[tuple[int, str], ...]


class TombstonesDropped(Struct, frozen=True, gc=False, array_like=True):
    """Tombstones are dropped, and retired registrations. Each is stored as (stream, id)."""

    tombstones: tuple[tuple[int, str], ...]


class HourPassed(Struct, frozen=True, gc=False, array_like=True):
    """A server has run for one more hour, by a monotonic clock."""


class TxnPublished(Struct, frozen=True, gc=False, array_like=True):
    """An append that is part of an inline transaction."""

    txn: int
    append: StreamAppended


class ProducerRaised(Struct, frozen=True, gc=False, array_like=True):
    """A producer's epoch is raised, and the pending transactions of older instances are aborted.

    `ended` contains these transactions. Exactly one of the other three fields is set: the append,
    the registration or the claim that raised the epoch.
    """

    ended: tuple[Ended, ...]
    append: StreamAppended | None = None
    registered: ProducerRegistered | None = None
    claimed: ProducerClaimed | None = None


class StreamConfigured(Struct, frozen=True, gc=False, array_like=True):
    """The duplicate detection of a stream is set, alone or together with a creation or an append.

    `dedup_from` has the meaning that it has in `TailRow`. If detection starts or stops, the
    producers and keys of the stream are dropped, before the append. `is_own` is True if the setting
    is the stream's own. `ended` contains the transactions that the append aborts. `expires_ms` is
    the idle time that the append's producer declares, or 0.
    """

    stream: int
    dedup_from: int | None
    is_own: bool
    created: StreamCreated | None = None
    append: StreamAppended | None = None
    ended: tuple[Ended, ...] = ()
    expires_ms: int = 0


class ProducerDeclared(Struct, frozen=True, gc=False, array_like=True):
    """A producer declares its idle time, in the frame of its append, claim or registration.

    Exactly one of the fields after `expires_ms` is set: what else the frame does.
    """

    expires_ms: int
    append: StreamAppended | None = None
    published: TxnPublished | None = None
    claimed: ProducerClaimed | None = None
    registered: ProducerRegistered | None = None
    raised: ProducerRaised | None = None


Event = (
    StreamCreated
    | UnguardedCreated
    | StreamAppended
    | StreamDeleted
    | StreamExpired
    | StreamTrimmed
    | DedupSwitched
    | PolicyChanged
    | StreamConfigured
    | ProducerRegistered
    | ProducerForgotten
    | ProducerExpired
    | ProducerClaimed
    | ProducersRetired
    | TombstonesDropped
    | HourPassed
    | TxnPublished
    | ProducerRaised
    | ProducerDeclared
    | AccessEvent
    | SharedEvent
    | SubscriptionEvent
    | TxnEvent
)


def declared_event(event: Event) -> Event:
    """Return the event in a ProducerDeclared, or any other event as it is."""
    if not isinstance(event, ProducerDeclared):
        return event
    inner = event.append or event.published or event.claimed or event.registered or event.raised
    assert inner is not None
    return inner


def producer_in(event: Event) -> tuple[int, str] | None:
    """Return the stream and the id of the producer that appends, claims or registers in an event.

    The stream of a registration is 0. Return None if the event names no producer.
    """
    inner: Event | None = declared_event(event)
    if isinstance(inner, TxnPublished | StreamConfigured):
        inner = inner.append
    elif isinstance(inner, ProducerRaised):
        inner = inner.append or inner.claimed or inner.registered
    if isinstance(inner, StreamAppended):
        return None if inner.stamp is None else (inner.stream, inner.stamp.id)
    if isinstance(inner, ProducerClaimed):
        return inner.stream, inner.id
    return (0, inner.id) if isinstance(inner, ProducerRegistered) else None


class Decision(Struct, frozen=True, gc=False):
    """The outcome of a command, and the event that must be durable before the outcome is sent.

    The event is None if the state does not change. If `grows` is True, the event is refused on a
    full disk. All other events are accepted on a full disk, and can use the reserved space.
    """

    outcome: Outcome
    event: Event | None = None
    sections: Sections = ()
    grows: bool = False
