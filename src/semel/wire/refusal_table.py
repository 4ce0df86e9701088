"""The refusal table: for each refusal, the server's response, the client's error, and advice.

A new refusal needs an outcome class in `semel.model`, an entry in this table, and a row in
`docs/reference/errors.md`. It also needs an error class in `semel.client.errors` if callers should
be able to catch it separately.

Entries name classes as strings: the client imports this module, but not the outcome classes.
"""

from collections.abc import Mapping
from typing import Any, Final

from semel.model.limits import GROUP_NAME_BYTES_MAX
from semel.model.rights import REPLAYS
from semel.wire.problems import Entry
from semel.wire.refusal_table_access import ACCESS_REFUSALS
from semel.wire.refusal_table_subscriptions import SUBSCRIPTION_REFUSALS
from semel.wire.refusal_table_topics import GROUP_REFUSALS, TOPIC_REFUSALS
from semel.wire.refusal_table_txn import TXN_REFUSALS

# Messages for the invalid fields for which the default message is not specific enough.
_WRONG_FIELDS: Final = {
    "kind": "'kind' must be 'inline' or 'staged'; for a sink, it must be 'staged'",
    "close": "an append in a transaction cannot close the stream",
    "idempotency_key": "Idempotency-Key cannot be combined with a producer or a transaction",
    "producer": (
        "an append in an inline transaction needs a producer in dense mode with an epoch. An"
        " append in a staged transaction must not have a producer. A one-shot commit needs"
        " a sink, or all three of producer_id, producer_epoch and producer_seq"
    ),
    "producer_cursor": (
        "Producer-Cursor is not allowed in a transaction; add positions to the transaction instead"
    ),
    "if_match": "an append in a staged transaction cannot have If-Match",
    "stream_seq": "stream_seq is empty, or too long, or was sent in a staged transaction",
    "transaction_seq": "an append in a staged transaction needs Transaction-Seq",
    "transactions": "a listed transaction occurs twice, or its id or epoch is invalid",
    "positions": (
        "the list of positions is empty or too long, an offset or a version is out of range, or a"
        " position is moved twice (for a commit, the moves in its transactions count too)"
    ),
    "group": (
        f"the name of a group must have 1 to {GROUP_NAME_BYTES_MAX} bytes as UTF-8; that of a group"
        f" with members 1 to {GROUP_NAME_BYTES_MAX - len(REPLAYS)} bytes after percent-encoding,"
        " because its dead letters are in a stream with this name"
    ),
    "commit": "the commit is empty, or one of its lists has more than 1,000 entries",
}


def _wrong_field(outcome: Any) -> str:
    field = outcome.field
    return _WRONG_FIELDS.get(
        field,
        f"the value of '{field}' is empty, too long, out of range, not a string, or not allowed in"
        " this request",
    )


# A missing sequence in a transaction, in a one-shot commit, or of an id that the server assigned.
OUT_OF_ORDER: Final = "OUT_OF_ORDER_SEQUENCE"


def _config_conflict(outcome: Any) -> str:
    if outcome.field == "deleted":
        return "the stream is deleted, but it has forks; its path is free when they are deleted too"
    message = f"the stream already exists with a different {outcome.field}"
    if outcome.field != "dedup":
        return message
    return (
        f"{message}: Stream-Dedup is not the setting that the stream has of its own. Omit it, or"
        " change the setting with PATCH"
    )


def _stale_epoch(outcome: Any) -> str:
    current, received = outcome.current_epoch, outcome.received_epoch
    message = f"a newer instance owns this producer id, with epoch {current}"
    if received is None:
        return message
    if received > current:
        message = f"this transaction belongs to the producer's epoch {current}"
    return f"{message}; the received epoch is {received}"


_PRODUCER_LIMITS: Final = {
    "producers_per_stream": (
        ". Retire or forget producers that are no longer used (`semel producers retire`, `semel"
        " producers forget`), start the server with --producer-idle-seconds, or let each producer"
        " send Producer-Expires and retire itself at its end"
    ),
    "expiring_producers_per_stream": (
        ". Retire each producer at its end (`semel producers retire`), or let producers send a"
        " shorter Producer-Expires"
    ),
}


def _limit_reached(outcome: Any) -> str:
    message = f"the limit '{outcome.limit}' is reached; the maximum is {outcome.maximum}"
    return message + _PRODUCER_LIMITS.get(outcome.limit, "")


