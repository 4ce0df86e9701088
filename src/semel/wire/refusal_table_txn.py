"""The refusal table's entries for transactions, groups and sinks."""

from typing import Any, Final

from semel.wire.problems import Entry

# The outcome's field `state` sometimes contains one of these words instead of a transaction state.
# The word means that this kind of transaction cannot be committed in this way.
_WRONG_KINDS: Final = {
    "sink": "a transaction of a sink can only be committed by POST /v1/commits",
    "inline": "POST /v1/commits accepts staged transactions only",
}


def _wrong_state(outcome: Any) -> str:
    why = f" ({outcome.reason})" if outcome.reason else ""
    message = f"the transaction is {outcome.state}{why}; it must be open for this"
    return _WRONG_KINDS.get(outcome.state, message)


# Maps the reason for a position conflict to the message.
_POSITION_CONFLICTS: Final = {
    "incarnation": ("the stream {0.path} was deleted and created again; read it from its start"),
    "pending": (
        "this transaction already moves the group {0.group} in {0.path} to {0.offset}; set from to"
        " that offset"
    ),
    "offset": (
        "the group {0.group} is at {0.offset} in {0.path}, not at the offset in from; read from"
        " {0.offset}"
    ),
    "version": (
        "the position of the group {0.group} in {0.path} has version {0.version}, not the version"
        " in the request: it was moved since, or that version is wrong; read from {0.offset}"
    ),
    "mover": (
        "{0.mover} moved the group {0.group} in {0.path} last; set from to the position you"
        " have read from, or use one producer id for the group"
    ),
    "moved": (
        "the group {0.group} was moved to {0.offset} in {0.path} after this transaction named it;"
        " abort the transaction and read from that offset"
    ),
    "deleted": (
        "the stream {0.path} was deleted after this transaction named a position of the group"
        " {0.group} in it; abort the transaction"
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
        advice="begin the transaction; the outcomes of ended ones are retained for 7 days",
        cli="`semel txn ls` lists the pending transactions",
    ),
    Entry(
        "PRODUCER_FENCED",
        403,
        outcome="StaleTransaction",
        message="a newer transaction with that id has begun; its epoch is {0.current_epoch}",
        names={"current_epoch": "transaction_epoch"},
        error="ProducerFenced",
    ),
    Entry(
        "PRODUCER_FENCED",
        403,
        outcome="NotOwner",
        message="the transaction has a different owner",
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
        message="the transaction took too long and was aborted; begin it again",
        error="TransactionTimedOut",
        advice="repeat the work in a new transaction, with a longer timeout if needed",
    ),
    Entry(
        "txn_aborted",
        409,
        outcome="AlreadyAborted",
        message="the transaction was aborted ({0.reason}); this is final",
        error="TransactionAborted",
        advice="repeat the work in a new transaction",
    ),
    Entry(
        "txn_committed",
        409,
        outcome="AlreadyCommitted",
        message="the transaction was committed; this is final",
        error="TransactionCommitted",
        advice="nothing is left to do",
    ),
    Entry(
        "CONCURRENT_TRANSACTIONS",
        409,
        outcome="ConcurrentTransactions",
        message="the transaction {0.other} must end first",
        names={"other": "transaction_id"},
        error="ConcurrentTransactions",
        advice="end that transaction first, or use a different producer_id",
    ),
    Entry(
        "TOO_MANY_TRANSACTIONS",
        429,
        outcome="TooManyTransactions",
        message="the producer already has {0.maximum} pending transactions",
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
        message="the pending transaction {0.transaction} has messages in the stream",
        names={"transaction": "transaction_id"},
        error="StreamInTransaction",
        advice="wait until the transaction has ended",
    ),
    Entry(
        "offset_unstable",
        409,
        outcome="OffsetUnstable",
        message="the messages at this offset belong to a pending transaction",
        names={"stable": "stable_offset"},
        error="OffsetUnstable",
        advice="use an offset up to stable_offset, or wait",
    ),
    Entry(
        "branch_incomplete",
        409,
        outcome="BranchIncomplete",
        message=(
            "the transaction {0.id} is not prepared, or the request has other counts: it has"
            " {0.chunks} chunks with {0.messages} messages"
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
        advice=(
            "nothing was applied: another worker has processed these messages, or the"
            " group was set by hand; abort, and continue with a new tail(group=...)"
        ),
    ),
    Entry(
        "unstable_offsets",
        409,
        outcome="UnstableOffsets",
        message=(
            "the prepared transaction {0.transaction} moves the group {0.group} in"
            " {0.path}; end that transaction first"
        ),
        names={"path": "stream", "transaction": "transaction_id", "epoch": "transaction_epoch"},
        error="UnstableOffsets",
        advice="commit or abort the transaction first: use `semel txn` to do this by hand",
    ),
    Entry(
        "app_bound",
        409,
        outcome="AppBound",
        message=(
            "the app belongs to the query {0.query_id}; `semel sinks rebind` binds it to a"
            " different query"
        ),
        error="AppBound",
        advice="use a different app name, or `semel sinks rebind`",
        spark=(
            "another query has written under the name {app}, or this query with a different"
            " checkpoint: set a different txnAppId for this query; or let this query take over,"
            " with `semel sinks rebind {app} --query-id {query_id} --last-version N`: then it"
            " continues after batch N, and with N = -1 it starts again with batch 0"
        ),
    ),
    Entry(
        "checkpoint_diverged",
        409,
        outcome="CheckpointDiverged",
        message=(
            "the versions up to {0.last_version} were committed with different input, or with input"
            " that cannot be compared"
        ),
        error="CheckpointDiverged",
        advice="find out which checkpoint is right; use `semel sinks rebind` if yours is right",
        spark=(
            "this checkpoint was copied, or restored from an older one, and another run has written"
            " since: nothing of this batch was written. Continue with the checkpoint of that run,"
            " or start with a new checkpoint: then the rows it reads again are written again (sink"
            " {app})"
        ),
    ),
    Entry(
        "version_forgotten",
        409,
        outcome="VersionForgotten",
        message="the version is too old to be compared; {0.last_version} is the last version",
        error="VersionForgotten",
        advice="continue after last_version",
        spark=(
            "the version is too old to distinguish a replay from new rows: continue after the last"
            " version of {app}"
        ),
    ),
    Entry(
        "unknown_sink",
        404,
        outcome="UnknownSink",
        message="there is no sink with this name",
        cli="`semel sinks ls` lists the sinks",
    ),
    Entry(
        "snapshot_conflict", 409, outcome="SnapshotConflict", message="step {0.number} is pinned"
    ),
    Entry(
        "incarnation_conflict",
        409,
        outcome="IncarnationConflict",
        message="the stream {0.path} was deleted and created again",
        names={"path": "stream"},
    ),
)
