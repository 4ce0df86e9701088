"""The JSON bodies of `/v1/groups` and `/v1/transactions`."""

from typing import Any, Generic, TypeVar

from msgspec import UNSET, Struct, UnsetType, field

from semel.wire.schema import StrictRequest

T = TypeVar("T")


class OfTransaction(Struct, frozen=True):
    """Base class for responses that contain a transaction's id and its transaction epoch."""

    transaction_id: str
    transaction_epoch: int


class TransactionState(OfTransaction, frozen=True):
    """Base class for responses that contain a transaction's id, transaction epoch and state."""

    state: str


# ---- groups --------------------------------------------------------------------------------------

# An offset in a request: either a printed offset or its ordinal.
Offset = int | str


class CommitAck(StrictRequest, frozen=True):
    """An ack in a commit: a subscription has processed the stream up to `offset`."""

    stream: str
    offset: Offset


class CommitWake(StrictRequest, frozen=True):
    """The acks of one subscription in a commit. `token` is that of the wake.

    With `done`, the wake ends.
    """

    wake_id: str
    generation: int
    acks: list[CommitAck] = field(default_factory=list)
    done: bool = False
    token: str | None = None


# Maps the id of a subscription to the acks of its wake.
CommitWakes = dict[str, CommitWake]


class NextWake(Struct, frozen=True):
    """What became of a wake that a commit has acked.

    `next_wake` is True if the wake has ended, and there is more to process.
    """

    next_wake: bool


class MoveRequest(StrictRequest, frozen=True, kw_only=True, rename={"start": "from"}):
    """A move of a group's position to the offset `to`, with optional conditions and metadata.

    `start` (JSON: `from`) and `version` must match the position, `incarnation` the stream. Without
    `start`, a transaction or commit is refused if another producer or sink moved the position last.
    `metadata` is stored with the position until the next move.
    """

    start: Offset | UnsetType = UNSET
    to: Offset
    incarnation: str | UnsetType = UNSET
    version: int | UnsetType = UNSET
    metadata: dict[str, str | int] | UnsetType = UNSET


# The target of a move: an offset, or a move request, which has an offset and conditions.
Target = int | str | MoveRequest


class SetPositionsRequest(StrictRequest, frozen=True):
    """The body of `POST /v1/groups/{group}/offsets`.

    A member of the group sends its id in `member`, and in `epochs` the epochs of its streams, by
    path. With `operator`, a position is moved also in a stream that a member owns.
    """

    offsets: dict[str, Target]
    member: str | None = None
    epochs: dict[str, int] = field(default_factory=dict)
    operator: bool = False


class RangeRequest(StrictRequest, frozen=True, rename={"start": "from"}):
    """The range of a stream that a step reads: from the offset `start` up to the offset `to`."""

    incarnation: str
    start: Offset
    to: Offset


class PinRequest(StrictRequest, frozen=True):
    """The body of `POST /v1/groups/{group}/snapshot`: the step (one unit of work) to pin.

    To pin a step is to store it. The Python client sends a `PinnedStep`, with the same members.
    """

    number: int
    ranges: dict[str, RangeRequest]
    hash: str


class PendingMove(TransactionState, frozen=True):
    """A move of a group's position that a pending transaction will make if it commits.

    `to` is the offset to which the position moves. `deadline` and `remaining_ms` are null if the
    transaction has no deadline.
    """

    to: str
    deadline: str | None = None
    remaining_ms: int | None = None


class MovedPositions(Struct, frozen=True):
    """The new positions of a group.

    `offsets` maps each path to the position. `versions` maps each path to the position's version,
    which is the number of times that the position was moved.
    """

    group: str
    offsets: dict[str, str]
    versions: dict[str, int] = {}


class Positions(MovedPositions, frozen=True):
    """All positions of a group. `pending` maps a stream's path to the position's pending move.

    `metadata` maps a stream's path to the metadata of the position, if it has metadata. It is left
    out if no position has metadata.
    """

    pending: dict[str, PendingMove] = {}
    metadata: dict[str, dict[str, str | int]] | UnsetType = UNSET


class PinnedRange(Struct, frozen=True, rename={"start": "from"}):
    """The range of a stream that a pinned step reads: from the offset `start` up to `to`."""

    incarnation: str
    start: str
    to: str


class PinnedStep(Struct, frozen=True):
    """A group's pinned step: its number, the range to read from each stream, and its hash."""

    number: int
    ranges: dict[str, PinnedRange]
    hash: str


class SnapshotResponse(Struct, frozen=True):
    """The response to `GET /v1/groups/{group}/snapshot`: the step that a group has pinned."""

    group: str
    number: int
    ranges: dict[str, PinnedRange]
    hash: str


# ---- requests about transactions -----------------------------------------------------------------


class TaskOwner(StrictRequest, frozen=True):
    """The sink task that owns a transaction."""

    app: str
    version: int
    partition: int


class BeginRequest(StrictRequest, frozen=True):
    """The body of `POST /v1/transactions`, sent by a producer or a sink task."""

    transaction_id: str
    producer_id: str | None = None
    producer_epoch: int | None = None
    kind: str | None = None
    sink: TaskOwner | None = None
    timeout_ms: int | None = None
    streams: list[str] | UnsetType = UNSET
    implicit: bool | None = None


class TxnRequest(StrictRequest, frozen=True, kw_only=True):
    """The body of a request to abort or fence a transaction.

    It is also the base class for the bodies of the other requests that change a transaction.
    """

    producer_id: str | None = None
    producer_epoch: int | None = None
    transaction_epoch: int
    operator: bool = False


class TxnCommitRequest(TxnRequest, frozen=True, kw_only=True):
    """The body of `POST /v1/transactions/{id}/commit`."""

    subscriptions: CommitWakes = field(default_factory=dict)