REFUSALS: Final = (
    Entry("invalid_request", 400, outcome="InvalidRequest", message=_wrong_field),
    Entry(
        "stream_not_found",
        404,
        outcome="NotFound",
        message="there is no such stream",
        error="StreamNotFound",
        advice="create the stream, or correct the path",
        cli="`semel ls` lists the streams, and `semel create` creates a stream",
    ),
    Entry(
        "stream_gone",
        410,
        outcome="Gone",
        message="the stream is deleted; its messages exist only in its forks",
        error="StreamGone",
        advice="delete the forks of the stream before you use this path again",
        cli="delete the forks of the stream before you use this path again",
    ),
    Entry(
        "still_alive",
        409,
        outcome="StillAlive",
        message="the stream, producer or transaction has not expired yet",
    ),
    Entry(
        "stream_closed",
        409,
        outcome="StreamClosed",
        message="the stream is closed",
        error="StreamClosed",
        advice="write to a different stream",
        cli="a closed stream accepts no more appends; create a new stream",
    ),
    Entry(
        "config_conflict",
        409,
        outcome="ConfigConflict",
        message=_config_conflict,
        error="ConfigConflict",
        advice="use the configuration of the existing stream, or choose a different path",
        cli="`semel head` shows the existing configuration; use it, or choose a different path",
    ),
    Entry(
        "content_type_conflict",
        409,
        outcome="ContentTypeConflict",
        message="the stream has a different media type: {0.expected}",
        names={"expected": "expected_content_type"},
        error="ContentTypeConflict",
        advice="send the stream's own media type",
        cli="omit --content-type to send the stream's own media type",
    ),
    Entry(
        "stream_seq_conflict",
        409,
        outcome="StreamSeqConflict",
        message="the sequence in Stream-Seq must be greater than {0.last}",
        names={"last": "last_stream_seq"},
        error="StreamSeqConflict",
        advice="send a greater Stream-Seq, or omit Stream-Seq",
    ),
    Entry(
        "precondition_failed",
        412,
        outcome="PreconditionFailed",
        message="the tail of the stream is not the tail that the request expects",
        error="PreconditionFailed",
        advice="read the messages that were appended since your last read, then decide again",
        cli="read the messages that were appended since your last read, then decide again",
    ),
    Entry(
        "OFFSET_BEYOND_TAIL",
        400,
        outcome="OffsetBeyondTail",
        message="the offset is after the tail of the stream",
        error="OffsetBeyondTail",
        advice="start at next_offset",
        cli="`semel head` shows where the stream ends",
    ),
    Entry(
        "offset_trimmed",
        410,
        outcome="OffsetTrimmed",
        message="the offset is before the head of the stream; earlier messages were trimmed",
        error="OffsetTrimmed",
        advice="start at the offset `head`; the messages before `head` are lost",
        cli="start at the head, the first offset not yet trimmed (--offset -1 reads from there)",
    ),
    Entry(
        "sub_offset_invalid",
        400,
        outcome="SubOffsetInvalid",
        message="the sub-offset goes beyond the end of the append at the fork's offset",
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
        message=_stale_epoch,
        error="ProducerFenced",
        advice="stop this instance, or continue with a higher epoch",
        cli="stop this instance, or continue with a higher --epoch and with --seq 0",
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
        message="a different instance uses this epoch, or the claim's session has already appended",
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
        message=(
            "the producer was idle for too long or was retired, so late copies of its appends are"
            " refused; continue with a new session or a higher epoch"
        ),
        error="ProducerExpired",
        advice="continue with a new session, or an epoch above current_epoch, and with sequence 0",
    ),
    Entry(
        "UNKNOWN_PRODUCER_ID",
        404,
        outcome="UnknownProducer",
        message="there is no producer with this id",
        error="ProducerRefused",
        cli="`semel producers ls` lists producers; `semel producers register` makes a new id",
    ),
    Entry(
        "dedup_off",
        409,
        outcome="DedupOff",
        message="the stream does not recognise duplicates, so its producers cannot be claimed",
    ),
    Entry(
        "policy_not_found",
        404,
        outcome="UnknownPolicy",
        message="there is no policy with this prefix",
        error="PolicyNotFound",
        advice="correct the prefix, or set a policy",
        cli="`semel policies ls` lists the policies",
    ),
    Entry(
        "producer_mode_conflict",
        400,
        outcome="ModeConflict",
        message="the producer already writes to this stream in {0.mode} mode; use the same mode",
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
        message="the producer has already reached the maximum epoch; use a different producer id",
        error="ProducerRefused",
    ),
    Entry(
        "producer_seq_conflict",
        409,
        outcome="SequenceGap",
        message="sequence {0.expected} was expected, but sequence {0.received} was sent",
        names={"expected": "expected_seq", "received": "received_seq"},
        error="SequenceGap",
        advice="send again, starting with the expected sequence",
        cli="send again, starting with the expected sequence",
    ),
    # The same refusal as the entry before, under the code that other surfaces use.
    Entry(OUT_OF_ORDER, 409, error="SequenceGap"),
    Entry(
        "sequence_hole",
        409,
        outcome="SequenceHole",
        message="this sequence was skipped and can no longer be stored; use a higher sequence",
        error="ProducerRefused",
    ),
    Entry(
        "sequence_expired",
        409,
        outcome="ReceiptExpired",
        message=(
            "it is not known whether this sequence was stored before: the producer has skipped"
            " sequences, and the receipts up to sequence {0.expired_seq} are no longer retained."
            " Nothing was stored by this request"
        ),
        error="SequenceExpired",
        advice=(
            "look for the messages in the stream; if they are missing, send them with a sequence"
            " above last_seq"
        ),
        cli=(
            "look for the messages in the stream; if they are missing, send them with a sequence"
            " above the last one"
        ),
        applied="unknown",
    ),
    Entry(
        "batch_overlap",
        409,
        outcome="BatchOverlap",
        message="this range of sequences overlaps a stored range but is not equal to it",
        error="BatchOverlap",
        advice="if you repeat a request, send the same range of sequences again",
    ),
    Entry(
        "producer_restart_ambiguous",
        409,
        outcome="RestartAmbiguous",
        message=(
            "this sequence is already stored, with a payload that differs or is no longer known;"
            " without an epoch or a session, the server cannot tell a retry from a restart"
        ),
        error="RestartAmbiguous",
        advice="send a session or an epoch, or begin with sequence 0",
    ),
    Entry(
        "payload_mismatch",
        422,
        outcome="PayloadMismatch",
        message="this sequence is already stored with a different payload",
        error="PayloadMismatch",
        advice="find out why two messages have the same sequence",
    ),
    Entry(
        "idempotency_key_reused",
        422,
        outcome="KeyReused",
        message="this Idempotency-Key was already used with a different payload",
        error="KeyReused",
        advice="use a new Idempotency-Key for each message",
        cli="use a new --idempotency-key for each message",
    ),
    Entry(
        "limit_reached",
        429,
        outcome="LimitReached",
        message=_limit_reached,
        error="LimitReached",
        advice="delete or retire what is no longer needed",
        cli="delete what is no longer needed; `semel producers ls` lists the producers of a stream",
    ),
    Entry(
        "batch_too_large",
        413,
        outcome="BatchTooLarge",
        message="the request is too large: it does not fit into a frame of {0.bytes_max} bytes",
        error="TooLarge",
    ),
    Entry(
        "disk_full",
        507,
        outcome="DiskFull",
        message="the disk of the server is full; it is still possible to delete streams",
        error="DiskFull",
        advice="free some disk space on the server, then send the same request again",
        cli="free some disk space on the server, then send the same request again",
    ),
    Entry(
        "overloaded",
        503,
        outcome="Overloaded",
        message="too many requests are waiting for the disk or for memory;"
        " send the same request again later",
    ),
    *TOPIC_REFUSALS,
    *GROUP_REFUSALS,
    *TXN_REFUSALS,
    *SUBSCRIPTION_REFUSALS,
    *ACCESS_REFUSALS,
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
    Entry("origin_not_allowed", 403),
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
    Entry("unsupported_media_type", 415),
    Entry("expectation_failed", 417),
    Entry("host_not_allowed", 421),
    Entry("internal_error", 500),
    Entry("too_many_connections", 503),
    Entry("version_not_supported", 505),
)

# If several entries have the same code, this maps the code to the first of them.
BY_CODE: Final[Mapping[str, Entry]] = {entry.code: entry for entry in reversed(REFUSALS)}
# Maps the name of each of the client's error classes to its advice.
ADVICE: Final[Mapping[str, str]] = {entry.error: entry.advice for entry in REFUSALS if entry.advice}
