"""What a frame says happened, and what a decision contains.

An event is the meta of one frame; the messages are beside it, in sections. `apply` reads nothing
else, so it must contain everything that the state needs of a command.
"""

from typing import Final

from msgspec import Struct

from semel.machine.rows import NamedPosition, SnapshotRow, StreamRow
from semel.model.commands import Owner
from semel.model.outcomes import Outcome

# ---- transactions, groups and sinks --------------------------------------------------------------


class Ended(Struct, frozen=True, gc=False, array_like=True):
    """The end of one transaction, and the offsets of its control records: (stream, offset)."""

    txn: int
    is_committed: bool
    reason: str
    markers: tuple[tuple[int, int], ...] = ()


class TxnBegun(Struct, frozen=True, gc=False, array_like=True):
    """A transaction begins. `ended` are those of older instances of its producer."""

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

    `positions` (group, stream, offset) are in old journals only: `PositionsNamed` replaced them.
    """

    txn: int
    streams: tuple[int, ...] = ()
    positions: tuple[tuple[str, int, int], ...] = ()


class PositionsNamed(Struct, frozen=True, gc=False, array_like=True):
    """The commit of a transaction moves more positions, or to other offsets."""

    txn: int
    positions: tuple[NamedPosition, ...]


class ChunkStaged(Struct, frozen=True, gc=False, array_like=True):
    """Messages of a staged transaction, in the section, without an offset."""

    txn: int
    seq: int


class TxnPrepared(Struct, frozen=True, gc=False, array_like=True):
    """A transaction is prepared."""

    txn: int


class CommitStamp(Struct, frozen=True, gc=False, array_like=True):
    """The producer of a one-shot commit; without a sequence, only its epoch is raised."""

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
    """Transactions end, chunks get their offsets, positions move: all at once.

    `extents` are packed (`txn/draft.py`), in the order of `ended`; messages of a one-shot
    commit are in the sections before the control records.
    """

    ended: tuple[Ended, ...] = ()
    extents: bytes = b""
    positions: tuple[tuple[str, int, int], ...] = ()
    producer: CommitStamp | None = None
    sink: SinkStamp | None = None
    by_operator: bool = False


class PositionsMoved(Struct, frozen=True, gc=False, array_like=True):
    """Positions move without a transaction: (group, stream, offset)."""

    positions: tuple[tuple[str, int, int], ...]


class SnapshotPinned(Struct, frozen=True, gc=False, array_like=True):
    """A group pins what its next step reads."""

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


# The kinds of a section: messages, a control record, or messages that have no offset yet.
SECTION_DATA: Final = 0
SECTION_CONTROL: Final = 4
SECTION_STAGED: Final = 8


class Section(Struct, frozen=True, gc=False):
    """Messages of one stream inside a frame, from offset `base` on.

    `is_joined`: the messages in `payload` have a comma between them (a JSON stream), else nothing.
    `lengths` holds a little-endian u32 for each; it is empty for a single message. `extras` are the
    keys, headers and timestamps of the messages, or empty. A `SECTION_STAGED` has no base. A
    `SECTION_CONTROL` takes an offset, and no reader gets it.
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
    """The identity of a producer's append, in the same frame as its messages."""

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
    """Messages are appended (in the section), the stream is closed, or both."""

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
    """A stream ends because it has expired."""

    stream: int


class StreamTrimmed(Struct, frozen=True, gc=False, array_like=True):
    """A stream's head moves."""

    stream: int
    head: int


class DedupSwitched(Struct, frozen=True, gc=False, array_like=True):
    """Duplicate detection starts at an offset, or (None) stops and its rows are dropped."""

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
    """A stream drops a producer."""

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
    """An epoch is raised, and the pending transactions of older instances end with it."""

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
    """The outcome, and the event to make durable before it is returned (None: nothing changes).

    `grows`: the event is refused on a full disk. One that frees room or ends something is not: it
    may use the reserve.
    """

    outcome: Outcome
    event: Event | None = None
    sections: Sections = ()
    grows: bool = False
