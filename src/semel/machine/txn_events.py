"""What a frame says happened to transactions, groups and sinks."""

from msgspec import Struct

from semel.machine.txn_rows import NamedPosition, SnapshotRow
from semel.model.transactions import Owner


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


class CommitMark(Struct, frozen=True, gc=False, array_like=True):
    """The producer of a one-shot commit; without a sequence its epoch is raised and no more."""

    id: str
    epoch: int
    seq: int | None
    digest: int = 0


class SinkMark(Struct, frozen=True, gc=False, array_like=True):
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
    producer: CommitMark | None = None
    sink: SinkMark | None = None
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
