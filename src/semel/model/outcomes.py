"""The outcomes of commands. Each kind of outcome is a class.

A refusal is an outcome that says that no part of the command was applied. For each refusal,
`semel.wire.refusal_table` has the HTTP status, the message, the client's exception and advice.
"""

from typing import ClassVar

from msgspec import Struct

from semel.model.policies import DedupSource


class Outcome(Struct, frozen=True, gc=False):
    """The result of a command."""

    code: ClassVar[str] = "ok"


class Refusal(Outcome, frozen=True, gc=False):
    """The command is refused. No part of it was applied."""


# ---- done ----------------------------------------------------------------------------------------


class Created(Outcome, frozen=True, gc=False):
    """The stream exists.

    `is_new` is False if the stream already existed with the same configuration. `dedup_from` and
    `source` are described in `Switched`.
    """

    incarnation: str
    content_type: str
    next_offset: int
    is_closed: bool
    is_new: bool
    dedup_from: int | None = 0
    source: DedupSource = DedupSource()


class Appended(Outcome, frozen=True, gc=False):
    """The batch is stored from `first_offset` up to, but not including, `next_offset`.

    The two offsets are equal if the command only closed the stream. `is_unguarded` is True if the
    append has a producer or an idempotency key, but the stream has no duplicate detection.
    """

    first_offset: int
    next_offset: int
    is_closed: bool
    epoch: int | None = None  # copied from the request if `is_unguarded` is True
    seq: int | None = None  # copied in the same way
    is_unguarded: bool = False


class Duplicate(Outcome, frozen=True, gc=False):
    """The batch was already stored, from `first_offset` up to, but not including, `next_offset`.

    Both offsets are None if the append's receipt is no longer retained, or if the batch is a chunk.
    They are also None for an append outside of transactions whose sequence was used in one. It may
    have been aborted.
    `is_mismatch` is True if the request's payload differs from the stored payload. The stored
    payload is kept.
    """

    code = "duplicate"
    first_offset: int | None
    next_offset: int | None
    is_closed: bool
    epoch: int | None = None
    seq: int | None = None  # the producer's highest accepted sequence, not the request's sequence
    is_mismatch: bool = False


class Deleted(Outcome, frozen=True, gc=False):
    """The stream is deleted. `is_soft` is True if its messages are kept for its forks."""

    is_soft: bool


class Trimmed(Outcome, frozen=True, gc=False):
    """The messages before `head` are dropped."""

    head: int


class Switched(Outcome, frozen=True, gc=False):
    """Duplicate detection is on for the messages at the offset `dedup_from` and later.

    If `dedup_from` is None, duplicate detection is off. `source` is where the setting comes from.
    """

    dedup_from: int | None
    next_offset: int
    source: DedupSource = DedupSource(is_own=True)


class Expired(Outcome, frozen=True, gc=False):
    """The stream had expired and was deleted."""


class Registered(Outcome, frozen=True, gc=False):
    """The producer id is registered with this epoch."""

    producer_id: str
    epoch: int


class Claimed(Outcome, frozen=True, gc=False):
    """The session now writes under `epoch`; older instances of the producer are fenced.

    `last_seq`, `last_offset` and `cursor` say how far the producer has written to the stream. Each
    of them is None if its value does not exist or is no longer retained.
    """

    producer_id: str
    epoch: int
    last_seq: int | None = None  # of the last append by any instance, outside transactions
    last_offset: int | None = None  # the offset after that append
    cursor: bytes | None = None  # the last cursor


class Forgotten(Outcome, frozen=True, gc=False):
    """The stream's row for the producer is dropped or, by `ExpireProducer`, marked as expired."""


class RetireResult(Struct, frozen=True, gc=False):
    """What became of one producer of a `RetireProducers`.

    `refusal` is None if the producer is retired now or was already retired.
    """

    id: str
    path: str | None
    refusal: Refusal | None = None


class Retired(Outcome, frozen=True, gc=False):
    """The producers are retired, except those whose result has a refusal."""

    results: tuple[RetireResult, ...]


class DropDone(Outcome, frozen=True, gc=False):
    """The tombstones that were due are removed."""

    count: int


