"""The rows of the state: frozen, so that a checkpoint may keep a reference and read it later."""

from msgspec import Struct

from semel.model.transactions import Owner, SnapshotRange
from semel.model.txn_outcome import TxnOutcome


class Row(Struct, frozen=True, gc=False, array_like=True):
    """Anything the checkpoint stores under a key."""


class ForkRow(Row, frozen=True, gc=False, array_like=True):
    """Where a fork leaves its source: everything before `start` is read there.

    `anchor` and `sub_offset` are what the first creation asked for, to compare a second one with.
    """

    source: int
    source_path: str
    anchor: int
    sub_offset: int
    start: int


class StreamRow(Row, frozen=True, gc=False, array_like=True):
    """What is fixed when a stream is created."""

    number: int
    path: str
    incarnation: str
    content_type: str
    created_ms: int
    ttl_ms: int | None = None
    expires_at_ms: int | None = None
    inherits_expiry: bool = False
    fork: ForkRow | None = None


class TailRow(Row, frozen=True, gc=False, array_like=True):
    """What moves with every append, and what an operator moves.

    `dedup_from` is the offset from which duplicates are recognised; None: they are not. Whatever
    lies below `stable` is decided: the first offset of the oldest inline transaction open in the
    stream, else the tail. From `aborted_end` on nothing is aborted: readers need not look for it.
    """

    head: int
    tail: int
    is_closed: bool
    is_deleted: bool
    stream_seq: str | None
    written_ms: int
    dedup_from: int | None = 0
    stable: int = -1
    aborted_end: int = 0


class ProducerRow(Row, frozen=True, gc=False, array_like=True):
    """What a stream knows of a producer.

    `receipts` and `first_receipt` are packed (`receipts.py`). `forgotten_seq` is the last sequence
    of the newest receipt a sparse producer dropped, -1 before the first. An expired row is a
    tombstone. Between a claim and the first append after it, `last_seq` of a dense producer is -1
    and `first_receipt` holds the last append before the claim (`claims.py`).

    `last_seq` and `receipts` do not cover transactions. `txn` is the number of the latest inline
    transaction in which the producer wrote to this stream, `txn_receipts` are its receipts: the
    first, then the newest. `latest_seq` is the last sequence of either kind; -1 if that is
    `last_seq`.
    """

    mode: str
    epoch: int
    session: str | None
    old_sessions: tuple[str, ...]
    last_seq: int
    receipts: bytes
    first_receipt: bytes
    cursor: bytes | None
    updated_ms: int
    forgotten_seq: int = -1
    is_expired: bool = False
    txn: int = 0
    txn_receipts: bytes = b""
    latest_seq: int = -1


class KeyRow(Row, frozen=True, gc=False, array_like=True):
    """The answer to remember for an idempotency key; `number` keeps the order of use."""

    number: int
    time_ms: int
    digest: int
    first_offset: int
    next_offset: int


class RegistryRow(Row, frozen=True, gc=False, array_like=True):
    """A producer identity known to the whole server.

    `commit_seq` numbers its one-shot commits at this epoch; `results` are those of the newest, each
    packed, and `digests` tell what they brought. `decided` counts its transactions that ended;
    `txn_epoch` is the highest epoch one of those had.
    """

    epoch: int
    commit_seq: int = -1
    results: tuple[bytes, ...] = ()
    decided: int = 0
    digests: tuple[int, ...] = ()
    txn_epoch: int = 0


class MetaRow(Row, frozen=True, gc=False, array_like=True):
    """The counters."""

    next_stream: int
    next_producer: int
    time_ms: int
    next_txn: int = 1
    next_outcome: int = 1


# ---- txn rows ------------------------------------------------------------------------------------
# The rows of transactions, groups and sinks.


# A producer (True) whatever its epoch, or a sink's app (False) whatever its task.
OwnerKey = tuple[bool, str]


class NamedPosition(Struct, frozen=True, gc=False, array_like=True):
    """A position that the commit of a transaction moves to the offset `to`.

    `guard` is the stored version when the transaction first named it: the commit compares. The
    last two are those of the call that named it last, to recognise a repeat.
    """

    group: str
    stream: int
    to: int
    guard: int = 0
    expected: int | None = None
    version: int | None = None


class TxnRow(Row, frozen=True, gc=False, array_like=True):
    """A transaction that is not decided.

    `deleted` are the paths of streams it knew that ended under it, `lost` the positions it named in
    such streams: (group, path), in this order. `next_seq` is the next chunk's number of a staged
    one.
    """

    number: int
    id: str
    epoch: int
    kind: str
    owner: Owner
    is_implicit: bool
    begun_ms: int
    timeout_ms: int | None
    deadline_ms: int | None
    touched_ms: int
    is_prepared: bool = False
    next_seq: int = 0
    positions: tuple[NamedPosition, ...] = ()
    deleted: tuple[str, ...] = ()
    lost: tuple[tuple[str, str], ...] = ()


class TxnStreamRow(Row, frozen=True, gc=False, array_like=True):
    """A stream a transaction may write, and what it did there; `first` is -1 without an offset."""

    first: int = -1
    messages: int = 0
    chunks: int = 0


class ChunkBlockRow(Row, frozen=True, gc=False, array_like=True):
    """A page of a transaction's parts, packed: see `parts.py`."""

    packed: bytes


class PositionRow(Row, frozen=True, gc=False, array_like=True):
    """Where a group is in a stream. `version` counts its moves, of every kind.

    `mover`: who moved it last by a transaction or a one-shot commit, if anybody did.
    """

    offset: int
    time_ms: int
    version: int = 0
    mover: OwnerKey | None = None


class SnapshotRow(Row, frozen=True, gc=False, array_like=True):
    """The step a group has pinned."""

    number: int
    ranges: tuple[SnapshotRange, ...]
    hash: str


class VersionRow(Row, frozen=True, gc=False, array_like=True):
    """One version a sink committed: digest of its input, and the packed result."""

    version: int
    input: str | None
    result: bytes


class SinkRow(Row, frozen=True, gc=False, array_like=True):
    """A sink; `versions` oldest first. Outcomes numbered below `outcomes_from` are let go."""

    query_id: str
    last_version: int
    versions: tuple[VersionRow, ...] = ()
    outcomes_from: int = 0


class OutcomeRow(Row, frozen=True, gc=False, array_like=True):
    """How a transaction ended. `number` counts all outcomes, `ordinal` those of its producer."""

    number: int
    ordinal: int
    owner: Owner
    outcome: TxnOutcome


class AbortedRow(Struct, frozen=True, gc=False):
    """Offsets of a stream that an aborted transaction wrote, from `first` up to `next`."""

    stream: int
    first: int
    next: int


class PlacedChunkRow(Struct, frozen=True, gc=False):
    """A staged chunk that a decision gave its offsets."""

    lsn: int
    stream: int
    base: int
    count: int
