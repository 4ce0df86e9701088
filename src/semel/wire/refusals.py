"""One table: every outcome the engine has, and the status it is answered with."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from semel.model import outcomes as out
from semel.model import outcomes_txn as txn_out
from semel.model.offsets import print_offset
from semel.model.outcomes import Outcome
from semel.model.outcomes_txn import (
    InvalidTxnState,
    StaleTransaction,
    StreamRefused,
    UnstableOffsets,
)
from semel.wire.problems import Fields, Problem

# ---- txn refusals --------------------------------------------------------------------------------
# How outcomes about transactions, groups and sinks are answered: the second half of the table.


# ---- rules ---------------------------------------------------------------------------------------
# What the tables of refusals are made of.


class Rule(NamedTuple):
    """How an outcome is answered.

    `message` is formatted with the outcome; `names` are facts that have another name outside.
    """

    status: int
    message: str | Callable[[Any], str] = ""
    names: Mapping[str, str] = {}

    def tell(self, outcome: Outcome) -> str:
        """Say it to people."""
        if isinstance(self.message, str):
            return self.message.format(outcome)
        return self.message(outcome)


# ---- txn refusals --------------------------------------------------------------------------------


TXN_DONE: Final[Mapping[type[Outcome], int]] = {
    txn_out.Begun: 201,
    txn_out.ExtendDone: 200,
    txn_out.Staged: 200,
    txn_out.Prepared: 200,
    txn_out.CommitDone: 200,
    txn_out.AbortDone: 200,
    txn_out.PositionsSet: 200,
    txn_out.Pinned: 200,
    txn_out.SinkChanged: 204,
}

# States that are no moment of a transaction's life but what it is.
_WRONG_KIND: Final = {
    "sink": "a sink's transaction is committed by POST /v1/commits only",
    "inline": "POST /v1/commits takes staged transactions only",
}


def _wrong_state(outcome: txn_out.InvalidTxnState) -> str:
    why = f" ({outcome.reason})" if outcome.reason else ""
    told = f"the transaction is {outcome.state}{why}; for this it must be open"
    return _WRONG_KIND.get(outcome.state, told)


# Why a group cannot be moved, and what to do: by the reason of the conflict.
_CONFLICTS: Final = {
    txn_out.BY_INCARNATION: (
        "the stream {0.path} was deleted and created again; read it from its start"
    ),
    txn_out.BY_PENDING: (
        "this transaction already moves the group {0.group} in {0.path} to another offset than"
        " from; give that offset as from"
    ),
    txn_out.BY_OFFSET: (
        "the group {0.group} is not at from in {0.path} but at {0.offset}; read from there"
    ),
    txn_out.BY_VERSION: (
        "the position of the group {0.group} in {0.path} has version {0.version}, not the one"
        " given: it was moved since; read from {0.offset}"
    ),
    txn_out.BY_MOVER: (
        "{0.mover} moved the group {0.group} in {0.path} last; give the position you have read"
        " from as from, or use one producer id for the group"
    ),
    txn_out.BY_MOVE: (
        "the group {0.group} was moved to {0.offset} in {0.path} after this transaction named it;"
        " abort it and read from there"
    ),
    txn_out.BY_DELETION: (
        "the stream {0.path} ended after this transaction named a position of the group {0.group}"
        " in it; abort it"
    ),
}


def _conflict(outcome: txn_out.PositionConflict) -> str:
    return _CONFLICTS[outcome.reason].format(outcome)


TXN_REFUSED: Final[Mapping[type[Outcome], Rule]] = {
    txn_out.UnknownTransaction: Rule(404, "no transaction of that id and epoch is known"),
    txn_out.StaleTransaction: Rule(
        403,
        "a newer transaction of that id has begun, with epoch {0.current_epoch}",
        {"current_epoch": "transaction_epoch"},
    ),
    txn_out.NotOwner: Rule(403, "the transaction belongs to somebody else"),
    txn_out.InvalidTxnState: Rule(409, _wrong_state),
    txn_out.TxnTimedOut: Rule(409, "the transaction took too long and was aborted; begin it again"),
    txn_out.AlreadyAborted: Rule(409, "the transaction was aborted ({0.reason}); that is final"),
    txn_out.AlreadyCommitted: Rule(409, "the transaction was committed; that is final"),
    txn_out.ConcurrentTransactions: Rule(
        409, "the transaction {0.other} is in the way; end it first", {"other": "transaction_id"}
    ),
    txn_out.TooManyTransactions: Rule(429, "the producer has {0.maximum} transactions pending"),
    txn_out.PartitionNotInTxn: Rule(409, "the stream was not added to the transaction"),
    txn_out.StreamInTransaction: Rule(
        409,
        "the transaction {0.transaction} has undecided messages in the stream",
        {"transaction": "transaction_id"},
    ),
    txn_out.OffsetUnstable: Rule(
        409, "what lies there is not decided yet", {"stable": "stable_offset"}
    ),
    txn_out.BranchIncomplete: Rule(
        409,
        "{0.id} holds {0.chunks} chunks with {0.messages} messages, or was not prepared",
        {"id": "transaction_id"},
    ),
    txn_out.BranchMissing: Rule(
        409, "the transaction {0.id} is not there; stage it again", {"id": "transaction_id"}
    ),
    txn_out.PositionConflict: Rule(409, _conflict, {"path": "stream"}),
    txn_out.UnstableOffsets: Rule(
        409,
        "the prepared transaction {0.transaction} moves the group {0.group} in {0.path}; decide it"
        " first",
        {"path": "stream", "transaction": "transaction_id", "epoch": "transaction_epoch"},
    ),
    txn_out.AppBound: Rule(
        409, "the app belongs to the query {0.query_id}; `semel sinks rebind` gives it to another"
    ),
    txn_out.CheckpointDiverged: Rule(
        409, "what was committed up to version {0.last_version} came from other input"
    ),
    txn_out.VersionForgotten: Rule(
        409, "the version is too old to be compared; {0.last_version} is the last one"
    ),
    txn_out.UnknownSink: Rule(404, "no such app has committed"),
    txn_out.SnapshotConflict: Rule(409, "step {0.number} is pinned"),
    txn_out.IncarnationConflict: Rule(
        409, "the stream {0.path} was deleted and created again", {"path": "stream"}
    ),
}


# ---- refusals ------------------------------------------------------------------------------------


DONE: Final[Mapping[type[out.Outcome], int]] = {
    out.Created: 201,
    out.Appended: 204,
    out.Duplicate: 204,
    out.Deleted: 204,
    out.Trimmed: 204,
    out.Switched: 204,
    out.Expired: 204,
    out.Registered: 200,
    out.Claimed: 200,
    out.Forgotten: 204,
    **TXN_DONE,
}

# Fields that may be wrong in other ways than by their size.
_WRONG_FIELDS: Final = {
    "kind": "kind must be inline or staged, and of a sink's transaction staged",
    "close": "an append of a transaction cannot close the stream",
    "idempotency_key": "an append of a producer or a transaction takes no Idempotency-Key",
    "producer": (
        "an inline append needs its producer's id, epoch and sequence, a staged one takes none;"
        " a commit needs producer_id, producer_epoch and producer_seq, or a sink"
    ),
    "producer_cursor": "an append of a transaction takes no cursor; its commit moves positions",
    "if_match": "a staged append takes no If-Match",
    "stream_seq": "stream_seq is empty or too long, or the append is staged and takes none",
    "transaction_seq": "a staged append, and no other, needs Transaction-Seq",
    "transactions": "a transaction is listed twice, or its id or epoch cannot be",
    "positions": (
        "there are no positions or too many; or one has an offset or version that no position can"
        " have; or one is moved twice, by the commit itself or by transactions it lists"
    ),
    "commit": "the commit is empty, or has more than 1,000 of something",
}


def _wrong_field(outcome: out.InvalidRequest) -> str:
    field = outcome.field
    return _WRONG_FIELDS.get(field, f"{field} is empty, too long, too large or no text")


REFUSED: Final[Mapping[type[out.Outcome], Rule]] = {
    out.InvalidRequest: Rule(400, _wrong_field),
    out.NotFound: Rule(404, "there is no such stream"),
    out.Gone: Rule(410, "the stream is deleted; only its forks have its data"),
    out.StillAlive: Rule(409, "its time is not over"),
    out.StreamClosed: Rule(409, "the stream is closed"),
    out.ConfigConflict: Rule(409, "a stream of that path has another {0.field}"),
    out.ContentTypeConflict: Rule(
        409, "the stream holds {0.expected}", {"expected": "expected_content_type"}
    ),
    out.StreamSeqConflict: Rule(
        409, "Stream-Seq must be greater than {0.last}", {"last": "last_stream_seq"}
    ),
    out.PreconditionFailed: Rule(412, "the stream has another end than the request says"),
    out.OffsetBeyondTail: Rule(400, "the offset lies past the end of the stream"),
    out.OffsetTrimmed: Rule(410, "the stream no longer holds what lies before its head"),
    out.SubOffsetInvalid: Rule(400, "the sub-offset reaches past the one append it may divide"),
    out.ForkSourceGone: Rule(409, "a deleted stream cannot be forked"),
    out.BadBody: Rule(400, "{0.reason}"),
    out.Unreadable: Rule(500, "what is stored is not what was written: {0.reason}"),
    out.DiskReadFailed: Rule(503, "what is stored cannot be read now: {0.reason}"),
    out.StaleEpoch: Rule(403, "a newer instance owns this producer id"),
    out.StaleSession: Rule(403, "a newer session owns this producer id"),
    out.SessionConflict: Rule(403, "two processes claim the same epoch"),
    out.SessionUnknown: Rule(409, "a new session must begin with sequence 0"),
    out.ProducerStateExpired: Rule(409, "the producer was idle too long; begin a newer epoch"),
    out.UnknownProducer: Rule(404, "this producer id was never given out"),
    out.DedupOff: Rule(409, "the stream recognises no duplicates: there is nothing to claim"),
    out.ModeConflict: Rule(400, "the producer writes this stream in {0.mode} mode"),
    out.EpochMustStartAtZero: Rule(
        400, "a raised epoch begins with sequence 0", {"received": "received_seq"}
    ),
    out.EpochExhausted: Rule(409, "the epoch cannot be raised any further; use another id"),
    out.SequenceGap: Rule(
        409,
        "sequence {0.expected} is missing; {0.received} came",
        {"expected": "expected_seq", "received": "received_seq"},
    ),
    out.SequenceHole: Rule(409, "this sequence was skipped and can no longer be stored"),
    out.BatchOverlap: Rule(409, "part of this range is stored, part is not"),
    out.RestartAmbiguous: Rule(
        409, "a used sequence came with another payload: a restart needs an epoch or a session"
    ),
    out.PayloadMismatch: Rule(422, "this sequence was stored with another payload"),
    out.KeyReused: Rule(422, "this Idempotency-Key was used with another payload"),
    out.LimitReached: Rule(429, "{0.limit} is at its limit of {0.maximum}"),
    out.BatchTooLarge: Rule(413, "an append may take {0.bytes_max} bytes"),
    out.DiskFull: Rule(507, "the disk is full; deleting still works"),
    out.Overloaded: Rule(503, "too much is waiting for the disk; send the same again"),
    **TXN_REFUSED,
}

STATUS: Final[Mapping[type[out.Outcome], int]] = {
    **DONE,
    **{refusal: rule.status for refusal, rule in REFUSED.items()},
}

_NOTHING_YET: Final = -1  # the last sequence of a producer that was claimed and has not written
_OFFSETS: Final = frozenset({"next_offset", "head", "stable", "offset"})
_OPTIONAL: Final = ("incarnation", "mover", "reason")  # left out where there is none
_WORTH_A_RETRY: Final = (out.DiskReadFailed, out.DiskFull, out.Overloaded, UnstableOffsets)


def problem_of(outcome: out.Outcome, *, is_x: bool = False) -> Problem:
    """Turn a refusal into what is answered; `is_x` in the X-Producer-* dialect."""
    if isinstance(outcome, StreamRefused):
        return _of_stream(outcome)
    rule = REFUSED[type(outcome)]
    facts = _facts_of(outcome, rule)
    headers: Fields = []
    if "next_offset" in facts:
        headers.append(("Stream-Next-Offset", str(facts["next_offset"])))
    if isinstance(outcome, out.StreamClosed):
        headers.append(("Stream-Closed", "true"))
    if isinstance(outcome, _WORTH_A_RETRY):
        headers.append(("Retry-After", "1"))
    headers.extend(_producer_headers(outcome, rule.status, facts, is_x=is_x))
    if isinstance(outcome, InvalidTxnState):
        facts["expected_state"] = "open"
    if isinstance(outcome, StaleTransaction):
        headers.append(("Transaction-Epoch", str(outcome.current_epoch)))
    return Problem(rule.status, outcome.code, rule.tell(outcome), facts, headers)


def _facts_of(outcome: out.Outcome, rule: Rule) -> dict[str, object]:
    facts: dict[str, object] = {}
    for name in outcome.__struct_fields__:
        value = getattr(outcome, name)
        if value is None and name in _OPTIONAL:
            continue
        facts[rule.names.get(name, name)] = print_offset(value) if name in _OFFSETS else value
    if facts.get("last_seq") == _NOTHING_YET:
        facts["last_seq"] = None
    return facts


def _of_stream(outcome: StreamRefused) -> Problem:
    """Tell what one of several streams has to say, and which it is."""
    cause = problem_of(outcome.cause)
    message = f"{outcome.path}: {cause.message}"
    facts = {"stream": outcome.path, **cause.facts}
    return Problem(cause.status, cause.code, message, facts, cause.headers)


def _producer_headers(
    outcome: out.Outcome, status: int, facts: Mapping[str, object], *, is_x: bool
) -> Fields:
    headers: Fields = []
    if is_x and status == 403:
        headers.append(("X-Error", "stale-epoch"))
    if "current_epoch" in facts:
        name = "X-Current-Epoch" if is_x else "Producer-Epoch"
        headers.append((name, str(facts["current_epoch"])))
    if facts.get("last_seq") is not None and not is_x:
        headers.append(("Producer-Seq", str(facts["last_seq"])))
    if isinstance(outcome, out.SequenceGap):
        prefix = "X" if is_x else "Producer"
        headers.append((f"{prefix}-Expected-Seq", str(outcome.expected)))
        headers.append((f"{prefix}-Received-Seq", str(outcome.received)))
    return headers