class HourCounted(Outcome, frozen=True, gc=False):
    """The hour is counted, and what is older than its retention is no longer retained."""


class PolicySet(Outcome, frozen=True, gc=False):
    """The prefix has this policy since `changed_ms`.

    `is_new` is True if the prefix had no policy before.
    """

    prefix: str
    dedup: bool | None
    changed_ms: int
    is_new: bool


class PolicyDeleted(Outcome, frozen=True, gc=False):
    """The prefix has no policy any more."""


# ---- refused: the request ------------------------------------------------------------------------


class InvalidRequest(Refusal, frozen=True, gc=False):
    """A field of the command is malformed, out of range, or not allowed in this command."""

    code = "invalid_request"
    field: str


# ---- refused: the stream -------------------------------------------------------------------------


class NotFound(Refusal, frozen=True, gc=False):
    """There is no such stream."""

    code = "stream_not_found"


class Gone(Refusal, frozen=True, gc=False):
    """The stream is soft-deleted. Its messages can be read only through its forks."""

    code = "stream_gone"


class StillAlive(Refusal, frozen=True, gc=False):
    """The stream, producer or transaction has not expired yet."""

    code = "still_alive"


class StreamClosed(Refusal, frozen=True, gc=False):
    """The stream is closed: it accepts no more appends.

    `next_offset` is its tail. It is None for a topic, which has no offsets.
    """

    code = "stream_closed"
    next_offset: int | None


class ConfigConflict(Refusal, frozen=True, gc=False):
    """The stream exists with a different configuration. `field` is the first field that differs."""

    code = "config_conflict"
    field: str


class ContentTypeConflict(Refusal, frozen=True, gc=False):
    """The media type of the request differs from `expected`, the media type of the stream."""

    code = "content_type_conflict"
    expected: str


class StreamSeqConflict(Refusal, frozen=True, gc=False):
    """Stream-Seq, compared as bytes, is not greater than `last`, the last accepted value."""

    code = "stream_seq_conflict"
    last: str


class PreconditionFailed(Refusal, frozen=True, gc=False):
    """The tail of the stream is `next_offset`, but the request expects a different tail."""

    code = "precondition_failed"
    next_offset: int


class OffsetBeyondTail(Refusal, frozen=True, gc=False):
    """The offset is after the tail of the stream. The tail is `next_offset`."""

    code = "OFFSET_BEYOND_TAIL"
    next_offset: int


class OffsetTrimmed(Refusal, frozen=True, gc=False):
    """The offset is before the head of the stream: its message was trimmed."""

    code = "offset_trimmed"
    head: int


class SubOffsetInvalid(Refusal, frozen=True, gc=False):
    """The sub-offset goes beyond the end of the append at the fork's offset."""

    code = "sub_offset_invalid"


class ForkSourceGone(Refusal, frozen=True, gc=False):
    """The stream to fork is soft-deleted."""

    code = "fork_source_gone"


class BadBody(Refusal, frozen=True, gc=False):
    """The body is invalid for the stream's media type, or a key, timestamp or header is invalid."""

    code = "bad_body"
    reason: str


class Unreadable(Refusal, frozen=True, gc=False):
    """A stored frame is damaged. Other frames can still be read."""

    code = "corrupt_data"
    reason: str


class DiskReadFailed(Refusal, frozen=True, gc=False):
    """The operating system could not read a stored frame. A retry can succeed."""

    code = "read_failed"
    reason: str


# ---- refused: the producer -----------------------------------------------------------------------


class StaleEpoch(Refusal, frozen=True, gc=False):
    """The epoch is too old. A newer instance of the producer has the epoch `current_epoch`.

    `received_epoch` is None if the request has no epoch.
    """

    code = "PRODUCER_FENCED"
    current_epoch: int
    received_epoch: int | None = None


class StaleSession(Refusal, frozen=True, gc=False):
    """A newer session of this producer has replaced the session in the request."""

    code = "stale_session"
    current_epoch: int


class SessionConflict(Refusal, frozen=True, gc=False):
    """A different instance uses this epoch, or the claim's session has already appended."""

    code = "session_conflict"
    current_epoch: int


