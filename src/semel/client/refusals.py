"""From an answer that says no to the error that is raised.

semel's answers carry a stable code. Those of another Durable Streams server are read by their
status and headers.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from semel.client import errors
from semel.client.errors import ClientError, Indeterminate, Refused, Unavailable
from semel.model.media import normalise
from semel.wire.headers import to_number

_BY_CODE: Final[Mapping[str, type[Refused]]] = {
    "stream_not_found": errors.StreamNotFound,
    "stream_gone": errors.StreamGone,
    "fork_source_gone": errors.StreamGone,
    "stream_closed": errors.StreamClosed,
    "config_conflict": errors.ConfigConflict,
    "content_type_conflict": errors.ContentTypeConflict,
    "stream_seq_conflict": errors.StreamSeqConflict,
    "precondition_failed": errors.PreconditionFailed,
    "OFFSET_BEYOND_TAIL": errors.OffsetBeyondTail,
    "offset_trimmed": errors.OffsetTrimmed,
    "PRODUCER_FENCED": errors.ProducerFenced,
    "stale_session": errors.ProducerFenced,
    "session_conflict": errors.ProducerFenced,
    "session_unknown": errors.ProducerRefused,
    "producer_state_expired": errors.ProducerExpired,
    "UNKNOWN_PRODUCER_ID": errors.ProducerRefused,
    "producer_mode_conflict": errors.ProducerRefused,
    "epoch_must_start_at_zero": errors.ProducerRefused,
    "epoch_exhausted": errors.ProducerRefused,
    "producer_seq_conflict": errors.SequenceGap,
    "sequence_hole": errors.ProducerRefused,
    "batch_overlap": errors.BatchOverlap,
    "producer_restart_ambiguous": errors.RestartAmbiguous,
    "payload_mismatch": errors.PayloadMismatch,
    "INVALID_TXN_ID": errors.UnknownTransaction,
    "INVALID_TXN_STATE": errors.InvalidTransactionState,
    "TRANSACTION_TIMED_OUT": errors.TransactionTimedOut,
    "txn_aborted": errors.TransactionAborted,
    "txn_committed": errors.TransactionCommitted,
    "CONCURRENT_TRANSACTIONS": errors.ConcurrentTransactions,
    "TOO_MANY_TRANSACTIONS": errors.TooManyTransactions,
    "PARTITION_NOT_IN_TXN": errors.PartitionNotInTransaction,
    "stream_in_transaction": errors.StreamInTransaction,
    "offset_unstable": errors.OffsetUnstable,
    "branch_incomplete": errors.BranchIncomplete,
    "branch_missing": errors.BranchMissing,
    "position_conflict": errors.PositionConflict,
    "unstable_offsets": errors.UnstableOffsets,
    "checkpoint_diverged": errors.CheckpointDiverged,
    "app_bound": errors.AppBound,
    "version_forgotten": errors.VersionForgotten,
    "idempotency_key_reused": errors.KeyReused,
    "limit_reached": errors.LimitReached,
    "batch_too_large": errors.TooLarge,
    "body_too_large": errors.TooLarge,
    "disk_full": errors.DiskFull,
    "corrupt_data": errors.CorruptData,
}

_BY_STATUS: Final[Mapping[int, type[Refused]]] = {
    401: errors.Unauthorized,
    403: errors.Forbidden,
    404: errors.StreamNotFound,
    410: errors.StreamGone,
    412: errors.PreconditionFailed,
    413: errors.TooLarge,
    429: errors.LimitReached,
    507: errors.DiskFull,
}

# Facts an answer may carry as headers only.
_FACTS: Final[Mapping[str, str]] = {
    "stream-next-offset": "next_offset",
    "producer-epoch": "current_epoch",
    "producer-seq": "last_seq",
    "producer-expected-seq": "expected_seq",
    "producer-received-seq": "received_seq",
}
_SHOWN_CHARS_MAX: Final = 200
_OWN: Final = frozenset({"code", "message", "applied"})


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> ClientError:
    """Tell what an answer of 300 or more means: Refused, Unavailable or Indeterminate."""
    problem = _problem(headers, body)
    message = _message(status, problem, body)
    retry_after = retry_after_of(headers)
    applied = problem.get("applied")
    code = problem.get("code")
    code = code if isinstance(code, str) else None
    if status == 503 and applied == errors.NO:
        return Unavailable(message, status=status, retry_after=retry_after)
    if status >= 500 and applied != errors.NO:
        # A proxy may say this of a request that its server has carried out.
        return Indeterminate(message, status=status, retry_after=retry_after)
    kind = _kind(status, code, headers)
    return kind(
        message,
        status=status,
        code=code,
        applied=applied if isinstance(applied, str) else errors.NO,
        facts=_facts(problem, headers),
        retry_after=retry_after,
    )


def retry_after_of(headers: Mapping[str, str]) -> float | None:
    """Read Retry-After in seconds; a date, or nonsense, counts as absent."""
    seconds = to_number(headers.get("retry-after", ""))
    return None if seconds is None else float(seconds)


def _kind(status: int, code: str | None, headers: Mapping[str, str]) -> type[Refused]:
    known = _BY_CODE.get(code or "")
    if known is not None:
        return known
    if status == 403 and "producer-epoch" in headers:
        return errors.ProducerFenced
    if status == 409 and "producer-expected-seq" in headers:
        return errors.SequenceGap
    if status == 409 and headers.get("stream-closed", "").lower() == "true":
        return errors.StreamClosed
    if status == 409:
        return Refused
    return _BY_STATUS.get(status, errors.BadRequest if 400 <= status < 500 else Refused)


def _problem(headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    media_type = normalise(headers.get("content-type", ""))
    if media_type not in ("application/problem+json", "application/json"):
        return {}
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    if not isinstance(found, dict):
        return {}
    # Another server's shape: {"error": {"code": ..., "message": ...}}.
    inner = found.get("error")
    return inner if isinstance(inner, dict) else found


def _message(status: int, problem: Mapping[str, Any], body: bytes) -> str:
    said = problem.get("message") or problem.get("detail")
    if not isinstance(said, str) or not said:
        said = body[:_SHOWN_CHARS_MAX].decode("utf-8", "replace").strip()
    code = problem.get("code", "")
    return f"{status} {code}: {said}" if code else f"{status}: {said}" if said else f"{status}"


def _facts(problem: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, object]:
    facts: dict[str, object] = {name: value for name, value in problem.items() if name not in _OWN}
    for header, name in _FACTS.items():
        value = headers.get(header)
        if value is not None and name not in facts:
            number = None if name == "next_offset" else to_number(value)
            facts[name] = value if number is None else number
    return facts
