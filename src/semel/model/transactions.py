"""What a caller asks of transactions, groups and sinks: the second half of the commands.

The rules are in `docs/reference/transactions.md`. As in `commands`, everything a decision needs
travels in the command: the time, and what the broker looked up in the store.
"""

from typing import Final

from msgspec import Struct

from semel.model.commands import Batch, Command
from semel.model.txn_outcome import TxnOutcome

TXN_INLINE: Final = "inline"
TXN_STAGED: Final = "staged"

# What a reader is shown: all but control records, or only what is decided and not aborted.
READ_UNCOMMITTED: Final = "read_uncommitted"
READ_COMMITTED: Final = "read_committed"


class ProducerOwner(Struct, frozen=True, gc=False, tag="producer", array_like=True):
    """A transaction of a registered producer at one epoch."""

    id: str
    epoch: int


class SinkOwner(Struct, frozen=True, gc=False, tag="sink", array_like=True):
    """A transaction of one task of a sink's version."""

    app: str
    version: int
    partition: int


Owner = ProducerOwner | SinkOwner


class Begin(Struct, frozen=True, gc=False):
    """Begin a transaction, or find the one of that id still open."""

    now_ms: int
    id: str
    owner: Owner
    kind: str = TXN_INLINE
    timeout_ms: int | None = None
    streams: tuple[str, ...] = ()
    is_implicit: bool = False
    last_epoch: int = 0  # a fact: of the id's newest remembered outcome


class TxnCall(Struct, frozen=True, gc=False):
    """What every call on a transaction carries. `remembered` is a fact: the outcome of it.

    `by_operator`: by hand, whoever owns it.
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
    """Let a transaction write these streams."""

    streams: tuple[str, ...]


class PositionMove(Struct, frozen=True, gc=False):
    """A move of a group in a stream, to the offset `to`.

    `expected` (`from` outside), `version` and `incarnation` are conditions, if given: the stored
    position, how often it was moved, and which of the streams the path has had.
    """

    group: str
    path: str
    to: int
    expected: int | None = None
    incarnation: str | None = None
    version: int | None = None


class AddPositions(TxnCall, frozen=True, gc=False, kw_only=True):
    """Let a transaction's commit move these positions."""

    positions: tuple[PositionMove, ...]


class Prepare(TxnCall, frozen=True, gc=False, kw_only=True):
    """Seal a transaction; the counts, if given, must be what is staged."""

    chunks: int | None = None
    messages: tuple[tuple[str, int], ...] | None = None


class CommitTxn(TxnCall, frozen=True, gc=False):
    """Decide: commit."""


class AbortTxn(TxnCall, frozen=True, gc=False):
    """Decide: abort."""


class FenceTxn(TxnCall, frozen=True, gc=False):
    """Abort by hand and raise the owner's epoch, so that it cannot go on."""


class ExpireTxn(Struct, frozen=True, gc=False):
    """Abort a transaction whose deadline has passed, or a sink's that nobody touched."""

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
    """A staged transaction a one-shot commit names; the last two are facts."""

    id: str
    epoch: int
    remembered: TxnOutcome | None = None
    last_epoch: int = 0


class SinkTag(Struct, frozen=True, gc=False):
    """The version of a sink a one-shot commit is."""

    app: str
    query_id: str
    version: int
    input: str | None = None
    previous: str | None = None


class Commit(Struct, frozen=True):
    """Append, move positions and decide staged transactions: all or nothing, in one frame.

    `digest` tells what it brings; a repeat of a producer's sequence has to have the same.
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
    """Move positions of a group, without any transaction."""

    now_ms: int
    positions: tuple[PositionMove, ...]


class SnapshotRange(Struct, frozen=True, gc=False, array_like=True):
    """What a pinned step reads of one stream."""

    path: str
    incarnation: str
    start: int
    end: int


class PinSnapshot(Struct, frozen=True, gc=False):
    """Fix what a group's next step reads; the first one wins."""

    now_ms: int
    group: str
    number: int
    ranges: tuple[SnapshotRange, ...]
    hash: str


class RebindSink(Struct, frozen=True, gc=False):
    """Give a sink to another query, at a version; -1: it begins with version 0."""

    now_ms: int
    app: str
    query_id: str
    last_version: int


class ForgetSink(Struct, frozen=True, gc=False):
    """Drop what is known of a sink."""

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
