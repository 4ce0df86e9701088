"""The refusal table's entries for transactions, groups and sinks."""

from typing import Any, Final

from semel.wire.problems import Entry

# The outcome's field `state` sometimes contains one of these words instead of a transaction state.
# The word means that this kind of transaction cannot be committed in this way.
_WRONG_KINDS: Final = {
    "sink": "the transaction belongs to a sink; commit it with POST /v1/commits",
    "inline": "the transaction is inline; POST /v1/commits commits only staged transactions",
}


def _wrong_state(outcome: Any) -> str:
    why = f" ({outcome.reason})" if outcome.reason else ""
    message = f"the transaction is {outcome.state}{why}, but the request needs an open transaction"
    return _WRONG_KINDS.get(outcome.state, message)


# Maps the reason for a position conflict to the message.
_POSITION_CONFLICTS: Final = {
    "incarnation": "the stream {0.path} was deleted and created again; read it from the start",
    "pending": (
        "this transaction already moves the position of the group {0.group} in {0.path} to"
        " {0.offset}; set `from` to that offset"
    ),
    "offset": (
        "the group {0.group} is at {0.offset} in {0.path}, but `from` in the request is a different"
        " offset; continue reading at {0.offset}"
    ),
    "version": (
        "the position of the group {0.group} in {0.path} has version {0.version}, but the request"
        " has a different version; continue reading at {0.offset}"
    ),
    "mover": (
        "the position of the group {0.group} in {0.path} was last moved by {0.mover}, not by you;"
        " set `from` to the offset at which you began to read, or use one producer id for the group"
    ),
    "moved": (
        "the position of the group {0.group} in {0.path}, which this transaction also moves, was"
        " meanwhile moved to {0.offset}; abort the transaction and continue reading at that offset"
    ),
    "deleted": (
        "the stream {0.path}, in which this transaction moves the position of the group"
        " {0.group}, was deleted; abort the transaction"
    ),
    "growth": (
        "the topic of {0.path} has grown, and the group {0.group} has not yet read all messages"
        " before that in all partitions; ask for the limit of the stream by a heartbeat, and"
        " continue reading at {0.offset} up to this limit"
    ),
}


def _position_conflict(outcome: Any) -> str:
    return _POSITION_CONFLICTS[outcome.reason].format(outcome)