class AddStreamsRequest(TxnRequest, frozen=True, kw_only=True):
    """The body of `POST /v1/transactions/{id}/streams`."""

    streams: list[str]


class AddOffsetsRequest(TxnRequest, frozen=True, kw_only=True):
    """The body of `POST /v1/transactions/{id}/offsets`.

    `offsets` maps a stream's path to the group's new position in that stream. `member` and `epochs`
    are as in `SetPositionsRequest`.
    """

    group: str
    offsets: dict[str, Target]
    member: str | None = None
    epochs: dict[str, int] = field(default_factory=dict)


class PrepareRequest(TxnRequest, frozen=True, kw_only=True):
    """The body of `POST /v1/transactions/{id}/prepare`.

    `chunks` is the number of chunks that the client staged. `messages` maps each path to the number
    of staged messages. A wrong number is refused. If a field is None, it is not checked.
    """

    chunks: int | None = None
    messages: dict[str, int] | None = None


# ---- responses about transactions ----------------------------------------------------------------


class StreamResult(Struct, frozen=True):
    """The messages that a commit added to one stream: their offsets and their number."""

    first_offset: str
    next_offset: str
    messages: int


StreamResults = dict[str, StreamResult]  # the keys are paths
GroupOffsets = dict[str, dict[str, str]]  # maps a group to a mapping from paths to offsets


class BeginResponse(Struct, frozen=True, kw_only=True):
    """The response to a begin.

    The transaction is open. If `deadline` is not None, the transaction is aborted at that time.
    """

    transaction_id: str = ""
    transaction_epoch: int
    state: str = "open"
    deadline: str | None = None


class ExtendResponse(OfTransaction, frozen=True):
    """The response to a request that adds streams or positions to a transaction.

    If streams were added, only `stream_count` is set: the transaction's new number of streams.
    If positions were added, only `offset_count` is set: its new number of positions.
    """

    stream_count: int | UnsetType = UNSET
    offset_count: int | UnsetType = UNSET


class PrepareResponse(Struct, frozen=True, kw_only=True):
    """The response to a prepare. `token` contains the transaction's id and transaction epoch."""

    transaction_id: str = ""
    transaction_epoch: int = 0
    state: str = "prepared"
    token: str


class AbortResponse(TransactionState, frozen=True):
    """The response to an abort. `reason` is why the transaction was aborted."""

    reason: str


class TxnCommitResponse(TransactionState, frozen=True):
    """The response to the commit of a transaction.

    `streams`, `offsets` and `deleted` are null if the result is no longer retained. `subscriptions`
    has an entry for each wake that the commit acks; it is absent in the response to a repeat.
    """

    duplicate: bool
    streams: StreamResults | None
    offsets: GroupOffsets | None
    deleted: list[str] | None
    subscriptions: dict[str, NextWake] | UnsetType = UNSET


class PendingStream(Struct, frozen=True):
    """A stream that a pending transaction writes to.

    `first_offset` is the offset of the transaction's first message in the stream; null if there is
    no message yet. It is also null in a staged transaction, because its commit sets the offsets.
    """

    first_offset: str | None
    messages: int
    chunks: int


class PendingTransaction(OfTransaction, frozen=True, kw_only=True):
    """A transaction that is open or prepared.

    `sink` is the sink task that began the transaction. If a producer began it, `sink` is UNSET, and
    `producer_id` and `producer_epoch` identify the producer. `phase` is Kafka's name for the state.
    `stuck` is True if the transaction has been idle for TXN_TIMEOUT_MS_MAX or longer. `owner` is
    the principal that owns the transaction id. It is UNSET if access is off or the caller may not
    see it.
    """

    number: int
    kind: str
    state: str
    phase: str
    stuck: bool
    sink: TaskOwner | UnsetType = UNSET
    producer_id: str | UnsetType = UNSET
    producer_epoch: int | UnsetType = UNSET
    implicit: bool
    begun_at: str
    age_ms: int
    idle_ms: int
    deadline: str | None
    chunks: int
    next_seq: int
    streams: dict[str, PendingStream]
    offsets: GroupOffsets
    deleted: list[str]
    owner: str | UnsetType | None = UNSET


class EndedTransaction(TransactionState, frozen=True):
    """A transaction that has ended. `reason` is why it was aborted; None if it was committed.

    `owner` is as in `PendingTransaction`.
    """

    phase: str
    reason: str | None
    decided_at: str
    streams: StreamResults | None
    offsets: GroupOffsets | None
    deleted: list[str] | None
    owner: str | UnsetType | None = UNSET


class TransactionStatus(TransactionState, frozen=True):
    """The status of a transaction, as the client returns it to its caller.

    `state` is `open`, `prepared`, `committed` or `aborted`. `streams` maps each path to the members
    of a `PendingStream`, or of a `StreamResult` if the transaction has ended.
    """

    reason: str | None = None
    kind: str | None = None
    producer_id: str | None = None
    producer_epoch: int | None = None
    deadline: str | None = None
    streams: dict[str, dict[str, Any]] = {}
    offsets: GroupOffsets = {}
    deleted: list[str] = []
    next_seq: int = 0

    @property
    def is_empty(self) -> bool:
        """True if the transaction is open and has no messages, chunks or positions yet."""
        messages = sum(stream.get("messages", 0) for stream in self.streams.values())
        return self.state == "open" and not (messages or self.next_seq or self.offsets)


class TransactionsPage(Struct, Generic[T], frozen=True):
    """A page of the list of pending transactions.

    `next` is the transaction number after which the next page begins. It is None on the last page.
    """

    transactions: list[T]
    next: int | None = None
