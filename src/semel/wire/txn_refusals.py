"""How outcomes about transactions, groups and sinks are answered: the second half of the table."""

from collections.abc import Mapping
from typing import Final

from semel.model import txn_outcomes as out
from semel.model.outcomes import Outcome
from semel.wire.rules import Rule

DONE: Final[Mapping[type[Outcome], int]] = {
    out.Begun: 201,
    out.TxnExtended: 200,
    out.Staged: 200,
    out.Prepared: 200,
    out.Committed: 200,
    out.Aborted: 200,
    out.PositionsSet: 200,
    out.Pinned: 200,
    out.SinkChanged: 204,
}

# States that are no moment of a transaction's life but what it is.
_WRONG_KIND: Final = {
    "sink": "a sink's transaction is committed by POST /v1/commits only",
    "inline": "POST /v1/commits takes staged transactions only",
}


def _wrong_state(outcome: out.InvalidTxnState) -> str:
    why = f" ({outcome.reason})" if outcome.reason else ""
    told = f"the transaction is {outcome.state}{why}; for this it must be open"
    return _WRONG_KIND.get(outcome.state, told)


# Why a group cannot be moved, and what to do: by the reason of the conflict.
_CONFLICTS: Final = {
    out.BY_INCARNATION: (
        "the stream {0.path} was deleted and created again; read it from its start"
    ),
    out.BY_PENDING: (
        "this transaction already moves the group {0.group} in {0.path} to another offset than"
        " from; give that offset as from"
    ),
    out.BY_OFFSET: (
        "the group {0.group} is not at from in {0.path} but at {0.offset}; read from there"
    ),
    out.BY_VERSION: (
        "the position of the group {0.group} in {0.path} has version {0.version}, not the one"
        " given: it was moved since; read from {0.offset}"
    ),
    out.BY_MOVER: (
        "{0.mover} moved the group {0.group} in {0.path} last; give the position you have read"
        " from as from, or use one producer id for the group"
    ),
    out.BY_MOVE: (
        "the group {0.group} was moved to {0.offset} in {0.path} after this transaction named it;"
        " abort it and read from there"
    ),
    out.BY_DELETION: (
        "the stream {0.path} ended after this transaction named a position of the group {0.group}"
        " in it; abort it"
    ),
}


def _conflict(outcome: out.PositionConflict) -> str:
    return _CONFLICTS[outcome.reason].format(outcome)


REFUSED: Final[Mapping[type[Outcome], Rule]] = {
    out.UnknownTransaction: Rule(404, "no transaction of that id and epoch is known"),
    out.StaleTransaction: Rule(
        403,
        "a newer transaction of that id has begun, with epoch {0.current_epoch}",
        {"current_epoch": "transaction_epoch"},
    ),
    out.NotOwner: Rule(403, "the transaction belongs to somebody else"),
    out.InvalidTxnState: Rule(409, _wrong_state),
    out.TxnTimedOut: Rule(409, "the transaction took too long and was aborted; begin it again"),
    out.TxnAborted: Rule(409, "the transaction was aborted ({0.reason}); that is final"),
    out.TxnCommitted: Rule(409, "the transaction was committed; that is final"),
    out.ConcurrentTransactions: Rule(
        409, "the transaction {0.other} is in the way; end it first", {"other": "transaction_id"}
    ),
    out.TooManyTransactions: Rule(429, "the producer has {0.maximum} transactions pending"),
    out.PartitionNotInTxn: Rule(409, "the stream was not added to the transaction"),
    out.StreamInTransaction: Rule(
        409,
        "the transaction {0.transaction} has undecided messages in the stream",
        {"transaction": "transaction_id"},
    ),
    out.OffsetUnstable: Rule(
        409, "what lies there is not decided yet", {"stable": "stable_offset"}
    ),
    out.BranchIncomplete: Rule(
        409,
        "{0.id} holds {0.chunks} chunks with {0.messages} messages, or was not prepared",
        {"id": "transaction_id"},
    ),
    out.BranchMissing: Rule(
        409, "the transaction {0.id} is not there; stage it again", {"id": "transaction_id"}
    ),
    out.PositionConflict: Rule(409, _conflict, {"path": "stream"}),
    out.UnstableOffsets: Rule(
        409,
        "the prepared transaction {0.transaction} moves the group {0.group} in {0.path}; decide it"
        " first",
        {"path": "stream", "transaction": "transaction_id", "epoch": "transaction_epoch"},
    ),
    out.AppBound: Rule(
        409, "the app belongs to the query {0.query_id}; `semel sinks rebind` gives it to another"
    ),
    out.CheckpointDiverged: Rule(
        409, "what was committed up to version {0.last_version} came from other input"
    ),
    out.VersionForgotten: Rule(
        409, "the version is too old to be compared; {0.last_version} is the last one"
    ),
    out.UnknownSink: Rule(404, "no such app has committed"),
    out.SnapshotConflict: Rule(409, "step {0.number} is pinned"),
    out.IncarnationConflict: Rule(
        409, "the stream {0.path} was deleted and created again", {"path": "stream"}
    ),
}
