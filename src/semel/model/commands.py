"""The commands of the engine.

A command contains everything that its decision needs: the time, random ids, and lookups. Therefore
the decision is a pure function of the state and the command.
"""

from typing import Final

from msgspec import Struct

from semel.model.access_commands import AccessCommand
from semel.model.group_commands import GroupCommand
from semel.model.policies import PolicyCommand
from semel.model.producer_commands import LifeCommand
from semel.model.sink_commands import SinkCommand
from semel.model.subscription_commands import SubscriptionCommand, WakeAck
from semel.model.topic_commands import TopicCommand

# ---- outcomes of transactions --------------------------------------------------------------------

COMMITTED: Final = "committed"
ABORTED: Final = "aborted"

# The reasons why a transaction was aborted.
BY_REQUEST: Final = "abort"
BY_TIMEOUT: Final = "timeout"
BY_FENCE: Final = "fenced"
BY_COMMIT: Final = "superseded"
BY_REAPER: Final = "reaped"
BY_OPERATOR: Final = "operator"


class StreamResult(Struct, frozen=True, gc=False, array_like=True):
    """The range of offsets that a commit wrote to one stream, and the number of messages."""

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
    """The result of a commit. It is retained so that a repeated commit gets the same result.

    `deleted` contains the paths of streams that a transaction had named, and that were
    deleted while the transaction was pending.
    """

    streams: tuple[StreamResult, ...] = ()
    positions: tuple[PositionResult, ...] = ()
    deleted: tuple[str, ...] = ()


class TxnOutcome(Struct, frozen=True, array_like=True):
    """The stored outcome of a transaction that has ended."""

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
    """The messages of one append, stored together or not at all."""

    payload: bytes  # all messages; in a JSON stream, there are commas between them
    count: int = 1
    lengths: bytes = b""  # the length of each message as a little-endian u32; empty for one message
    extras: bytes = b""  # the keys, timestamps and headers, encoded as `messages.py` describes
    is_checked: bool = False  # the extras are known to be valid


class ProducerTag(Struct, frozen=True, gc=False):
    """The producer of an append, and the append's sequence.

    A dense producer numbers its appends 0, 1, 2, ..., so `first_seq` equals `last_seq`. A sparse
    producer chooses increasing numbers, and one append can cover a range of numbers.

    An append that has neither an epoch nor a session is called bare.
    """

    id: str
    first_seq: int
    last_seq: int
    epoch: int | None = None
    session: str | None = None
    mode: str = DENSE
    cursor: bytes | None = None
    is_strict: bool = False
    expires_ms: int = 0  # the idle time after which the producer ends by itself; 0 means never
    is_checked: bool = False  # the other fields are known to be valid


class TxnTag(Struct, frozen=True, gc=False):
    """The transaction that an append names."""

    id: str
    epoch: int
    seq: int | None = None  # the number of a chunk in a staged transaction
    is_strict: bool = False  # refuse the chunk if a different chunk is stored under the same number
    # These two are looked up in the journal: the outcome of this transaction, and the epoch of the
    # newest outcome that has the same id.
    remembered: TxnOutcome | None = None
    last_epoch: int = 0


class StreamCommand(Struct, frozen=True, gc=False):
    """Base class for commands on one stream."""

    path: str
    now_ms: int


class Append(StreamCommand, frozen=True, gc=False):
    """Append a batch, close the stream, or both.

    `body_error` says what is wrong with the body. Such a command is still decided, because an
    earlier check can refuse the command for a different reason.
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
    """The append that contains `offset`. Forks with an offset and a sub-offset need it.

    `units` is, in a JSON stream, the number of messages from `offset` to the end of the append, and
    otherwise the number of bytes of the message at `offset`.
    """

    stream: int
    offset: int
    units: int
    payload: bytes = b""  # the message at `offset`


class ForkRequest(Struct, frozen=True, gc=False):
    """A request to fork the stream `source`. The fork begins `sub_offset` units after `offset`.

    A unit is a message in a JSON stream and a byte in any other stream. If `offset` is None, the
    source's stable offset is used. `stored` is a lookup: the append that contains `offset`.
    """

    source: str
    offset: int | None = None
    sub_offset: int = 0
    stored: StoredAppend | None = None


class Create(StreamCommand, frozen=True, gc=False):
    """Create a stream, or check that it exists with this configuration.

    `dedup` is the stream's own setting for duplicate detection. If it is None, a fork gets that of
    its source, unless `inherits` is True. A stream without an own setting follows the policies.
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
    inherits: bool = False  # the stream must not have an own setting


