"""JSON of `/v1/groups` and `/v1/transactions`; commits carry moves of positions, too."""

from typing import Any, Generic, TypeVar

from msgspec import UNSET, Struct, UnsetType

from semel.wire.schema import StrictRequest

T = TypeVar("T")


class OfTransaction(Struct, frozen=True):
    """The base of what a response says about a transaction: its id and its transaction epoch."""

    transaction_id: str
    transaction_epoch: int


class TransactionState(OfTransaction, frozen=True):
    """The same with the state of the transaction."""

    state: str


# ---- groups --------------------------------------------------------------------------------------

# An offset in a request: printed, or its ordinal.
Offset = int | str


class MoveRequest(StrictRequest, frozen=True, kw_only=True, rename={"start": "from"}):
    """A position to set, and the conditions for it: its offset, its stream and its version."""

    start: Offset | UnsetType = UNSET
    to: Offset
    incarnation: str | UnsetType = UNSET
    version: int | UnsetType = UNSET


# Where to move a position: an offset, or an offset with conditions.
Target = int | str | MoveRequest


class SetPositionsRequest(StrictRequest, frozen=True):
    """`POST /v1/groups/{group}/offsets`."""

    offsets: dict[str, Target]


class RangeRequest(StrictRequest, frozen=True, rename={"start": "from"}):
    """The part of a stream that a step reads."""

    incarnation: str
    start: Offset
    to: Offset


class PinRequest(StrictRequest, frozen=True):
    """`POST /v1/groups/{group}/snapshot`; a client sends its `PinnedStep`: the same members."""

    number: int
    ranges: dict[str, RangeRequest]
    hash: str


class PendingMove(TransactionState, frozen=True):
    """A move by a pending transaction, which ends within `remaining_ms` unless that is null."""

    to: str
    deadline: str | None = None
    remaining_ms: int | None = None


class MovedPositions(Struct, frozen=True):
    """Where a group is now in the streams it was moved in."""

    group: str
    offsets: dict[str, str]
    versions: dict[str, int] = {}


class Positions(MovedPositions, frozen=True):
    """Where a group is, by stream: the offset, how often it was moved, and what is pending."""

    pending: dict[str, PendingMove] = {}


class PinnedRange(Struct, frozen=True, rename={"start": "from"}):
    """The part of a stream that a step reads: from the offset `start` up to `to`."""

    incarnation: str
    start: str
    to: str


class PinnedStep(Struct, frozen=True):
    """The step a group has pinned: its number, what it reads of each stream, and its hash."""

    number: int
    ranges: dict[str, PinnedRange]
    hash: str


class SnapshotResponse(Struct, frozen=True):
    """`GET /v1/groups/{group}/snapshot`: a pinned step with the name of its group."""

    group: str
    number: int
    ranges: dict[str, PinnedRange]
    hash: str


# ---- requests about transactions -----------------------------------------------------------------


class TaskOwner(StrictRequest, frozen=True):
    """The task of a sink that owns a transaction."""

    app: str
    version: int
    partition: int


class BeginRequest(StrictRequest, frozen=True):
    """`POST /v1/transactions`, of a producer or of a task of a sink."""

    transaction_id: str
    producer_id: str | None = None
    producer_epoch: int | None = None
    kind: str | None = None
    sink: TaskOwner | None = None
    timeout_ms: int | None = None
    streams: list[str] | UnsetType = UNSET
    implicit: bool | None = None


class TxnRequest(StrictRequest, frozen=True, kw_only=True):
    """`POST /v1/transactions/{id}/commit`, `abort` and `fence`; the others have more members."""

    producer_id: str | None = None
    producer_epoch: int | None = None
    transaction_epoch: int
    operator: bool = False


class AddStreamsRequest(TxnRequest, frozen=True, kw_only=True):
    """`POST /v1/transactions/{id}/streams`."""

    streams: list[str]


class AddOffsetsRequest(TxnRequest, frozen=True, kw_only=True):
    """`POST /v1/transactions/{id}/offsets`: positions of a group, by stream."""

    group: str
    offsets: dict[str, Target]


class PrepareRequest(TxnRequest, frozen=True, kw_only=True):
    """`POST /v1/transactions/{id}/prepare`, with the number of chunks and messages staged."""

    chunks: int | None = None
    messages: dict[str, int] | None = None


# ---- responses about transactions ----------------------------------------------------------------


class StreamResult(Struct, frozen=True):
    """What a commit put into a stream."""

    first_offset: str
    next_offset: str
    messages: int


StreamResults = dict[str, StreamResult]  # by path
GroupOffsets = dict[str, dict[str, str]]  # by group and path


class BeginResponse(Struct, frozen=True, kw_only=True):
    """A transaction is open, until `deadline` if it has one."""

    transaction_id: str = ""
    transaction_epoch: int
    state: str = "open"
    deadline: str | None = None


class ExtendResponse(OfTransaction, frozen=True):
    """The number of streams, or of positions, that a transaction has now."""

    stream_count: int | UnsetType = UNSET
    offset_count: int | UnsetType = UNSET


class PrepareResponse(Struct, frozen=True, kw_only=True):
    """A transaction is prepared; `token` names it."""

    transaction_id: str = ""
    transaction_epoch: int = 0
    state: str = "prepared"
    token: str


class AbortResponse(TransactionState, frozen=True):
    """A transaction is aborted."""

    reason: str


class TxnCommitResponse(TransactionState, frozen=True):
    """A transaction is committed; the last three are null if its result is no longer retained."""

    duplicate: bool
    streams: StreamResults | None
    offsets: GroupOffsets | None
    deleted: list[str] | None


class PendingStream(Struct, frozen=True):
    """A stream of a pending transaction; without an offset while nothing of it is in the stream."""

    first_offset: str | None
    messages: int
    chunks: int


class PendingTransaction(OfTransaction, frozen=True, kw_only=True):
    """A transaction that is open or prepared; its owner is a task of a sink or a producer.

    `phase` is Kafka's name for the state. `stuck`: idle for longer than any deadline allows.
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


class EndedTransaction(TransactionState, frozen=True):
    """A transaction that is committed, or aborted for `reason`."""

    phase: str
    reason: str | None
    decided_at: str
    streams: StreamResults | None
    offsets: GroupOffsets | None
    deleted: list[str] | None


class TransactionStatus(TransactionState, frozen=True):
    """A transaction as a caller of the client gets it: `open`, `prepared`, `committed`, `aborted`.

    `streams` of an ended one are as in `CommitResult`, those of a pending one as in
    `PendingStream`.
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
        """Whether it is open and nothing was done in it so far."""
        messages = sum(stream.get("messages", 0) for stream in self.streams.values())
        return self.state == "open" and not (messages or self.next_seq or self.offsets)


class TransactionsPage(Struct, Generic[T], frozen=True):
    """A page of pending transactions; `next` is the number after which the next page begins."""

    transactions: list[T]
    next: int | None = None
