"""The commands of transactions, groups and sinks.

The rules are in `docs/reference/transactions.md`. As in `commands.py`, everything a decision needs
is in the command: the time, and the lookups.
"""

from typing import Final

from msgspec import Struct

from semel.model.commands import Batch, Command
from semel.model.txn_outcome import TxnOutcome

TXN_INLINE: Final = "inline"
TXN_STAGED: Final = "staged"

# What a reader gets: all messages, or only those before the stable offset and not aborted.
READ_UNCOMMITTED: Final = "read_uncommitted"
READ_COMMITTED: Final = "read_committed"


class ProducerOwner(Struct, frozen=True, gc=False, tag="producer", array_like=True):
    """A transaction of a registered producer at one epoch."""

    id: str
    epoch: int


class SinkOwner(Struct, frozen=True, gc=False, tag="sink", array_like=True):
    """A transaction of one task of a version of a sink."""

    app: str
    version: int
    partition: int


Owner = ProducerOwner | SinkOwner


class Begin(Struct, frozen=True, gc=False):
    """Begin a transaction, or find the open one of that id."""

    now_ms: int
    id: str
    owner: Owner
    kind: str = TXN_INLINE
    timeout_ms: int | None = None
    streams: tuple[str, ...] = ()
    is_implicit: bool = False
    last_epoch: int = 0  # a lookup: that of the newest retained outcome of the id


class TxnCall(Struct, frozen=True, gc=False):
    """What every call on a transaction carries.

    `by_operator`: the owner is not checked. The last two are lookups, as in `TxnTag`.
    """

    now_ms: int
    id: str
    epoch: int
    producer_id: str | None = None
    producer_epoch: int | None = None
    by_operator: bool = False
    remembered: TxnOutcome | None = None
    last_epoch: int = 0


class AddStreams(TxnCall, frozen=True, gc=False, kw_only=True):
    """Add streams that a transaction may write."""

    streams: tuple[str, ...]


class PositionMove(Struct, frozen=True, gc=False):
    """A move of a group in a stream, to the offset `to`.

    `expected` (`from` in HTTP), `version` and `incarnation` are optional conditions: on the stored
    position, on its version, and on the incarnation of the stream.
    """

    group: str
    path: str
    to: int
    expected: int | None = None
    incarnation: str | None = None
    version: int | None = None


class AddPositions(TxnCall, frozen=True, gc=False, kw_only=True):
    """Add positions that the commit of a transaction moves."""

    positions: tuple[PositionMove, ...]


class Prepare(TxnCall, frozen=True, gc=False, kw_only=True):
    """Prepare a transaction; the counts, if there are any, must match what is staged."""

    chunks: int | None = None
    messages: tuple[tuple[str, int], ...] | None = None


class CommitTxn(TxnCall, frozen=True, gc=False):
    """Commit a transaction."""


class AbortTxn(TxnCall, frozen=True, gc=False):
    """Abort a transaction."""


class FenceTxn(TxnCall, frozen=True, gc=False):
    """Abort a transaction and raise the epoch of its producer, so that the instance is fenced."""


class ExpireTxn(Struct, frozen=True, gc=False):
    """Abort a transaction whose deadline has passed, or one of a sink that is idle."""

    now_ms: int
    id: str
    epoch: int


class CommitAppend(Struct, frozen=True, gc=False):
    """One append of a one-shot commit."""

    path: str
    content_type: str | None = None
    batch: Batch | None = None
    body_error: str | None = None


class ListedTxn(Struct, frozen=True, gc=False):
    """A staged transaction that a one-shot commit names; the last two are lookups."""

    id: str
    epoch: int
    remembered: TxnOutcome | None = None
    last_epoch: int = 0


class SinkTag(Struct, frozen=True, gc=False):
    """The sink and version that a one-shot commit carries."""

    app: str
    query_id: str
    version: int
    input: str | None = None
    previous: str | None = None


class Commit(Struct, frozen=True):
    """Append, move positions and commit staged transactions: all or nothing, in one frame.

    `digest` is that of the request; a repeat of the producer's sequence should have the same.
    """

    now_ms: int
    producer_id: str | None = None
    producer_epoch: int | None = None
    producer_seq: int | None = None
    sink: SinkTag | None = None
    appends: tuple[CommitAppend, ...] = ()
    transactions: tuple[ListedTxn, ...] = ()
    positions: tuple[PositionMove, ...] = ()
    expects: tuple[tuple[str, int], ...] = ()
    digest: int = 0


class SetPositions(Struct, frozen=True, gc=False):
    """Move positions of groups, without a transaction."""

    now_ms: int
    positions: tuple[PositionMove, ...]


class SnapshotRange(Struct, frozen=True, gc=False, array_like=True):
    """What a pinned step reads of one stream."""

    path: str
    incarnation: str
    start: int
    end: int


class PinSnapshot(Struct, frozen=True, gc=False):
    """Pin what the next step of a group reads, unless that number is pinned already."""

    now_ms: int
    group: str
    number: int
    ranges: tuple[SnapshotRange, ...]
    hash: str


class RebindSink(Struct, frozen=True, gc=False):
    """Bind a sink to another query, at a version; -1: it begins with version 0."""

    now_ms: int
    app: str
    query_id: str
    last_version: int


class ForgetSink(Struct, frozen=True, gc=False):
    """Drop the row of a sink."""

    now_ms: int
    app: str


TxnCommand = (
    Begin
    | AddStreams
    | AddPositions
    | Prepare
    | CommitTxn
    | AbortTxn
    | FenceTxn
    | ExpireTxn
    | Commit
    | SetPositions
    | PinSnapshot
    | RebindSink
    | ForgetSink
)

EngineCommand = Command | TxnCommand
