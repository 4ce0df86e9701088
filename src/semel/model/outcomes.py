"""What the engine answers: one type per outcome, so that none can be mistaken for another.

A refusal changes nothing: whoever receives one knows that nothing of the command was applied.
"""

from typing import ClassVar

from msgspec import Struct


class Outcome(Struct, frozen=True, gc=False):
    """Any answer to a command."""

    code: ClassVar[str] = "ok"


class Refusal(Outcome, frozen=True, gc=False):
    """Nothing was applied."""


# ---- done ----------------------------------------------------------------------------------------


class Created(Outcome, frozen=True, gc=False):
    """The stream is there. `is_new` is False if it was there before with the same configuration."""

    incarnation: str
    content_type: str
    next_offset: int
    is_closed: bool
    is_new: bool


class Appended(Outcome, frozen=True, gc=False):
    """The batch is stored from `first_offset` up to `next_offset`; equal for a lone close.

    `is_unguarded`: it named a producer or a key, but the stream recognises no duplicates. `epoch`
    and `seq` are then what the request said.
    """

    first_offset: int
    next_offset: int
    is_closed: bool
    epoch: int | None = None
    seq: int | None = None
    is_unguarded: bool = False


class Duplicate(Outcome, frozen=True, gc=False):
    """The batch was stored before, at these offsets; None if the receipt is no longer held.

    `seq` is the producer's highest accepted one, not the request's. `is_mismatch`: this time the
    payload was another one; the first stays.
    """

    code = "duplicate"
    first_offset: int | None
    next_offset: int | None
    is_closed: bool
    epoch: int | None = None
    seq: int | None = None
    is_mismatch: bool = False


class Deleted(Outcome, frozen=True, gc=False):
    """The stream is gone; `is_soft` if its data stays for its forks."""

    is_soft: bool


class Trimmed(Outcome, frozen=True, gc=False):
    """Reading starts at `head` now."""

    head: int


class Switched(Outcome, frozen=True, gc=False):
    """The stream recognises duplicates from `dedup_from` on; None: it does not."""

    dedup_from: int | None
    next_offset: int


class Expired(Outcome, frozen=True, gc=False):
    """The stream's time was over and it is gone."""


class Registered(Outcome, frozen=True, gc=False):
    """The producer identity and its epoch."""

    producer_id: str
    epoch: int


class Claimed(Outcome, frozen=True, gc=False):
    """The producer writes under `epoch` now, and nobody else does.

    The rest is what the stream knew of it before: the last append stored, whichever instance made
    it, where that append ended, and the last cursor. None: nothing, or no longer known.
    """

    producer_id: str
    epoch: int
    last_seq: int | None = None
    last_offset: int | None = None
    cursor: bytes | None = None


class Forgotten(Outcome, frozen=True, gc=False):
    """The stream no longer knows the producer (or holds a tombstone, after expiry)."""


# ---- refused: the request ------------------------------------------------------------------------


class InvalidRequest(Refusal, frozen=True, gc=False):
    """A field of the command is empty, too long, too large or no text at all."""

    code = "invalid_request"
    field: str


# ---- refused: the stream -------------------------------------------------------------------------


class NotFound(Refusal, frozen=True, gc=False):
    """There is no such stream."""

    code = "stream_not_found"


class Gone(Refusal, frozen=True, gc=False):
    """The stream is deleted; its data lives on in its forks only."""

    code = "stream_gone"


class StillAlive(Refusal, frozen=True, gc=False):
    """The stream's (or producer's) time is not over."""

    code = "still_alive"


class StreamClosed(Refusal, frozen=True, gc=False):
    """The stream takes no more appends."""

    code = "stream_closed"
    next_offset: int


class ConfigConflict(Refusal, frozen=True, gc=False):
    """A stream of that name is there with another configuration."""

    code = "config_conflict"
    field: str


class ContentTypeConflict(Refusal, frozen=True, gc=False):
    """The stream has another media type."""

    code = "content_type_conflict"
    expected: str


class StreamSeqConflict(Refusal, frozen=True, gc=False):
    """Stream-Seq must grow, byte-wise; `last` is the last one accepted."""

    code = "stream_seq_conflict"
    last: str


