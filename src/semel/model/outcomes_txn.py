"""The outcomes of commands about transactions, groups and sinks."""

from typing import Final

from semel.model.commands import SnapshotRange, TxnResult
from semel.model.outcomes import Outcome, Refusal

# ---- done ----------------------------------------------------------------------------------------


class Begun(Outcome, frozen=True, gc=False):
    """The transaction is open. `is_new` is False if it was already open before the request."""

    id: str
    epoch: int
    deadline_ms: int | None
    is_new: bool


class ExtendDone(Outcome, frozen=True, gc=False):
    """The streams or positions have been added to the transaction.

    If streams were added, `count` is the number of streams that the transaction now has. If
    positions were added, `count` is the number of positions that it now has.
    """

    id: str
    count: int


class Staged(Outcome, frozen=True, gc=False):
    """The chunk is durable. It has no offset yet. `next_seq` is the number of the next chunk."""

    next_seq: int


class Prepared(Outcome, frozen=True, gc=False):
    """The transaction is prepared: it can only be committed or aborted.

    A producer's prepared transaction has no deadline. A sink's prepared transaction is still
    aborted when it has been idle for too long.
    """

    id: str
    epoch: int
    token: str


class CommitDone(Outcome, frozen=True):
    """The commit is applied, unless `is_mismatch` is True.

    `is_mismatch` is True if the producer already used this sequence for a different commit. That
    commit stays valid, and no part of this commit is applied.
    """

    id: str | None
    epoch: int | None
    result: TxnResult | None  # None if an earlier request got the result and it is not retained
    is_duplicate: bool = False  # an earlier request applied a commit with the same identity
    # The sink's version was already committed, but without digests the input cannot be compared.
    is_unchecked: bool = False
    is_mismatch: bool = False


class AbortDone(Outcome, frozen=True, gc=False):
    """The transaction is aborted. Its messages stay invisible, and its positions are not moved."""

    id: str
    epoch: int
    reason: str


class PositionsSet(Outcome, frozen=True):
    """The positions are moved.

    `versions` are the new versions of the positions, in the order of the command.
    """

    versions: tuple[int, ...]


class Pinned(Outcome, frozen=True):
    """The step is pinned: its ranges are stored, so that a retry reads the same messages.

    If `is_new` is False, this step number was already pinned. The fields describe the stored step.
    """

    number: int
    ranges: tuple[SnapshotRange, ...]
    hash: str
    is_new: bool


class SinkChanged(Outcome, frozen=True, gc=False):
    """The sink is rebound or forgotten."""


# ---- refused -------------------------------------------------------------------------------------

# The reasons for a PositionConflict.
BY_INCARNATION: Final = "incarnation"  # the stream was deleted and created again
BY_PENDING: Final = "pending"  # `from` is not the offset to which this transaction moves
BY_OFFSET: Final = "offset"  # `from` is not the stored offset
BY_VERSION: Final = "version"  # `version` is not the stored one: the position was moved in between
BY_MOVER: Final = "mover"  # `from` is missing, and a different producer or sink moved it last
BY_MOVE: Final = "moved"  # the position was moved after the transaction named it
BY_DELETION: Final = "deleted"  # the stream was deleted after the transaction named the position
BY_GROWTH: Final = "growth"  # the topic has grown, and the group must first read all before that


class UnknownTransaction(Refusal, frozen=True, gc=False):
    """The transaction with this id and epoch never began, or it ended and its outcome expired."""

    code = "INVALID_TXN_ID"


class StaleTransaction(Refusal, frozen=True, gc=False):
    """A newer transaction with this id has begun."""

    code = "PRODUCER_FENCED"
    current_epoch: int


class NotOwner(Refusal, frozen=True, gc=False):
    """The caller is not the owner of the transaction."""

    code = "PRODUCER_FENCED"


class InvalidTxnState(Refusal, frozen=True, gc=False):
    """The state of the transaction does not allow the command.

    If the transaction was aborted, `reason` says why.
    """

    code = "INVALID_TXN_STATE"
    state: str
    reason: str | None = None


