"""The outcomes of commands. Each has its own type, so that none can be mistaken for another.

A refusal says that nothing of the command was applied. `semel.wire.refusal_table` has an entry for
each refusal: the HTTP status, the message, the client's error and advice.
"""

from typing import ClassVar

from msgspec import Struct


class Outcome(Struct, frozen=True, gc=False):
    """The result of a command."""

    code: ClassVar[str] = "ok"


class Refusal(Outcome, frozen=True, gc=False):
    """An outcome that says that nothing was applied."""


# ---- done ----------------------------------------------------------------------------------------


class Created(Outcome, frozen=True, gc=False):
    """The stream exists. `is_new` is False if it existed before with the same configuration."""

    incarnation: str
    content_type: str
    next_offset: int
    is_closed: bool
    is_new: bool


class Appended(Outcome, frozen=True, gc=False):
    """The batch is stored from `first_offset` up to `next_offset`.

    The two offsets are equal if the command only closed the stream. `is_unguarded` says that the
    append has a producer or an idempotency key, but the stream does not recognise duplicates;
    `epoch` and `seq` are then those of the request.
    """

    first_offset: int
    next_offset: int
    is_closed: bool
    epoch: int | None = None
    seq: int | None = None
    is_unguarded: bool = False


class Duplicate(Outcome, frozen=True, gc=False):
    """The batch was stored before, at these offsets.

    The offsets are None if the receipt is no longer retained. `seq` is the producer's highest
    accepted sequence, not the sequence of the request. `is_mismatch` says that the payload of the
    repeat differs from the stored one, which stays.
    """

    code = "duplicate"
    first_offset: int | None
    next_offset: int | None
    is_closed: bool
    epoch: int | None = None
    seq: int | None = None
    is_mismatch: bool = False


class Deleted(Outcome, frozen=True, gc=False):
    """The stream is deleted; `is_soft` if its messages are kept for its forks."""

    is_soft: bool


class Trimmed(Outcome, frozen=True, gc=False):
    """The messages before `head` are dropped."""

    head: int


class Switched(Outcome, frozen=True, gc=False):
    """The stream recognises duplicates of messages from `dedup_from` on; of none if it is None."""

    dedup_from: int | None
    next_offset: int


class Expired(Outcome, frozen=True, gc=False):
    """The stream had expired and is deleted."""


class Registered(Outcome, frozen=True, gc=False):
    """The producer id is registered under this epoch."""

    producer_id: str
    epoch: int


class Claimed(Outcome, frozen=True, gc=False):
    """The session now writes under `epoch`; older instances of the producer are fenced.

    The other fields are what the stream has stored for the producer: the last sequence that any
    instance appended, the offset after that append, and the last cursor. A field is None if there
    is no such value or it is no longer retained.
    """

    producer_id: str
    epoch: int
    last_seq: int | None = None
    last_offset: int | None = None
    cursor: bytes | None = None


class Forgotten(Outcome, frozen=True, gc=False):
    """The row of the producer is dropped from the stream; if it expired, a tombstone stays."""


# ---- refused: the request ------------------------------------------------------------------------


class InvalidRequest(Refusal, frozen=True, gc=False):
    """A field of the command is empty, too long, too large or malformed."""

    code = "invalid_request"
    field: str


# ---- refused: the stream -------------------------------------------------------------------------


class NotFound(Refusal, frozen=True, gc=False):
    """There is no such stream."""

    code = "stream_not_found"


class Gone(Refusal, frozen=True, gc=False):
    """The stream is soft-deleted: its messages can only be read through its forks."""

    code = "stream_gone"


class StillAlive(Refusal, frozen=True, gc=False):
    """The stream, or the producer, has not expired."""

    code = "still_alive"


class StreamClosed(Refusal, frozen=True, gc=False):
    """The stream accepts no more appends."""

    code = "stream_closed"
    next_offset: int


class ConfigConflict(Refusal, frozen=True, gc=False):
    """The stream exists with another configuration."""

    code = "config_conflict"
    field: str


class ContentTypeConflict(Refusal, frozen=True, gc=False):
    """The stream has another media type."""

    code = "content_type_conflict"
    expected: str


class StreamSeqConflict(Refusal, frozen=True, gc=False):
    """Stream-Seq is not greater, compared by bytes, than `last`, the last accepted one."""

    code = "stream_seq_conflict"
    last: str


class PreconditionFailed(Refusal, frozen=True, gc=False):
    """The offset in If-Match is not the tail of the stream, `next_offset`."""

    code = "precondition_failed"
    next_offset: int


class OffsetBeyondTail(Refusal, frozen=True, gc=False):
    """The offset is after the tail."""

    code = "OFFSET_BEYOND_TAIL"
    next_offset: int


