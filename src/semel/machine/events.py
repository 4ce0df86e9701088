"""What a frame says happened, and what a decision proposes.

An event is the meta of one frame; the messages travel beside it in sections. `apply` reads nothing
else, so whatever the state needs of a command has to be in here.
"""

from typing import Final

from msgspec import Struct

from semel.machine.rows import NamedPosition, SnapshotRow, StreamRow
from semel.model.outcomes import Outcome
from semel.model.transactions import Owner

# ---- txn events ----------------------------------------------------------------------------------
# What a frame says happened to transactions, groups and sinks.


class Ended(Struct, frozen=True, gc=False, array_like=True):
    """The end of one transaction, and the offsets of its control records: (stream, offset)."""

    txn: int
    is_committed: bool
    reason: str
    markers: tuple[tuple[int, int], ...] = ()


class TxnBegun(Struct, frozen=True, gc=False, array_like=True):
    """A transaction begins. `ended`: those of an older instance of its producer."""

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

    `positions`, (group, stream, offset), were named here before there was `PositionsNamed`.
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
    """A transaction is sealed."""

    txn: int


class CommitStamp(Struct, frozen=True, gc=False, array_like=True):
    """The producer of a one-shot commit; without a sequence its epoch is raised and no more."""

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
    """The decision: transactions end, chunks get their offsets, positions move. All at once.

    `extents` are packed (`parts.py`), in the order of `ended`; messages appended directly are in
    the sections before the control records.
    """

    ended: tuple[Ended, ...] = ()
    extents: bytes = b""
    positions: tuple[tuple[str, int, int], ...] = ()
    producer: CommitStamp | None = None
    sink: SinkStamp | None = None
    by_operator: bool = False


class PositionsMoved(Struct, frozen=True, gc=False, array_like=True):
    """Groups move, without a transaction: (group, stream, offset)."""

    positions: tuple[tuple[str, int, int], ...]


class SnapshotPinned(Struct, frozen=True, gc=False, array_like=True):
    """A group fixes what its next step reads."""

    group: str
    row: SnapshotRow


class SinkRebound(Struct, frozen=True, gc=False, array_like=True):
    """A sink belongs to another query."""

    app: str
    query_id: str
    last_version: int


class SinkForgotten(Struct, frozen=True, gc=False, array_like=True):
    """Nothing is known of a sink any more."""

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


# ---- events --------------------------------------------------------------------------------------


# What a section holds: messages, a control record, or messages that have no offset yet.
SECTION_DATA: Final = 0
SECTION_CONTROL: Final = 4
SECTION_STAGED: Final = 8


class Section(Struct, frozen=True, gc=False):
    """Messages of one stream inside a frame, from offset `base` on.

    `is_joined`: the messages of `payload` stand with a comma between them (a JSON stream), else end
    to end. `lengths` holds a little-endian u32 for each; it is empty for a single message.
    `extras` are the keys, headers and timestamps of the messages, or empty. A `SECTION_STAGED` has
    no base. A `SECTION_CONTROL` takes an offset, and no reader gets it.
    """

    stream: int
    base: int
    count: int
    payload: bytes
    lengths: bytes = b""
    is_joined: bool = False
    extras: bytes = b""
    kind: int = SECTION_DATA


class ProducerStamp(Struct, frozen=True, gc=False, array_like=True):
    """The producer side of an append, in the same frame as its data."""

    id: str
    mode: str
    epoch: int
    session: str | None
    first_seq: int
    last_seq: int
    digest: int
    cursor: bytes | None


class StreamCreated(Struct, frozen=True, gc=False, array_like=True):
    """A stream begins, its first messages in the sections."""

    row: StreamRow
    head: int
    is_closed: bool


class UnguardedCreated(StreamCreated, frozen=True, gc=False, array_like=True):
    """A stream begins that recognises no duplicates."""


class StreamAppended(Struct, frozen=True, gc=False, array_like=True):
    """Messages (in the section), a close, or both."""

    stream: int
    close: bool = False
    stream_seq: str | None = None
    stamp: ProducerStamp | None = None
    key: str | None = None
    digest: int = 0


class StreamDeleted(Struct, frozen=True, gc=False, array_like=True):
    """A stream ends on request."""

    stream: int


class StreamExpired(Struct, frozen=True, gc=False, array_like=True):
    """A stream ends because its time is over."""

    stream: int


class StreamTrimmed(Struct, frozen=True, gc=False, array_like=True):
    """A stream's head moves."""

    stream: int
    head: int


class DedupSwitched(Struct, frozen=True, gc=False, array_like=True):
    """A stream recognises duplicates from an offset on, or (None) forgets and does not."""

    stream: int
    dedup_from: int | None


class ProducerRegistered(Struct, frozen=True, gc=False, array_like=True):
    """A producer identity is given out or its epoch raised."""

    id: str
    epoch: int
    is_assigned: bool


class ProducerClaimed(Struct, frozen=True, gc=False, array_like=True):
    """A session takes a producer over; whoever wrote before is fenced."""

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
    """A stream keeps only a producer's tombstone."""

    stream: int
    id: str


class TxnPublished(Struct, frozen=True, gc=False, array_like=True):
    """An append that is part of an inline transaction."""

    txn: int
    append: StreamAppended


class ProducerRaised(Struct, frozen=True, gc=False, array_like=True):
    """Something that raises an epoch, and with it the older instance's transactions end."""

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
    """The answer, and the event to make durable before it is given (None: nothing changes).

    `grows` tells whether the event needs room a full disk cannot give; what frees room, or ends
    something, uses the reserve.
    """

    outcome: Outcome
    event: Event | None = None
    sections: tuple[Section, ...] = ()
    grows: bool = False
