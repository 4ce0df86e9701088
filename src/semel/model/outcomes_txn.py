"""What the engine answers about transactions, groups and sinks."""

from typing import Final

from semel.model.outcomes import Outcome, Refusal
from semel.model.transactions import SnapshotRange
from semel.model.txn_outcome import TxnResult

# ---- done ----------------------------------------------------------------------------------------


class Begun(Outcome, frozen=True, gc=False):
    """The transaction is open; `is_new` is False if it was before."""

    id: str
    epoch: int
    deadline_ms: int | None
    is_new: bool


class ExtendDone(Outcome, frozen=True, gc=False):
    """The transaction knows these streams or positions now: how many it holds of them."""

    id: str
    count: int


class Staged(Outcome, frozen=True, gc=False):
    """The chunk is durable and has no offset yet; `next_seq` is the one to send next."""

    next_seq: int


class Prepared(Outcome, frozen=True, gc=False):
    """The transaction is sealed and waits for its decision, as long as it takes."""

    id: str
    epoch: int
    token: str


class CommitDone(Outcome, frozen=True):
    """Everything is applied. `result` is None for a duplicate whose result is no longer held.

    `is_unchecked`: a sink's version was answered again without digests to compare. `is_mismatch`: a
    producer's sequence was used for something else, which stays; nothing of this is applied.
    """

    id: str | None
    epoch: int | None
    result: TxnResult | None
    is_duplicate: bool = False
    is_unchecked: bool = False
    is_mismatch: bool = False


class AbortDone(Outcome, frozen=True, gc=False):
    """Nothing of the transaction is or will be visible."""

    id: str
    epoch: int
    reason: str


class PositionsSet(Outcome, frozen=True):
    """The positions are moved; `versions` are the new ones, in the order of the command."""

    versions: tuple[int, ...]


class Pinned(Outcome, frozen=True):
    """The step is fixed; as pinned first."""

    number: int
    ranges: tuple[SnapshotRange, ...]
    hash: str
    is_new: bool


class SinkChanged(Outcome, frozen=True, gc=False):
    """The sink is rebound or forgotten."""


# ---- refused -------------------------------------------------------------------------------------

# What is not as the caller believes, in a PositionConflict.
BY_INCARNATION: Final = "incarnation"  # the path has another stream than the one that was read
BY_PENDING: Final = "pending"  # `from` is not where this transaction itself moves the group
BY_OFFSET: Final = "offset"  # `from` is not the stored offset
BY_VERSION: Final = "version"  # the offset is the same, but the position was moved in between
BY_MOVER: Final = "mover"  # without `from`, and somebody else moved the position last
BY_MOVE: Final = "moved"  # the position was moved after the transaction named it
BY_DELETION: Final = "deleted"  # the stream ended after the transaction named it


class UnknownTransaction(Refusal, frozen=True, gc=False):
    """No transaction of that id and epoch is known."""

    code = "INVALID_TXN_ID"


class StaleTransaction(Refusal, frozen=True, gc=False):
    """A newer transaction of that id has begun."""

    code = "PRODUCER_FENCED"
    current_epoch: int


class NotOwner(Refusal, frozen=True, gc=False):
    """The transaction belongs to somebody else."""

    code = "PRODUCER_FENCED"


class InvalidTxnState(Refusal, frozen=True, gc=False):
    """The transaction is in a state that does not allow this; if aborted, for a `reason`."""

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
    """Another transaction is in the way."""

    code = "CONCURRENT_TRANSACTIONS"
    other: str


class TooManyTransactions(Refusal, frozen=True, gc=False):
    """The producer has that many transactions pending."""

    code = "TOO_MANY_TRANSACTIONS"
    maximum: int


class PartitionNotInTxn(Refusal, frozen=True, gc=False):
    """The stream was not added to the transaction."""

    code = "PARTITION_NOT_IN_TXN"


class StreamInTransaction(Refusal, frozen=True, gc=False):
    """An open transaction has messages in the stream."""

    code = "stream_in_transaction"
    transaction: str


class OffsetUnstable(Refusal, frozen=True, gc=False):
    """What lies at or after `stable` is not decided yet."""

    code = "offset_unstable"
    stable: int


class BranchIncomplete(Refusal, frozen=True, gc=False):
    """What is staged is not what the caller counted, or it was never prepared."""

    code = "branch_incomplete"
    id: str
    chunks: int
    messages: int


class BranchMissing(Refusal, frozen=True, gc=False):
    """A transaction the commit names is not there any more; stage it again."""

    code = "branch_missing"
    id: str


class PositionConflict(Refusal, frozen=True, gc=False):
    """The group's position is not the one the caller has read from.

    `offset` and `version` are the stored ones, of a position this transaction has named already its
    own pending offset. `incarnation` is the stream's, if that is what differs. `mover`: who moved
    the position last, if nobody else may move it without `from`.
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
    """A prepared transaction holds the position until it is decided."""

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
    """The sink's history and the caller's are two different ones."""

    code = "checkpoint_diverged"
    last_version: int


class VersionForgotten(Refusal, frozen=True, gc=False):
    """The version is too old to be told from another."""

    code = "version_forgotten"
    last_version: int


class UnknownSink(Refusal, frozen=True, gc=False):
    """No such app has committed."""

    code = "unknown_sink"


class SnapshotConflict(Refusal, frozen=True, gc=False):
    """Another step is pinned."""

    code = "snapshot_conflict"
    number: int


class IncarnationConflict(Refusal, frozen=True, gc=False):
    """The stream was deleted and created again."""

    code = "incarnation_conflict"
    path: str
    incarnation: str


class StreamRefused(Refusal, frozen=True):
    """One stream of several refuses, for `cause`; nothing of the command is applied."""

    code = "stream_refused"
    path: str
    cause: Refusal
