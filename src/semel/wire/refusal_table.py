"""The refusal table: for each refusal, the server's response, the client's error, and advice.

A new refusal in the engine needs an outcome class in `semel.model` and an entry in this table. If
callers should be able to catch the refusal separately, it also needs an error class in
`semel.client.errors`. An entry refers to outcome and error classes by name and does not import
them, because the client imports this module and does not need the outcomes.
`docs/reference/errors.md` has a row for each entry. Tests compare the rows with the entries.
"""

from collections.abc import Mapping
from typing import Any, Final

from semel.wire.problems import Entry
from semel.wire.refusal_table_txn import TXN_REFUSALS

# Messages for the invalid fields for which the default message is not specific enough.
_WRONG_FIELDS: Final = {
    "kind": "kind must be inline or staged; a transaction of a sink must be staged",
    "close": "an append in a transaction cannot close the stream",
    "idempotency_key": "Idempotency-Key cannot be combined with a producer or a transaction",
    "producer": (
        "an inline append needs producer id, epoch and sequence, in dense mode;"
        " a staged append must not have them;"
        " a commit needs producer_id, producer_epoch and producer_seq, or a sink"
    ),
    "producer_cursor": (
        "an append in a transaction cannot have a cursor; add positions to the transaction instead"
    ),
    "if_match": "a staged append cannot have If-Match",
    "stream_seq": "stream_seq is empty or too long, or the append is staged and cannot have one",
    "transaction_seq": "a staged append needs Transaction-Seq",
    "transactions": "a transaction is listed twice, or its id or epoch is invalid",
    "positions": (
        "the list of positions is empty or too long, an offset or a version is out of range, or a"
        " position is moved twice (by the commit itself, or by transactions that it lists)"
    ),
    "commit": "the commit is empty, or one of its lists has more than 1,000 entries",
}


def _wrong_field(outcome: Any) -> str:
    field = outcome.field
    return _WRONG_FIELDS.get(
        field,
        f"{field} is empty, too long, out of range or not a string, or is not allowed in this"
        " request",
    )


