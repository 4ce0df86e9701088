"""The commands of the engine.

A command contains everything its decision needs: the time, random ids, and lookups from the
journal. The decision is therefore a pure function.
"""

from typing import Final

from msgspec import Struct

# ---- outcomes of transactions --------------------------------------------------------------------

COMMITTED: Final = "committed"
ABORTED: Final = "aborted"

# The reasons for which a transaction is aborted.
BY_REQUEST: Final = "abort"
BY_TIMEOUT: Final = "timeout"
BY_FENCE: Final = "fenced"
BY_COMMIT: Final = "superseded"
BY_REAPER: Final = "reaped"
BY_OPERATOR: Final = "operator"


class StreamResult(Struct, frozen=True, gc=False, array_like=True):
    """The range of offsets that a commit wrote in one stream; `messages` is their number."""

    path: str
    first_offset: int
    next_offset: int
    messages: int


class PositionResult(Struct, frozen=True, gc=False, array_like=True):
    """A position that a commit moved."""

    group: str
    path: str
    offset: int


class TxnResult(Struct, frozen=True, array_like=True):
    """The result of a commit; retained so that a repeated commit returns the same result."""

    streams: tuple[StreamResult, ...] = ()
    positions: tuple[PositionResult, ...] = ()
    deleted: tuple[str, ...] = ()


class TxnOutcome(Struct, frozen=True, array_like=True):
    """The outcome of a transaction, as it is stored."""

    id: str
    epoch: int
    decision: str
    reason: str
    time_ms: int
    result: TxnResult


# ---- streams and producers -----------------------------------------------------------------------

DENSE: Final = "dense"
SPARSE: Final = "sparse"


class Batch(Struct, frozen=True, gc=False):
    """The messages of one append, stored together or not at all.

    The payload of a single message is the message. The payload of several messages is their
    concatenation, with commas between them in a JSON stream; `lengths` then contains the length of
    each as a little-endian u32. `extras` contains their keys, timestamps and headers, encoded as
    `messages.py` describes.
    """

    payload: bytes
    count: int = 1
    lengths: bytes = b""
    extras: bytes = b""


class ProducerTag(Struct, frozen=True, gc=False):
    """The identity that an append carries.

    A dense producer numbers its appends 0, 1, 2, ..., so `first_seq == last_seq`. A sparse producer
    chooses growing numbers, and one append may cover a range of them. An append with neither epoch
    nor session is bare: only the digest of its payload distinguishes a retry from a restart.
    """

    id: str
    first_seq: int
    last_seq: int
    epoch: int | None = None
    session: str | None = None
    mode: str = DENSE
    cursor: bytes | None = None
    is_strict: bool = False


class TxnTag(Struct, frozen=True, gc=False):
    """The transaction that an append names.

    `seq` numbers the chunks of a staged transaction. With `is_strict`, a chunk is refused if it
    differs from the chunk stored under the same number. `remembered` and `last_epoch` are lookups:
    the outcome of this transaction, and the epoch of the newest outcome of its id.
    """

    id: str
    epoch: int
    seq: int | None = None
    is_strict: bool = False
    remembered: TxnOutcome | None = None
    last_epoch: int = 0


class StreamCommand(Struct, frozen=True, gc=False):
    """The fields of every command on one stream."""

    path: str
    now_ms: int


class Append(StreamCommand, frozen=True, gc=False):
    """Append a batch, close the stream, or both.

    `body_error` says what is wrong with the body. The command is decided all the same, because
    other checks come before that of the body.
    """

    content_type: str | None = None
    batch: Batch | None = None
    body_error: str | None = None
    close: bool = False
    producer: ProducerTag | None = None
    stream_seq: str | None = None
    if_match: int | None = None
    key: str | None = None
    transaction: TxnTag | None = None


class StoredAppend(Struct, frozen=True, gc=False):
    """A lookup for a fork inside an append: the stored append at an offset of a stream.

    `units` is the number of units of this append at or after `offset`. A unit is a message in a
    JSON stream and a byte in any other stream. `payload` is the message at `offset`.
    """

    stream: int
    offset: int
    units: int
    payload: bytes = b""


class ForkRequest(Struct, frozen=True, gc=False):
    """Fork another stream at `offset` (default: its stable offset) plus `sub_offset`."""

    source: str
    offset: int | None = None
    sub_offset: int = 0
    stored: StoredAppend | None = None


class Create(StreamCommand, frozen=True, gc=False):
    """Create a stream, or check that it exists with this configuration.

    `dedup` is the setting in the request, None if it has none; `dedup_default` is the server's.
    """

    incarnation: str
    content_type: str | None = None
    ttl_ms: int | None = None
    expires_at_ms: int | None = None
    closed: bool = False
    batch: Batch | None = None
    body_error: str | None = None
    fork: ForkRequest | None = None
    dedup: bool | None = None
    dedup_default: bool = True


class Delete(StreamCommand, frozen=True, gc=False):
    """Delete a stream; while forks need its messages, it is soft-deleted."""


class Trim(StreamCommand, frozen=True, gc=False):
    """Drop the messages before an offset."""

    before: int


