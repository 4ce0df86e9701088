"""The JSON bodies of `/v1/groups` and `/v1/transactions`."""

from typing import Any, Generic, TypeVar

from msgspec import UNSET, Struct, UnsetType

from semel.wire.schema import StrictRequest

T = TypeVar("T")


class OfTransaction(Struct, frozen=True):
    """The base of responses about a transaction: its id and its transaction epoch."""

    transaction_id: str
    transaction_epoch: int


class TransactionState(OfTransaction, frozen=True):
    """The base of responses that also have the state of the transaction."""

    state: str


# ---- groups --------------------------------------------------------------------------------------

# An offset in a request: a printed offset, or its ordinal.
Offset = int | str


class MoveRequest(StrictRequest, frozen=True, kw_only=True, rename={"start": "from"}):
    """The move of a position to `to`, with optional conditions.

    The conditions are the expected offset (`from`), the incarnation of the stream, and the version
    of the position.
    """

    start: Offset | UnsetType = UNSET
    to: Offset
    incarnation: str | UnsetType = UNSET
    version: int | UnsetType = UNSET


# The target of a move: an offset, or an offset with conditions.
Target = int | str | MoveRequest


class SetPositionsRequest(StrictRequest, frozen=True):
    """`POST /v1/groups/{group}/offsets`."""

    offsets: dict[str, Target]


class RangeRequest(StrictRequest, frozen=True, rename={"start": "from"}):
    """The range of offsets of a stream that a step reads."""

    incarnation: str
    start: Offset
    to: Offset


class PinRequest(StrictRequest, frozen=True):
    """`POST /v1/groups/{group}/snapshot`. A client sends a `PinnedStep`, with the same members."""

    number: int
    ranges: dict[str, RangeRequest]
    hash: str


class PendingMove(TransactionState, frozen=True):
    """A move of a position by a pending transaction.

    `deadline` and `remaining_ms` are null if the transaction has no deadline.
    """

    to: str
    deadline: str | None = None
    remaining_ms: int | None = None


class MovedPositions(Struct, frozen=True):
    """The new positions of a group, and their versions, by stream."""

    group: str
    offsets: dict[str, str]
    versions: dict[str, int] = {}


class Positions(MovedPositions, frozen=True):
    """The positions of a group by stream: offset, version, and pending moves."""

    pending: dict[str, PendingMove] = {}


class PinnedRange(Struct, frozen=True, rename={"start": "from"}):
    """The range of a stream that a step reads: from the offset `start` up to `to`."""

    incarnation: str
    start: str
    to: str


class PinnedStep(Struct, frozen=True):
    """The pinned step of a group: its number, the range of each stream, and its hash."""

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
    """`POST /v1/transactions`, by a producer or by a task of a sink."""

    transaction_id: str
    producer_id: str | None = None
    producer_epoch: int | None = None
    kind: str | None = None
    sink: TaskOwner | None = None
    timeout_ms: int | None = None
    streams: list[str] | UnsetType = UNSET
    implicit: bool | None = None


class TxnRequest(StrictRequest, frozen=True, kw_only=True):
    """`POST /v1/transactions/{id}/commit`, `abort` and `fence`.

    It is also the base of the other requests about a transaction.
    """

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
    """The offsets and the number of the messages that a commit added to a stream."""

    first_offset: str
    next_offset: str
    messages: int


StreamResults = dict[str, StreamResult]  # by path
GroupOffsets = dict[str, dict[str, str]]  # by group and path


class BeginResponse(Struct, frozen=True, kw_only=True):
    """The response to a begin: the transaction is open, until `deadline` if it has one."""

    transaction_id: str = ""
    transaction_epoch: int
    state: str = "open"
    deadline: str | None = None


class ExtendResponse(OfTransaction, frozen=True):
    """The number of streams, or of positions, that a transaction has now."""

    stream_count: int | UnsetType = UNSET
    offset_count: int | UnsetType = UNSET


class PrepareResponse(Struct, frozen=True, kw_only=True):
    """The response to a prepare; `token` contains the id and the transaction epoch."""

    transaction_id: str = ""
    transaction_epoch: int = 0
    state: str = "prepared"
    token: str


class AbortResponse(TransactionState, frozen=True):
    """The response to an abort."""

    reason: str


class TxnCommitResponse(TransactionState, frozen=True):
    """The response to the commit of a transaction.

    `streams`, `offsets` and `deleted` are null if the result is no longer retained.
    """

    duplicate: bool
    streams: StreamResults | None
    offsets: GroupOffsets | None
    deleted: list[str] | None


class PendingStream(Struct, frozen=True):
    """A stream of a pending transaction.

    `first_offset` is null as long as no message of the transaction has an offset in the stream.
    """

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
    """The status of a transaction, for a caller of the client.

    `state` is `open`, `prepared`, `committed` or `aborted`. The values of `streams` have the
    members of `StreamResult` if the transaction has ended, and of `PendingStream` if it is pending.
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
        """Whether the transaction is open and has no messages, chunks or positions yet."""
        messages = sum(stream.get("messages", 0) for stream in self.streams.values())
        return self.state == "open" and not (messages or self.next_seq or self.offsets)


class TransactionsPage(Struct, Generic[T], frozen=True):
    """A page of pending transactions; `next` is the number after which the next page begins."""

    transactions: list[T]
    next: int | None = None