class SessionUnknown(Refusal, frozen=True, gc=False):
    """The session is new, so its first append must have sequence 0."""

    code = "session_unknown"
    current_epoch: int
    last_seq: int


class ProducerStateExpired(Refusal, frozen=True, gc=False):
    """The producer was idle for too long and has expired. To continue, it needs a higher epoch."""

    code = "producer_state_expired"
    current_epoch: int


class UnknownProducer(Refusal, frozen=True, gc=False):
    """The producer does not exist. What this means depends on the command.

    - forget: the stream has no row for the producer;
    - expire: the stream has no row for the producer, or the producer has already expired;
    - any other command: the producer's id is a number that the server never assigned.
    """

    code = "UNKNOWN_PRODUCER_ID"


class DedupOff(Refusal, frozen=True, gc=False):
    """The stream's duplicate detection is off, so there are no producers to claim."""

    code = "dedup_off"


class UnknownPolicy(Refusal, frozen=True, gc=False):
    """The prefix has no policy."""

    code = "policy_not_found"


class ModeConflict(Refusal, frozen=True, gc=False):
    """The producer writes to this stream in the mode `mode`, but the request has the other mode."""

    code = "producer_mode_conflict"
    mode: str


class EpochMustStartAtZero(Refusal, frozen=True, gc=False):
    """The epoch is new, so its first append must have sequence 0."""

    code = "epoch_must_start_at_zero"
    received: int


class EpochExhausted(Refusal, frozen=True, gc=False):
    """The epoch has reached its maximum and cannot be increased."""

    code = "epoch_exhausted"
    current_epoch: int


class SequenceGap(Refusal, frozen=True, gc=False):
    """The next sequence must be `expected`, but the request has the sequence `received`."""

    code = "producer_seq_conflict"
    expected: int
    received: int


class SequenceHole(Refusal, frozen=True, gc=False):
    """The producer skipped this sequence earlier, and has since appended with a higher sequence.

    A sparse producer can skip a sequence, but cannot use the skipped sequence later. No append with
    the skipped sequence was ever acknowledged.
    """

    code = "sequence_hole"
    last_seq: int


class ReceiptExpired(Refusal, frozen=True, gc=False):
    """It is not known whether an append with this sequence was stored before. It is not stored now.

    The producer is sparse. Its receipts up to the sequence `expired_seq` are no longer retained,
    and it skipped sequences there, so stored and skipped sequences cannot be distinguished.
    """

    code = "sequence_expired"
    last_seq: int
    expired_seq: int


class BatchOverlap(Refusal, frozen=True, gc=False):
    """The append's range of sequences overlaps a stored range but is not equal to it."""

    code = "batch_overlap"
    last_seq: int


class RestartAmbiguous(Refusal, frozen=True, gc=False):
    """An append with neither epoch nor session repeats a sequence, perhaps with a new payload.

    The append can be a retry, or a new message from a restarted producer. The server can
    distinguish these two cases only if the producer sends a session or an epoch.
    """

    code = "producer_restart_ambiguous"
    current_epoch: int
    last_seq: int


class PayloadMismatch(Refusal, frozen=True, gc=False):
    """In strict mode, a request repeats a stored sequence with a different payload."""

    code = "payload_mismatch"


class KeyReused(Refusal, frozen=True, gc=False):
    """The idempotency key was already used with a different payload."""

    code = "idempotency_key_reused"


# ---- refused: limits -----------------------------------------------------------------------------


class LimitReached(Refusal, frozen=True, gc=False):
    """The limit named `limit` is reached. Old entries are not evicted to make room."""

    code = "limit_reached"
    limit: str
    maximum: int


class BatchTooLarge(Refusal, frozen=True, gc=False):
    """The append or commit is too large for one frame of the journal."""

    code = "batch_too_large"
    bytes_max: int


class DiskFull(Refusal, frozen=True, gc=False):
    """The disk is full. Deleting still works. Appends work again when there is space."""

    code = "disk_full"


class Overloaded(Refusal, frozen=True, gc=False):
    """Too many commands are waiting for the disk, or reads for memory. Retry later."""

    code = "overloaded"