REFUSALS: Final = (
    Entry("invalid_request", 400, outcome="InvalidRequest", message=_wrong_field),
    Entry(
        "stream_not_found",
        404,
        outcome="NotFound",
        message="there is no such stream",
        error="StreamNotFound",
        advice="create it, or correct the path",
        cli="`semel ls` lists the streams, `semel create` creates one",
    ),
    Entry(
        "stream_gone",
        410,
        outcome="Gone",
        message="the stream is deleted; only its forks have its data",
        error="StreamGone",
        advice="the path can be used again once the forks are deleted",
        cli="the path can be used again once the forks are deleted",
    ),
    Entry(
        "still_alive",
        409,
        outcome="StillAlive",
        message="the stream, producer or transaction has not expired",
    ),
    Entry(
        "stream_closed",
        409,
        outcome="StreamClosed",
        message="the stream is closed",
        error="StreamClosed",
        advice="write to a different stream",
        cli="it accepts no more appends; create a new stream",
    ),
    Entry(
        "config_conflict",
        409,
        outcome="ConfigConflict",
        message="the stream exists with a different {0.field}",
        error="ConfigConflict",
        advice="use its configuration, or a different path",
        cli="`semel head` shows its configuration; use that, or a different path",
    ),
    Entry(
        "content_type_conflict",
        409,
        outcome="ContentTypeConflict",
        message="the media type of the stream is {0.expected}",
        names={"expected": "expected_content_type"},
        error="ContentTypeConflict",
        advice="send the stream's own media type",
        cli="omit --content-type to send the stream's own",
    ),
    Entry(
        "stream_seq_conflict",
        409,
        outcome="StreamSeqConflict",
        message="Stream-Seq must be greater than {0.last}",
        names={"last": "last_stream_seq"},
        error="StreamSeqConflict",
        advice="send a greater Stream-Seq, or none",
    ),
    Entry(
        "precondition_failed",
        412,
        outcome="PreconditionFailed",
        message="the tail of the stream is not the one that the request expects",
        error="PreconditionFailed",
        advice="read what was appended in between, then decide again",
        cli="read what was appended in between, then decide again",
    ),
    Entry(
        "OFFSET_BEYOND_TAIL",
        400,
        outcome="OffsetBeyondTail",
        message="the offset is after the tail of the stream",
        error="OffsetBeyondTail",
        advice="start at next_offset",
        cli="`semel head` shows where it ends",
    ),
    Entry(
        "offset_trimmed",
        410,
        outcome="OffsetTrimmed",
        message="the messages before the head of the stream were trimmed",
        error="OffsetTrimmed",
        advice="start at head; the messages before it are lost",
        cli="start at its head, or with --offset -1",
    ),
    Entry(
        "sub_offset_invalid",
        400,
        outcome="SubOffsetInvalid",
        message="the sub-offset is after the end of the append it divides",
    ),
    Entry(
        "fork_source_gone",
        409,
        outcome="ForkSourceGone",
        message="a deleted stream cannot be forked",
        error="StreamGone",
    ),
    Entry("bad_body", 400, outcome="BadBody", message="{0.reason}"),
    Entry(
        "corrupt_data",
        500,
        outcome="Unreadable",
        message="a stored frame is corrupt: {0.reason}",
        error="CorruptData",
        advice="run `semel doctor --verify` on the server",
    ),
    Entry(
        "read_failed",
        503,
        outcome="DiskReadFailed",
        message="a stored frame cannot be read: {0.reason}",
    ),
    Entry(
        "PRODUCER_FENCED",
        403,
        outcome="StaleEpoch",
        message="a newer instance owns this producer id",
        error="ProducerFenced",
        advice="stop this instance; if it should continue, start a higher epoch",
        cli="stop this instance, or raise --epoch and begin with --seq 0",
    ),
    Entry(
        "stale_session",
        403,
        outcome="StaleSession",
        message="a newer session owns this producer id",
        error="ProducerFenced",
    ),
    Entry(
        "session_conflict",
        403,
        outcome="SessionConflict",
        message="another instance uses this epoch, or this session has already written",
        error="ProducerFenced",
    ),
    Entry(
        "session_unknown",
        409,
        outcome="SessionUnknown",
        message="a new session must start with sequence 0",
        error="ProducerRefused",
    ),
    Entry(
        "producer_state_expired",
        409,
        outcome="ProducerStateExpired",
        message="the producer was idle for too long and has expired; start a higher epoch",
        error="ProducerExpired",
        advice="start an epoch above current_epoch with sequence 0",
    ),
    Entry(
        "UNKNOWN_PRODUCER_ID",
        404,
        outcome="UnknownProducer",
        message="there is no producer with this id",
        error="ProducerRefused",
        cli="`semel producers ls` lists the producers; `semel producers register` gets an id",
    ),
    Entry(
        "dedup_off",
        409,
        outcome="DedupOff",
        message="the stream does not recognise duplicates, so there is nothing to claim",
    ),
    Entry(
        "producer_mode_conflict",
        400,
        outcome="ModeConflict",
        message="the producer writes this stream in {0.mode} mode",
        error="ProducerRefused",
    ),
    Entry(
        "epoch_must_start_at_zero",
        400,
        outcome="EpochMustStartAtZero",
        message="a higher epoch must start with sequence 0",
        names={"received": "received_seq"},
        error="ProducerRefused",
        cli="begin with --seq 0",
    ),
    Entry(
        "epoch_exhausted",
        409,
        outcome="EpochExhausted",
        message="the epoch cannot be raised any further; use a different id",
        error="ProducerRefused",
    ),
    Entry(
        "producer_seq_conflict",
        409,
        outcome="SequenceGap",
        message="sequence {0.expected} is missing; {0.received} was sent",
        names={"expected": "expected_seq", "received": "received_seq"},
        error="SequenceGap",
        advice="send again from the sequence that is expected",
        cli="send again from the sequence that is missing",
    ),
    Entry(
        "sequence_hole",
        409,
        outcome="SequenceHole",
        message="this sequence was skipped and can no longer be stored",
        error="ProducerRefused",
    ),
    Entry(
        "batch_overlap",
        409,
        outcome="BatchOverlap",
        message="part of this range is stored, part is not",
        error="BatchOverlap",
        advice="send the ranges as they were sent first",
    ),
    Entry(
        "producer_restart_ambiguous",
        409,
        outcome="RestartAmbiguous",
        message=(
            "this sequence is already stored, with a different payload or with a payload that can"
            " no longer be compared; a producer that restarts must send an epoch or a session"
        ),
        error="RestartAmbiguous",
        advice="send a session or an epoch, or begin with sequence 0",
    ),
    Entry(
        "payload_mismatch",
        422,
        outcome="PayloadMismatch",
        message="this sequence was stored with a different payload",
        error="PayloadMismatch",
        advice="find out why two messages have the same sequence",
    ),
    Entry(
        "idempotency_key_reused",
        422,
        outcome="KeyReused",
        message="this Idempotency-Key was used with a different payload",
        error="KeyReused",
        advice="use a new key for each message",
        cli="use a new --idempotency-key for each message",
    ),
    Entry(
        "limit_reached",
        429,
        outcome="LimitReached",
        message="{0.limit} is at its limit of {0.maximum}",
        error="LimitReached",
        advice="try again later, or delete what is no longer needed",
    ),
    Entry(
        "batch_too_large",
        413,
        outcome="BatchTooLarge",
        message="the request needs a frame of more than {0.bytes_max} bytes, which is the limit",
        error="TooLarge",
    ),
    Entry(
        "disk_full",
        507,
        outcome="DiskFull",
        message="the disk is full; deleting still works",
        error="DiskFull",
        advice="free some space on the server, then send the same request again",
        cli="free some space and send the same request again",
    ),
    Entry(
        "overloaded",
        503,
        outcome="Overloaded",
        message="too much is waiting for the disk; send the same request again",
    ),
    *TXN_REFUSALS,
    # Requests with these codes are refused before they reach the engine, so they have no outcome.
    Entry("malformed_request", 400),
    Entry("invalid_path", 400),
    Entry("invalid_query", 400),
    Entry("invalid_offset", 400),
    Entry("invalid_header", 400),
    Entry("offset_required", 400),
    Entry("empty_body", 400),
    Entry("missing_content_type", 400),
    Entry("producer_headers_incomplete", 400),
    Entry("producer_headers_conflict", 400),
    Entry("idempotency_key_conflict", 400),
    Entry("expiry_conflict", 400),
    Entry("transaction_headers_incomplete", 400),
    Entry("not_found", 404),
    Entry("no_such_address", 404),
    Entry("reserved_path", 404),
    Entry("snapshot_not_found", 404),
    Entry("method_not_allowed", 405),
    Entry("request_timeout", 408),
    Entry("body_too_large", 413, error="TooLarge", advice="send smaller batches"),
    Entry("url_too_long", 414),
    Entry("headers_too_large", 431),
    Entry("unsupported_encoding", 415),
    Entry("expectation_failed", 417),
    Entry("internal_error", 500),
    Entry("too_many_connections", 503),
    Entry("version_not_supported", 505),
)

# If several entries have the same code, this maps the code to the first of them.
BY_CODE: Final[Mapping[str, Entry]] = {entry.code: entry for entry in reversed(REFUSALS)}
# Maps the name of each of the client's error classes to its advice.
ADVICE: Final[Mapping[str, str]] = {entry.error: entry.advice for entry in REFUSALS if entry.advice}