class Delete(StreamCommand, frozen=True, gc=False):
    """Delete a stream. A stream that has forks is only soft-deleted."""


class Trim(StreamCommand, frozen=True, gc=False):
    """Drop the messages before the offset `before`."""

    before: int


class SwitchDedup(StreamCommand, frozen=True, gc=False):
    """Switch a stream's duplicate detection on or off, or (None) inherit from the policies."""

    dedup: bool | None


class Expire(StreamCommand, frozen=True, gc=False):
    """Delete a stream if it has expired."""

    elapsed_ms: int  # since its last use, by the broker's monotonic clock


class Register(Struct, frozen=True, gc=False):
    """Register a new producer at `first_epoch`, or increase the epoch of a registered producer."""

    now_ms: int
    producer_id: str | None = None  # None means that the server assigns a new id
    first_epoch: int = 0
    expires_ms: int = 0  # as in `ProducerTag`; it counts only for a new id


class ClaimProducer(StreamCommand, frozen=True, gc=False):
    """Take over a producer: fence its older instances, and report the producer's last append.

    Each instance uses a new `session`. A claim that repeats the current session is a retry.
    """

    producer_id: str
    session: str
    mode: str = DENSE
    expires_ms: int = 0  # as in `ProducerTag`


class ForgetProducer(StreamCommand, frozen=True, gc=False):
    """Drop a stream's row for a producer, at an operator's request."""

    producer_id: str


class ExpireProducer(StreamCommand, frozen=True, gc=False):
    """If a producer has been idle for `idle_ms`, replace it with a tombstone.

    If the producer has declared an idle time, that counts, and not `idle_ms`. `elapsed_ms` is the
    time since the producer's last append or claim, by the broker's monotonic clock.
    """

    producer_id: str
    idle_ms: int
    elapsed_ms: int = 0


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
    | LifeCommand
)


# ---- transactions, groups and sinks --------------------------------------------------------------
# The rules are in `docs/reference/transactions.md`.

TXN_INLINE: Final = "inline"
TXN_STAGED: Final = "staged"

# The isolation levels of a read. A `read_uncommitted` read returns all messages. A
# `read_committed` read stops at the stable offset and skips aborted messages.
READ_UNCOMMITTED: Final = "read_uncommitted"
READ_COMMITTED: Final = "read_committed"


class ProducerOwner(Struct, frozen=True, gc=False, tag="producer", array_like=True):
    """The owner of a transaction: a registered producer at one epoch."""

    id: str
    epoch: int


class SinkOwner(Struct, frozen=True, gc=False, tag="sink", array_like=True):
    """The owner of a transaction: one task (`partition`) of one version of a sink."""

    app: str
    version: int
    partition: int


Owner = ProducerOwner | SinkOwner
Metadata = tuple[tuple[str, str | int], ...]  # of a position: pairs of a name and a value


class Begin(Struct, frozen=True, gc=False):
    """Begin a transaction, or return the open transaction that already has this id."""

    now_ms: int
    id: str
    owner: Owner
    kind: str = TXN_INLINE
    timeout_ms: int | None = None
    streams: tuple[str, ...] = ()
    is_implicit: bool = False
    last_epoch: int = 0  # a lookup: the epoch of the newest retained outcome with this id
    due_ms: int | None = None  # a lookup: when the pending transaction with this id times out


