"""The outcomes of commands about transactions, groups and sinks."""

from typing import Final

from semel.model.commands import SnapshotRange, TxnResult
from semel.model.outcomes import Outcome, Refusal

# ---- done ----------------------------------------------------------------------------------------


class Begun(Outcome, frozen=True, gc=False):
    """The transaction is open; `is_new` is False if it was open before."""

    id: str
    epoch: int
    deadline_ms: int | None
    is_new: bool


class ExtendDone(Outcome, frozen=True, gc=False):
    """The streams or positions are added; `count` is how many the transaction now has in total."""

    id: str
    count: int


class Staged(Outcome, frozen=True, gc=False):
    """The chunk is durable and has no offset yet; `next_seq` is the number of the next chunk."""

    next_seq: int


class Prepared(Outcome, frozen=True, gc=False):
    """The transaction is prepared: it can only be committed or aborted.

    A producer's transaction has no deadline any more; a sink's is still aborted when it is idle.
    """

    id: str
    epoch: int
    token: str


class CommitDone(Outcome, frozen=True):
    """The commit is applied, now or by an earlier request (`is_duplicate`).

    `result` is None for a duplicate whose result is no longer retained. `is_unchecked` says that
    the sink's version was committed before and there are no digests to compare. `is_mismatch` says
    that the producer used this sequence for another commit, which stays: nothing of this commit is
    applied.
    """

    id: str | None
    epoch: int | None
    result: TxnResult | None
    is_duplicate: bool = False
    is_unchecked: bool = False
    is_mismatch: bool = False


class AbortDone(Outcome, frozen=True, gc=False):
    """The transaction is aborted: none of its messages and moves becomes visible."""

    id: str
    epoch: int
    reason: str


class PositionsSet(Outcome, frozen=True):
    """The positions are moved; `versions` are their new versions, in the order of the command."""

    versions: tuple[int, ...]


class Pinned(Outcome, frozen=True):
    """The step is pinned. If it was pinned before (not `is_new`), this is the stored step."""

    number: int
    ranges: tuple[SnapshotRange, ...]
    hash: str
    is_new: bool


class SinkChanged(Outcome, frozen=True, gc=False):
    """The sink is rebound or forgotten."""


# ---- refused -------------------------------------------------------------------------------------

# The reasons for a PositionConflict.
BY_INCARNATION: Final = "incarnation"  # the stream at the path is not the one that was read
BY_PENDING: Final = "pending"  # `from` is not the offset this transaction moves to
BY_OFFSET: Final = "offset"  # `from` is not the stored offset
BY_VERSION: Final = "version"  # the offset is the same, but the position was moved in between
BY_MOVER: Final = "mover"  # no `from`, and another producer moved the position last
BY_MOVE: Final = "moved"  # the position was moved after the transaction named it
BY_DELETION: Final = "deleted"  # the stream was deleted after the transaction named it


class UnknownTransaction(Refusal, frozen=True, gc=False):
    """There is no transaction with this id and epoch, or its outcome has expired."""

    code = "INVALID_TXN_ID"


class StaleTransaction(Refusal, frozen=True, gc=False):
    """A newer transaction with this id has begun."""

    code = "PRODUCER_FENCED"
    current_epoch: int


class NotOwner(Refusal, frozen=True, gc=False):
    """The transaction has another owner."""

    code = "PRODUCER_FENCED"


class InvalidTxnState(Refusal, frozen=True, gc=False):
    """The state of the transaction does not allow the command; `reason` is why it was aborted."""

    code = "INVALID_TXN_STATE"
    state: str
    reason: str | None = None


class TxnTimedOut(Refusal, frozen=True, gc=False):
    """The transaction's deadline passed and it was aborted."""

    code = "TRANSACTION_TIMED_OUT"


class AlreadyAborted(Refusal, frozen=True, gc=False):
    """The transaction was aborted and cannot be committed."""

    code = "txn_aborted"
    reason: str


class AlreadyCommitted(Refusal, frozen=True, gc=False):
    """The transaction was committed; that is final."""

    code = "txn_committed"


class ConcurrentTransactions(Refusal, frozen=True, gc=False):
    """The transaction `other` must end first."""

    code = "CONCURRENT_TRANSACTIONS"
    other: str


class TooManyTransactions(Refusal, frozen=True, gc=False):
    """The producer has the maximum number of pending transactions."""

    code = "TOO_MANY_TRANSACTIONS"
    maximum: int


class PartitionNotInTxn(Refusal, frozen=True, gc=False):
    """The stream was not added to the transaction."""

    code = "PARTITION_NOT_IN_TXN"


class StreamInTransaction(Refusal, frozen=True, gc=False):
    """A pending transaction has messages in the stream."""

    code = "stream_in_transaction"
    transaction: str


class OffsetUnstable(Refusal, frozen=True, gc=False):
    """Messages at or after `stable` belong to pending transactions."""

    code = "offset_unstable"
    stable: int


class BranchIncomplete(Refusal, frozen=True, gc=False):
    """The staged counts differ from the caller's counts, or the transaction is not prepared."""

    code = "branch_incomplete"
    id: str
    chunks: int
    messages: int


class BranchMissing(Refusal, frozen=True, gc=False):
    """A listed transaction does not exist; its messages must be staged again."""

    code = "branch_missing"
    id: str


class PositionConflict(Refusal, frozen=True, gc=False):
    """A condition of the move does not hold; `reason` says which.

    `offset` and `version` are those of the stored position. If this transaction has already named
    the position, `offset` is the one it moves to. `incarnation` is that of the stream, set if the
    caller's differs. `mover` moved the position last; it is set if another producer has to send
    `from`.
    """

    code = "position_conflict"
    group: str
    path: str
    offset: int
    incarnation: str | None = None
    version: int = 0
    mover: str | None = None
    reason: str = BY_OFFSET


class UnstableOffsets(Refusal, frozen=True, gc=False):
    """A prepared transaction holds the position until it ends."""

    code = "unstable_offsets"
    group: str
    path: str
    transaction: str
    epoch: int


class AppBound(Refusal, frozen=True, gc=False):
    """The sink belongs to another query."""

    code = "app_bound"
    query_id: str


class CheckpointDiverged(Refusal, frozen=True, gc=False):
    """The input that the sink committed is not the input the caller has for that version."""

    code = "checkpoint_diverged"
    last_version: int


class VersionForgotten(Refusal, frozen=True, gc=False):
    """The version is too old to be compared: its digest is no longer retained."""

    code = "version_forgotten"
    last_version: int


class UnknownSink(Refusal, frozen=True, gc=False):
    """There is no sink with this id."""

    code = "unknown_sink"


class SnapshotConflict(Refusal, frozen=True, gc=False):
    """The group has another step pinned, with this `number`."""

    code = "snapshot_conflict"
    number: int


class IncarnationConflict(Refusal, frozen=True, gc=False):
    """The stream was deleted and created again."""

    code = "incarnation_conflict"
    path: str
    incarnation: str


class StreamRefused(Refusal, frozen=True):
    """The stream at `path` refuses its part of the command; nothing of the command is applied."""

    code = "stream_refused"
    path: str
    cause: Refusal