TXN_REFUSALS: Final = (
    Entry(
        "INVALID_TXN_ID",
        404,
        outcome="UnknownTransaction",
        message="there is no transaction with that id and epoch",
        error="UnknownTransaction",
        advice="begin a new transaction; this one was never begun, or the server has forgotten it",
        cli="`semel txn ls` lists the pending transactions",
    ),
    Entry(
        "PRODUCER_FENCED",
        403,
        outcome="StaleTransaction",
        message="a newer transaction with the same id has begun, with epoch {0.current_epoch}",
        names={"current_epoch": "transaction_epoch"},
        error="ProducerFenced",
    ),
    Entry(
        "PRODUCER_FENCED",
        403,
        outcome="NotOwner",
        message="the sender of the request does not own the transaction",
        error="ProducerFenced",
    ),
    Entry(
        "INVALID_TXN_STATE",
        409,
        outcome="InvalidTxnState",
        message=_wrong_state,
        error="InvalidTransactionState",
        advice="begin a new transaction",
    ),
    Entry(
        "TRANSACTION_TIMED_OUT",
        409,
        outcome="TxnTimedOut",
        message="the transaction exceeded its timeout and was aborted; begin a new transaction",
        error="TransactionTimedOut",
        advice="repeat the work in a new transaction, with a longer timeout if needed",
    ),
    Entry(
        "txn_aborted",
        409,
        outcome="AlreadyAborted",
        message="the transaction was aborted ({0.reason}) and cannot be committed",
        error="TransactionAborted",
        advice="repeat the work in a new transaction",
    ),
    Entry(
        "txn_committed",
        409,
        outcome="AlreadyCommitted",
        message="the transaction was committed and cannot be aborted",
        error="TransactionCommitted",
        advice="no action is needed",
    ),
    Entry(
        "CONCURRENT_TRANSACTIONS",
        409,
        outcome="ConcurrentTransactions",
        message="the transaction {0.other} must end before a new transaction can begin",
        names={"other": "transaction_id"},
        error="ConcurrentTransactions",
        advice="commit or abort that transaction, or use a different producer_id",
    ),
    Entry(
        "TOO_MANY_TRANSACTIONS",
        429,
        outcome="TooManyTransactions",
        message="the producer already has the maximum of {0.maximum} pending transactions",
        error="TooManyTransactions",
        advice="commit or abort the prepared transactions first",
    ),
    Entry(
        "PARTITION_NOT_IN_TXN",
        409,
        outcome="PartitionNotInTxn",
        message="the stream was not added to the transaction",
        error="PartitionNotInTransaction",
        advice="call add_streams first, or begin the transaction without a list of streams",
    ),
    Entry(
        "stream_in_transaction",
        409,
        outcome="StreamInTransaction",
        message="the request is refused: transaction {0.transaction} has messages in the stream",
        names={"transaction": "transaction_id"},
        error="StreamInTransaction",
        advice="wait until the transaction has ended",
    ),
    Entry(
        "offset_unstable",
        409,
        outcome="OffsetUnstable",
        message="the offset is not stable: a pending transaction has messages at or before it",
        names={"stable": "stable_offset"},
        error="OffsetUnstable",
        advice="use an offset up to stable_offset, or wait until the transaction has ended",
    ),
    Entry(
        "branch_incomplete",
        409,
        outcome="BranchIncomplete",
        message=(
            "the transaction {0.id} has {0.chunks} chunks with {0.messages} messages; the request"
            " expects different contents, or the transaction was not prepared before the commit"
        ),
        names={"id": "transaction_id"},
        error="BranchIncomplete",
        advice="stage the missing messages, then prepare the transaction",
    ),
    Entry(
        "branch_missing",
        409,
        outcome="BranchMissing",
        message="the transaction {0.id} no longer exists; stage its messages again",
        names={"id": "transaction_id"},
        error="BranchMissing",
        advice="stage the messages again in a new transaction",
    ),
    Entry(
        "position_conflict",
        409,
        outcome="PositionConflict",
        message=_position_conflict,
        names={"path": "stream"},
        error="PositionConflict",
        advice="nothing was applied; abort the transaction, and read with a new tail(group=...)",
    ),
    Entry(
        "unstable_offsets",
        409,
        outcome="UnstableOffsets",
        message=(
            "the prepared transaction {0.transaction} moves the position of the group {0.group}"
            " in {0.path}; commit or abort that transaction first"
        ),
        names={"path": "stream", "transaction": "transaction_id", "epoch": "transaction_epoch"},
        error="UnstableOffsets",
        advice="commit or abort the prepared transaction first, for example with `semel txn`",
    ),
    Entry(
        "app_bound",
        409,
        outcome="AppBound",
        message=(
            "the sink belongs to the query {0.query_id}; use `semel sinks rebind` to give the sink"
            " to a different query"
        ),
        error="AppBound",
        advice="use a different app name, or take over the sink with `semel sinks rebind`",
        spark=(
            "the sink {app} belongs to a different query or checkpoint. Set a different txnAppId"
            " for this query, or give the sink to this query with `semel sinks rebind {app}"
            " --query-id {query_id} --last-version N`. The query then continues after batch N"
            " (use N = -1 to start at batch 0)"
        ),
    ),
    Entry(
        "checkpoint_diverged",
        409,
        outcome="CheckpointDiverged",
        message=(
            "the input of this version, or of the one before it, differs from the committed input,"
            " or a digest of the input is missing; the last committed version is {0.last_version}"
        ),
        error="CheckpointDiverged",
        advice="find out which checkpoint is right; if yours is right, use `semel sinks rebind`",
        spark=(
            "no row of this batch was written: this checkpoint was copied or restored, and a"
            " different run has written to the sink {app} since then. Continue with that run's"
            " checkpoint, or start with a new checkpoint. With a new checkpoint, all rows that the"
            " query reads again are also written again"
        ),
    ),
    Entry(
        "version_forgotten",
        409,
        outcome="VersionForgotten",
        message="the version is too old; the last committed version is {0.last_version}",
        error="VersionForgotten",
        advice="continue with the version after last_version",
        spark=(
            "the batch is too old: the server no longer knows whether its rows were written."
            " Continue after the last batch that the sink {app} has committed"
        ),
    ),
    Entry(
        "unknown_sink",
        404,
        outcome="UnknownSink",
        message="there is no sink with this app name",
        cli="`semel sinks ls` lists the sinks",
    ),
    Entry(
        "snapshot_conflict",
        409,
        outcome="SnapshotConflict",
        message="the group has pinned step {0.number}; the request must name that step or the next",
    ),
    Entry(
        "incarnation_conflict",
        409,
        outcome="IncarnationConflict",
        message="the stream {0.path} was deleted and created again",
        names={"path": "stream"},
    ),
)