class PreconditionFailed(Refusal, frozen=True, gc=False):
    """If-Match named another tail than `next_offset`."""

    code = "precondition_failed"
    next_offset: int


class OffsetBeyondTail(Refusal, frozen=True, gc=False):
    """The offset lies past the end."""

    code = "OFFSET_BEYOND_TAIL"
    next_offset: int


class OffsetTrimmed(Refusal, frozen=True, gc=False):
    """The offset lies before the first message kept."""

    code = "offset_trimmed"
    head: int


class SubOffsetInvalid(Refusal, frozen=True, gc=False):
    """The sub-offset reaches past the one append it may divide."""

    code = "sub_offset_invalid"


class ForkSourceGone(Refusal, frozen=True, gc=False):
    """A deleted stream cannot be forked."""

    code = "fork_source_gone"


class BadBody(Refusal, frozen=True, gc=False):
    """The body is not what the stream's media type wants."""

    code = "bad_body"
    reason: str


class Unreadable(Refusal, frozen=True, gc=False):
    """What is stored is not what was written; other data is not touched by it."""

    code = "corrupt_data"
    reason: str


class DiskReadFailed(Refusal, frozen=True, gc=False):
    """The operating system refused to read what is stored; it may succeed later."""

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
    """Two processes claim the same epoch."""

    code = "session_conflict"
    current_epoch: int


class SessionUnknown(Refusal, frozen=True, gc=False):
    """A new session must begin with sequence 0."""

    code = "session_unknown"
    current_epoch: int
    last_seq: int


class ProducerStateExpired(Refusal, frozen=True, gc=False):
    """The producer was idle too long; begin a newer epoch."""

    code = "producer_state_expired"
    current_epoch: int


class UnknownProducer(Refusal, frozen=True, gc=False):
    """An all-digit id is given out by the server, and this one never was."""

    code = "UNKNOWN_PRODUCER_ID"


class DedupOff(Refusal, frozen=True, gc=False):
    """The stream recognises no duplicates, so it knows no producers, and nobody can be fenced."""

    code = "dedup_off"


class ModeConflict(Refusal, frozen=True, gc=False):
    """The producer writes this stream in the other mode."""

    code = "producer_mode_conflict"
    mode: str


class EpochMustStartAtZero(Refusal, frozen=True, gc=False):
    """A raised epoch begins with sequence 0."""

    code = "epoch_must_start_at_zero"
    received: int


class EpochExhausted(Refusal, frozen=True, gc=False):
    """The epoch cannot be raised any further."""

    code = "epoch_exhausted"
    current_epoch: int


class SequenceGap(Refusal, frozen=True, gc=False):
    """Something before this sequence is missing."""

    code = "producer_seq_conflict"
    expected: int
    received: int


class SequenceHole(Refusal, frozen=True, gc=False):
    """This sequence was skipped and can no longer be stored; it was not confirmed silently."""

    code = "sequence_hole"
    last_seq: int


class BatchOverlap(Refusal, frozen=True, gc=False):
    """Part of this range is stored already, part is not."""

    code = "batch_overlap"
    last_seq: int


class RestartAmbiguous(Refusal, frozen=True, gc=False):
    """A bare producer repeats a sequence with another payload: a restart, not a retry."""

    code = "producer_restart_ambiguous"
    current_epoch: int
    last_seq: int


class PayloadMismatch(Refusal, frozen=True, gc=False):
    """Strict mode: the sequence was stored with another payload."""

    code = "payload_mismatch"


class KeyReused(Refusal, frozen=True, gc=False):
    """The idempotency key was used with another payload."""

    code = "idempotency_key_reused"


# ---- refused: room -------------------------------------------------------------------------------


class LimitReached(Refusal, frozen=True, gc=False):
    """A limit of the state is reached; nothing is evicted to make room."""

    code = "limit_reached"
    limit: str
    maximum: int


class BatchTooLarge(Refusal, frozen=True, gc=False):
    """The append does not fit a frame of this journal."""

    code = "batch_too_large"
    bytes_max: int


class DiskFull(Refusal, frozen=True, gc=False):
    """No room to grow; deleting still works, and growth resumes by itself."""

    code = "disk_full"


class Overloaded(Refusal, frozen=True, gc=False):
    """Too much is waiting for the disk already; try again."""

    code = "overloaded"