class SwitchDedup(StreamCommand, frozen=True, gc=False):
    """Switch duplicate detection of a stream on or off."""

    dedup: bool


class Expire(StreamCommand, frozen=True, gc=False):
    """Delete an expired stream; `touched_ms` is when it was last used, as the broker recorded."""

    touched_ms: int


class Register(Struct, frozen=True, gc=False):
    """Assign a producer id, or raise the epoch of a registered one.

    A producer that is not registered begins with `first_epoch`.
    """

    now_ms: int
    producer_id: str | None = None
    first_epoch: int = 0


class ClaimProducer(StreamCommand, frozen=True, gc=False):
    """Take over a producer: fence the previous instance, then report how far it came.

    Each instance uses a new `session`. A claim with the same session is a retry.
    """

    producer_id: str
    session: str
    mode: str = DENSE


class ForgetProducer(StreamCommand, frozen=True, gc=False):
    """Drop the row of a producer in a stream, at the request of an operator."""

    producer_id: str


class ExpireProducer(StreamCommand, frozen=True, gc=False):
    """Replace a producer that has been idle for `idle_ms` by a tombstone.

    The tombstone keeps old instances of the producer fenced.
    """

    producer_id: str
    idle_ms: int


Command = (
    Append
    | Create
    | Delete
    | Trim
    | SwitchDedup
    | Expire
    | Register
    | ClaimProducer
    | ForgetProducer
    | ExpireProducer
)


# ---- transactions, groups and sinks --------------------------------------------------------------
# The rules are in `docs/reference/transactions.md`.

TXN_INLINE: Final = "inline"
TXN_STAGED: Final = "staged"

# The isolation levels of a read. `read_uncommitted` returns all messages; `read_committed` stops at
# the stable offset and skips aborted messages.
READ_UNCOMMITTED: Final = "read_uncommitted"
READ_COMMITTED: Final = "read_committed"


class ProducerOwner(Struct, frozen=True, gc=False, tag="producer", array_like=True):
    """The owner of a transaction: a registered producer at one epoch."""

    id: str
    epoch: int


class SinkOwner(Struct, frozen=True, gc=False, tag="sink", array_like=True):
    """The owner of a transaction: one task of a version of a sink."""

    app: str
    version: int
    partition: int


Owner = ProducerOwner | SinkOwner


class Begin(Struct, frozen=True, gc=False):
    """Begin a transaction, or return the open transaction of the same id."""

    now_ms: int
    id: str
    owner: Owner
    kind: str = TXN_INLINE
    timeout_ms: int | None = None
    streams: tuple[str, ...] = ()
    is_implicit: bool = False
    last_epoch: int = 0  # a lookup: the epoch of the newest retained outcome of the id


class TxnCall(Struct, frozen=True, gc=False):
    """The fields of every call on a transaction.

    With `by_operator`, the owner is not checked. `remembered` and `last_epoch` are lookups, as in
    `TxnTag`.
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
    """A move of the position of a group in a stream to the offset `to`.

    The other fields are optional conditions: `expected` (`from` in HTTP) is the stored position,
    `version` its version, and `incarnation` the incarnation of the stream.
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
    """Prepare a transaction.

    If `chunks` or `messages` (a count per path) are set, they must match the staged counts.
    """

    chunks: int | None = None
    messages: tuple[tuple[str, int], ...] | None = None


class CommitTxn(TxnCall, frozen=True, gc=False):
    """Commit a transaction."""


class AbortTxn(TxnCall, frozen=True, gc=False):
    """Abort a transaction."""


class FenceTxn(TxnCall, frozen=True, gc=False):
    """Abort a transaction and raise the epoch of its producer, which fences the instance."""


class ExpireTxn(Struct, frozen=True, gc=False):
    """Abort a transaction whose deadline has passed, or an idle transaction of a sink."""

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
    """A staged transaction that a one-shot commit names.

    `remembered` and `last_epoch` are lookups, as in `TxnTag`.
    """

    id: str
    epoch: int
    remembered: TxnOutcome | None = None
    last_epoch: int = 0


class SinkTag(Struct, frozen=True, gc=False):
    """The sink and version of a one-shot commit.

    `input` is the digest of this version's input, `previous` that of the version before it.
    """

    app: str
    query_id: str
    version: int
    input: str | None = None
    previous: str | None = None


class Commit(Struct, frozen=True):
    """Append, move positions and commit staged transactions: all or nothing, in one frame.

    `digest` is the digest of the request. If the producer repeats a sequence with another digest,
    the request is not a retry.
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
    """Move positions of groups outside a transaction."""

    now_ms: int
    positions: tuple[PositionMove, ...]


class SnapshotRange(Struct, frozen=True, gc=False, array_like=True):
    """The range of offsets that a pinned step reads from one stream."""

    path: str
    incarnation: str
    start: int
    end: int


class PinSnapshot(Struct, frozen=True, gc=False):
    """Pin the ranges that step `number` of a group reads, unless that step is pinned already."""

    now_ms: int
    group: str
    number: int
    ranges: tuple[SnapshotRange, ...]
    hash: str


class RebindSink(Struct, frozen=True, gc=False):
    """Bind a sink to another query; the next version is `last_version` + 1, so 0 after -1."""

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