class TxnCall(Struct, frozen=True, gc=False):
    """Base class for commands on an existing transaction.

    With `by_operator`, the caller need not be the owner. Two fields are lookups: `remembered`, the
    transaction's retained outcome, and `last_epoch`, the epoch of the newest one with this id or 0.
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
    """Allow a transaction to write to more streams."""

    streams: tuple[str, ...]


class PositionMove(Struct, frozen=True, gc=False):
    """Move the position of a group in a stream to the offset `to`, and replace its metadata.

    Three fields are optional conditions: `expected` (`from` in HTTP) must equal the stored offset,
    `incarnation` the stream's incarnation, and `version` the version of the stored position. A move
    by a member of the group has the member's id, and the epoch at which it owns the stream.
    """

    group: str
    path: str
    to: int
    expected: int | None = None
    incarnation: str | None = None
    version: int | None = None
    metadata: Metadata = ()
    member: str | None = None
    member_epoch: int | None = None


class AddPositions(TxnCall, frozen=True, gc=False, kw_only=True):
    """Add positions that a transaction will move when it commits."""

    positions: tuple[PositionMove, ...]


class Prepare(TxnCall, frozen=True, gc=False, kw_only=True):
    """Prepare a transaction.

    For a staged transaction, `chunks` is the expected number of chunks, and `messages` contains the
    expected number of messages for each stream, as (path, count) pairs. If a number is different,
    the command is refused. A field that is None is not checked.
    """

    chunks: int | None = None
    messages: tuple[tuple[str, int], ...] | None = None


class CommitTxn(TxnCall, frozen=True, gc=False):
    """Commit a transaction, and ack wakes of subscriptions with it."""

    wakes: tuple[WakeAck, ...] = ()


class AbortTxn(TxnCall, frozen=True, gc=False):
    """Abort a transaction."""


class FenceTxn(TxnCall, frozen=True, gc=False):
    """Abort a transaction, and fence its producer by increasing the producer's epoch."""


class ExpireTxn(Struct, frozen=True, gc=False):
    """Abort a transaction if its timeout has passed.

    `elapsed_ms` is the time since the timeout started or was renewed, by the broker's monotonic
    clock. The timeout of a sink's transaction is SINK_IDLE_MS, and each use renews it.
    """

    now_ms: int
    id: str
    epoch: int
    elapsed_ms: int = 0


class CommitAppend(Struct, frozen=True, gc=False):
    """One of the appends in a one-shot commit. `path` is that of a stream or of a topic."""

    path: str
    content_type: str | None = None
    batch: Batch | None = None
    body_error: str | None = None


class ListedTxn(Struct, frozen=True, gc=False):
    """A staged transaction that a one-shot commit names. It has the lookups of a `TxnCall`."""

    id: str
    epoch: int
    remembered: TxnOutcome | None = None
    last_epoch: int = 0


class SinkTag(Struct, frozen=True, gc=False):
    """The sink of a one-shot commit, and the number (`version`) of the commit in that sink.

    `input` is the digest of this commit's input, `previous` that of the previous commit.
    """

    app: str
    query_id: str
    version: int
    input: str | None = None
    previous: str | None = None


class Commit(Struct, frozen=True):
    """A one-shot commit. Its appends, positions and `transactions` are all applied, or none is.

    `expects` contains (path, tail) pairs. The stream at each path must have that tail. `digest` is
    the digest of the request. A request that repeats `producer_seq` must have the same digest.
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
    wakes: tuple[WakeAck, ...] = ()


class SetPositions(Struct, frozen=True, gc=False):
    """Move positions without a transaction.

    With `by_operator`, positions are moved also in streams that a member of the group owns.
    """

    now_ms: int
    positions: tuple[PositionMove, ...]
    by_operator: bool = False


class SnapshotRange(Struct, frozen=True, gc=False, array_like=True):
    """The range of offsets that a pinned step reads from one stream."""

    path: str
    incarnation: str
    start: int
    end: int


class PinSnapshot(Struct, frozen=True, gc=False):
    """Pin step `number` of a group, with its ranges, unless this step is already pinned."""

    now_ms: int
    group: str
    number: int
    ranges: tuple[SnapshotRange, ...]
    hash: str


OneTxnCommand = (
    Begin | AddStreams | AddPositions | Prepare | CommitTxn | AbortTxn | FenceTxn | ExpireTxn
)
TxnCommand = OneTxnCommand | Commit | SetPositions | PinSnapshot | SinkCommand

EngineCommand = (
    Command
    | PolicyCommand
    | AccessCommand
    | TxnCommand
    | TopicCommand
    | GroupCommand
    | SubscriptionCommand
)
