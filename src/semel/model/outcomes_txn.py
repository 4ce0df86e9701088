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
    """The transaction has these streams or positions now; `count` is the number of all of them."""

    id: str
    count: int


class Staged(Outcome, frozen=True, gc=False):
    """The chunk is durable and has no offset yet; `next_seq` is the one to send next."""

    next_seq: int


class Prepared(Outcome, frozen=True, gc=False):
    """The transaction can only be committed or aborted now; it has no deadline any more."""

    id: str
    epoch: int
    token: str


class CommitDone(Outcome, frozen=True):
    """Everything is applied. `result` is None for a duplicate whose result is no longer retained.

    `is_unchecked`: a sink's version was committed before, and there are no digests to compare.
    `is_mismatch`: the producer's sequence was used for another commit, which stays; nothing of this
    one is applied.
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
    """The step of this number that was pinned first."""

    number: int
    ranges: tuple[SnapshotRange, ...]
    hash: str
    is_new: bool


class SinkChanged(Outcome, frozen=True, gc=False):
    """The sink is rebound or forgotten."""


# ---- refused -------------------------------------------------------------------------------------

# The reasons of a PositionConflict.
BY_INCARNATION: Final = "incarnation"  # the path has another stream than the one that was read
BY_PENDING: Final = "pending"  # `from` is not where this transaction itself moves the group
BY_OFFSET: Final = "offset"  # `from` is not the stored offset
BY_VERSION: Final = "version"  # the offset is the same, but the position was moved in between
BY_MOVER: Final = "mover"  # without `from`, and another producer moved the position last
BY_MOVE: Final = "moved"  # the position was moved after the transaction named it
BY_DELETION: Final = "deleted"  # the stream was deleted after the transaction named it


class UnknownTransaction(Refusal, frozen=True, gc=False):
    """There is no transaction of that id and epoch, or its outcome has expired."""

    code = "INVALID_TXN_ID"


class StaleTransaction(Refusal, frozen=True, gc=False):
    """A newer transaction of that id has begun."""

    code = "PRODUCER_FENCED"
    current_epoch: int


class NotOwner(Refusal, frozen=True, gc=False):
    """The transaction has another owner."""

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
    """An open transaction has messages in the stream."""

    code = "stream_in_transaction"
    transaction: str


class OffsetUnstable(Refusal, frozen=True, gc=False):
    """Messages at or after `stable` belong to pending transactions."""

    code = "offset_unstable"
    stable: int


class BranchIncomplete(Refusal, frozen=True, gc=False):
    """What is staged is not what the caller counted, or it was not prepared."""

    code = "branch_incomplete"
    id: str
    chunks: int
    messages: int


class BranchMissing(Refusal, frozen=True, gc=False):
    """A listed transaction does not exist any more; it must be staged again."""

    code = "branch_missing"
    id: str


class PositionConflict(Refusal, frozen=True, gc=False):
    """The group is not at the position the caller has read from.

    `offset` and `version` are the stored ones; for a position that this transaction has named
    already, `offset` is the pending one. `incarnation` is that of the stream, if it is what
    differs. `mover` moved the position last, if no other producer may move it without `from`.
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
    """The sink has committed other input than the caller has."""

    code = "checkpoint_diverged"
    last_version: int


class VersionForgotten(Refusal, frozen=True, gc=False):
    """The version is too old to be compared: its digest is no longer retained."""

    code = "version_forgotten"
    last_version: int


class UnknownSink(Refusal, frozen=True, gc=False):
    """No app of this name has committed."""

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
    """One of several streams refuses, for `cause`; nothing of the command is applied."""

    code = "stream_refused"
    path: str
    cause: Refusal