class OffsetTrimmed(Refusal, frozen=True, gc=False):
    """The offset is before the head."""

    code = "offset_trimmed"
    head: int


class SubOffsetInvalid(Refusal, frozen=True, gc=False):
    """The sub-offset is after the end of the append that it splits."""

    code = "sub_offset_invalid"


class ForkSourceGone(Refusal, frozen=True, gc=False):
    """The source of the fork is soft-deleted."""

    code = "fork_source_gone"


class BadBody(Refusal, frozen=True, gc=False):
    """The body is not what the media type of the stream requires."""

    code = "bad_body"
    reason: str


class Unreadable(Refusal, frozen=True, gc=False):
    """A stored frame is damaged. Other frames can still be read."""

    code = "corrupt_data"
    reason: str


class DiskReadFailed(Refusal, frozen=True, gc=False):
    """The operating system could not read a stored frame; a retry may succeed."""

    code = "read_failed"
    reason: str


# ---- refused: the producer -----------------------------------------------------------------------


class StaleEpoch(Refusal, frozen=True, gc=False):
    """A newer instance owns this producer id."""

    code = "PRODUCER_FENCED"
    current_epoch: int


class StaleSession(Refusal, frozen=True, gc=False):
    """A newer session owns this producer id."""

    code = "stale_session"
    current_epoch: int


class SessionConflict(Refusal, frozen=True, gc=False):
    """Two instances use the same epoch."""

    code = "session_conflict"
    current_epoch: int


class SessionUnknown(Refusal, frozen=True, gc=False):
    """A new session must start with sequence 0."""

    code = "session_unknown"
    current_epoch: int
    last_seq: int


class ProducerStateExpired(Refusal, frozen=True, gc=False):
    """The producer was idle for too long and has expired; it needs a higher epoch."""

    code = "producer_state_expired"
    current_epoch: int


class UnknownProducer(Refusal, frozen=True, gc=False):
    """The server assigns all ids that consist of digits only, and it did not assign this one."""

    code = "UNKNOWN_PRODUCER_ID"


class DedupOff(Refusal, frozen=True, gc=False):
    """The stream does not recognise duplicates, so it has no producers to claim."""

    code = "dedup_off"


class ModeConflict(Refusal, frozen=True, gc=False):
    """The producer writes this stream in the other mode, `mode`."""

    code = "producer_mode_conflict"
    mode: str


class EpochMustStartAtZero(Refusal, frozen=True, gc=False):
    """A higher epoch must start with sequence 0."""

    code = "epoch_must_start_at_zero"
    received: int


class EpochExhausted(Refusal, frozen=True, gc=False):
    """The epoch cannot be raised any further."""

    code = "epoch_exhausted"
    current_epoch: int


class SequenceGap(Refusal, frozen=True, gc=False):
    """A sequence before this one is missing."""

    code = "producer_seq_conflict"
    expected: int
    received: int


class SequenceHole(Refusal, frozen=True, gc=False):
    """The sparse producer skipped this sequence, which can no longer be stored.

    An append with this sequence was never acknowledged.
    """

    code = "sequence_hole"
    last_seq: int


class BatchOverlap(Refusal, frozen=True, gc=False):
    """Some sequences of this range are stored already, others are not."""

    code = "batch_overlap"
    last_seq: int


class RestartAmbiguous(Refusal, frozen=True, gc=False):
    """A bare append repeats a sequence with another payload, so it is not a retry.

    The producer has probably restarted; it must send a session or an epoch.
    """

    code = "producer_restart_ambiguous"
    current_epoch: int
    last_seq: int


class PayloadMismatch(Refusal, frozen=True, gc=False):
    """The sequence was stored with another payload, and the request is strict."""

    code = "payload_mismatch"


class KeyReused(Refusal, frozen=True, gc=False):
    """The idempotency key was used with another payload."""

    code = "idempotency_key_reused"


# ---- refused: limits -----------------------------------------------------------------------------


class LimitReached(Refusal, frozen=True, gc=False):
    """A limit of the state is reached; nothing is evicted."""

    code = "limit_reached"
    limit: str
    maximum: int


class BatchTooLarge(Refusal, frozen=True, gc=False):
    """The append does not fit in a frame of this journal."""

    code = "batch_too_large"
    bytes_max: int


class DiskFull(Refusal, frozen=True, gc=False):
    """The disk is full. Deleting still works, and appends resume when there is space."""

    code = "disk_full"


class Overloaded(Refusal, frozen=True, gc=False):
    """Too many commands are waiting for the disk; retry later."""

    code = "overloaded"
