"""Events, sections and decisions.

An event is the meta of one frame; the messages are in the sections of that frame. `apply` reads
nothing else, so an event must contain everything from the command that the state needs.
"""

from typing import Final

from msgspec import Struct

from semel.machine.rows import NamedPosition, SnapshotRow, StreamRow
from semel.model.commands import Owner
from semel.model.outcomes import Outcome

# ---- transactions, groups and sinks --------------------------------------------------------------


class Ended(Struct, frozen=True, gc=False, array_like=True):
    """The end of one transaction; `markers` are (stream, offset) of its control records."""

    txn: int
    is_committed: bool
    reason: str
    markers: tuple[tuple[int, int], ...] = ()


class TxnBegun(Struct, frozen=True, gc=False, array_like=True):
    """A transaction begins; `ended` are pending ones of older instances, which it aborts."""

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
    """A transaction may write more streams.

    `positions` (group, stream, offset) occurs only in old journals; `PositionsNamed` replaced it.
    """

    txn: int
    streams: tuple[int, ...] = ()
    positions: tuple[tuple[str, int, int], ...] = ()


class PositionsNamed(Struct, frozen=True, gc=False, array_like=True):
    """A transaction names positions that its commit moves, or changes their offsets."""

    txn: int
    positions: tuple[NamedPosition, ...]


class ChunkStaged(Struct, frozen=True, gc=False, array_like=True):
    """A chunk of a staged transaction; its messages are in the section and have no offset."""

    txn: int
    seq: int


class TxnPrepared(Struct, frozen=True, gc=False, array_like=True):
    """A transaction is prepared."""

    txn: int


class CommitStamp(Struct, frozen=True, gc=False, array_like=True):
    """The producer of a one-shot commit; if `seq` is None, only its epoch is raised."""

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
    """Transactions end, chunks get their offsets and positions move, all in one frame.

    `extents` is packed (see `txn/draft.py`), in the order of `ended`. The messages of a one-shot
    commit are in the sections before the control records.
    """

    ended: tuple[Ended, ...] = ()
    extents: bytes = b""
    positions: tuple[tuple[str, int, int], ...] = ()
    producer: CommitStamp | None = None
    sink: SinkStamp | None = None
    by_operator: bool = False


class PositionsMoved(Struct, frozen=True, gc=False, array_like=True):
    """Positions (group, stream, offset) move outside a transaction."""

    positions: tuple[tuple[str, int, int], ...]


class SnapshotPinned(Struct, frozen=True, gc=False, array_like=True):
    """A group pins the ranges that its next step reads."""

    group: str
    row: SnapshotRow


class SinkRebound(Struct, frozen=True, gc=False, array_like=True):
    """A sink is bound to another query."""

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
    | ChunkStaged
    | TxnPrepared
    | Decided
    | PositionsMoved
    | SnapshotPinned
    | SinkRebound
    | SinkForgotten
)


# ---- streams and producers -----------------------------------------------------------------------


# The kinds of a section: messages, a control record, or a chunk, which has no offset yet.
SECTION_DATA: Final = 0
SECTION_CONTROL: Final = 4
SECTION_STAGED: Final = 8


class Section(Struct, frozen=True, gc=False):
    """Messages of one stream inside a frame; the first has the offset `base`.

    With `is_joined` (a JSON stream), the messages in `payload` are separated by commas. `lengths`
    contains the length of each as a little-endian u32; it is empty for a single message. `extras`
    contains the keys, headers and timestamps of the messages, or is empty. In a section of kind
    SECTION_STAGED, `base` has no meaning. One of kind SECTION_CONTROL takes an offset, but no
    reader gets it.
    """

    stream: int
    base: int
    count: int
    payload: bytes
    lengths: bytes = b""
    is_joined: bool = False
    extras: bytes = b""
    kind: int = SECTION_DATA


Sections = tuple[Section, ...]


class ProducerStamp(Struct, frozen=True, gc=False, array_like=True):
    """The identity of a producer's append, stored in the same frame as its messages."""

    id: str
    mode: str
    epoch: int
    session: str | None
    first_seq: int
    last_seq: int
    digest: int
    cursor: bytes | None


class StreamCreated(Struct, frozen=True, gc=False, array_like=True):
    """A stream is created; its first messages are in the sections."""

    row: StreamRow
    head: int
    is_closed: bool


class UnguardedCreated(StreamCreated, frozen=True, gc=False, array_like=True):
    """A stream without duplicate detection is created."""


class StreamAppended(Struct, frozen=True, gc=False, array_like=True):
    """The messages in the section are appended, the stream is closed, or both."""

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
    """The head of a stream moves; the messages before it are dropped."""

    stream: int
    head: int


class DedupSwitched(Struct, frozen=True, gc=False, array_like=True):
    """Duplicate detection starts at `dedup_from`, or stops if that is None."""

    stream: int
    dedup_from: int | None


class ProducerRegistered(Struct, frozen=True, gc=False, array_like=True):
    """A producer is registered, or its epoch is raised."""

    id: str
    epoch: int
    is_assigned: bool


class ProducerClaimed(Struct, frozen=True, gc=False, array_like=True):
    """A session takes a producer over; the previous instance is fenced."""

    stream: int
    id: str
    mode: str
    epoch: int
    session: str


class ProducerForgotten(Struct, frozen=True, gc=False, array_like=True):
    """The row of a producer in a stream is dropped."""

    stream: int
    id: str


class ProducerExpired(Struct, frozen=True, gc=False, array_like=True):
    """The row of a producer becomes a tombstone."""

    stream: int
    id: str


class TxnPublished(Struct, frozen=True, gc=False, array_like=True):
    """An append that is part of an inline transaction."""

    txn: int
    append: StreamAppended


class ProducerRaised(Struct, frozen=True, gc=False, array_like=True):
    """An epoch is raised, which aborts the pending transactions of older instances (`ended`).

    An append, a registration or a claim raised it; exactly one of them is set.
    """

    ended: tuple[Ended, ...]
    append: StreamAppended | None = None
    registered: ProducerRegistered | None = None
    claimed: ProducerClaimed | None = None


Event = (
    StreamCreated
    | UnguardedCreated
    | StreamAppended
    | StreamDeleted
    | StreamExpired
    | StreamTrimmed
    | DedupSwitched
    | ProducerRegistered
    | ProducerForgotten
    | ProducerExpired
    | ProducerClaimed
    | TxnPublished
    | ProducerRaised
    | TxnEvent
)


class Decision(Struct, frozen=True, gc=False):
    """The outcome of a command, and the event to make durable before the outcome is returned.

    The event is None if nothing changes. With `grows`, the event is refused on a full disk. An
    event that frees space or ends something is not: it may use the reserve.
    """

    outcome: Outcome
    event: Event | None = None
    sections: Sections = ()
    grows: bool = False