class TxnTimedOut(Refusal, frozen=True, gc=False):
    """The transaction was aborted because its deadline had passed."""

    code = "TRANSACTION_TIMED_OUT"


class AlreadyAborted(Refusal, frozen=True, gc=False):
    """The transaction was aborted and cannot be committed."""

    code = "txn_aborted"
    reason: str


class AlreadyCommitted(Refusal, frozen=True, gc=False):
    """The transaction was committed and cannot be aborted."""

    code = "txn_committed"


class ConcurrentTransactions(Refusal, frozen=True, gc=False):
    """The transaction `other` must end before this transaction can begin."""

    code = "CONCURRENT_TRANSACTIONS"
    other: str


class TooManyTransactions(Refusal, frozen=True, gc=False):
    """The producer already has the maximum number of pending transactions."""

    code = "TOO_MANY_TRANSACTIONS"
    maximum: int


class PartitionNotInTxn(Refusal, frozen=True, gc=False):
    """The stream was not added to the transaction."""

    code = "PARTITION_NOT_IN_TXN"


class StreamInTransaction(Refusal, frozen=True, gc=False):
    """The command is refused while a pending transaction has messages in the stream."""

    code = "stream_in_transaction"
    transaction: str


class OffsetUnstable(Refusal, frozen=True, gc=False):
    """The offset (for a fork, plus its sub-offset) is after the stable offset, `stable`."""

    code = "offset_unstable"
    stable: int


class BranchIncomplete(Refusal, frozen=True, gc=False):
    """The transaction `id` cannot be prepared or committed yet.

    - Prepare: the number of staged chunks or messages is not the number that the request expects.
    - Commit: the commit lists the transaction, but the transaction is not prepared.
    """

    code = "branch_incomplete"
    id: str
    chunks: int  # the number of staged chunks
    messages: int  # the number of staged messages


class BranchMissing(Refusal, frozen=True, gc=False):
    """The listed transaction `id` is not pending. Its messages must be staged again."""

    code = "branch_missing"
    id: str


class PositionConflict(Refusal, frozen=True, gc=False):
    """A condition for moving the position does not hold. `reason` says which condition."""

    code = "position_conflict"
    group: str
    path: str
    offset: int  # the stored offset; for the reason `pending`, this transaction's own target
    incarnation: str | None = None  # the stream's incarnation, only for the reason `incarnation`
    version: int = 0  # the version of the stored position
    mover: str | None = None  # who moved the position last, only for the reason `mover`
    reason: str = BY_OFFSET


class UnstableOffsets(Refusal, frozen=True, gc=False):
    """Until the prepared transaction `transaction` ends, nobody else can move the position."""

    code = "unstable_offsets"
    group: str
    path: str
    transaction: str
    epoch: int


class AppBound(Refusal, frozen=True, gc=False):
    """The sink is bound to the query `query_id`, but the request names a different query."""

    code = "app_bound"
    query_id: str


class CheckpointDiverged(Refusal, frozen=True, gc=False):
    """The sink has committed this version, or the previous version, with a different input.

    Inputs are compared by their digests. If the request or the stored version has no digest, a
    repeat of the sink's last version is accepted, but a repeat of an older version is refused.
    """

    code = "checkpoint_diverged"
    last_version: int


class VersionForgotten(Refusal, frozen=True, gc=False):
    """The version is too old: its result and its digest are no longer retained."""

    code = "version_forgotten"
    last_version: int


class UnknownSink(Refusal, frozen=True, gc=False):
    """There is no sink with this id."""

    code = "unknown_sink"


class SnapshotConflict(Refusal, frozen=True, gc=False):
    """The group has pinned step `number`. The request names neither that step nor the next."""

    code = "snapshot_conflict"
    number: int


class IncarnationConflict(Refusal, frozen=True, gc=False):
    """The stream was deleted and created again. Its incarnation is now `incarnation`."""

    code = "incarnation_conflict"
    path: str
    incarnation: str


class StreamRefused(Refusal, frozen=True):
    """The command was refused because of the stream at `path`. `cause` is the reason."""

    code = "stream_refused"
    path: str
    cause: Refusal
