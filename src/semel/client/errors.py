"""What a call to a server can end with, other than well.

    SemelError
    ├── Refused                  the server said no; nothing was applied unless `applied` says so
    │   ├── BadRequest           400 and the like: correct the call
    │   │   ├── OffsetBeyondTail
    │   │   └── TooLarge
    │   ├── Unauthorized · Forbidden
    │   ├── StreamNotFound · StreamGone · StreamExists · StreamClosed
    │   ├── ConfigConflict · ContentTypeConflict · StreamSeqConflict
    │   ├── PreconditionFailed   If-Match named another end than `next_offset`
    │   ├── OffsetTrimmed        start at `head`
    │   ├── ProducerRefused      the producer's number or epoch does not fit
    │   │   ├── ProducerFenced   a newer instance owns the id, under `current_epoch`
    │   │   ├── SequenceGap      `expected` is missing; `received` came
    │   │   ├── BatchOverlap     part of the range is stored, up to `last_seq`
    │   │   ├── ProducerExpired  it was idle too long; begin above `current_epoch`
    │   │   ├── RestartAmbiguous
    │   │   └── PayloadMismatch
    │   ├── TransactionRefused   a transaction cannot do this
    │   │   ├── TransactionAborted       for `reason`; nothing of it is visible, do it again
    │   │   │   └── TransactionTimedOut  its deadline passed
    │   │   ├── TransactionFenced        a newer instance owns the producer (also a ProducerFenced)
    │   │   ├── TransactionCommitted     it cannot be aborted any more
    │   │   ├── InvalidTransactionState · UnknownTransaction · ConcurrentTransactions
    │   │   ├── PartitionNotInTransaction · TooManyTransactions
    │   │   └── BranchIncomplete · BranchMissing
    │   ├── PositionRefused      a `group` cannot be moved in `stream`
    │   │   ├── PositionConflict it was moved since it was read; now it is at `offset`
    │   │   └── UnstableOffsets  a prepared transaction holds the position until it is decided
    │   ├── StreamInTransaction · OffsetUnstable    a transaction is undecided there
    │   ├── SinkRefused          CheckpointDiverged · AppBound · VersionForgotten
    │   ├── KeyReused            the Idempotency-Key was used with another payload
    │   ├── NotSupported         another server, which lacks this call of semel's
    │   ├── LimitReached         try again after `retry_after`, or make room
    │   │   └── DiskFull
    │   └── CorruptData          what is stored is not what was written
    ├── Unavailable              nothing was applied: not reached, overloaded, or out of time before
    ├── Indeterminate            sent, and no answer: it may have been applied
    ├── ProtocolError            the other side does not speak the protocol
    └── ClientClosed             the call came after `close()`

Every one has `code` (stable), `message` (for people), `advice` (what to do next) and `applied`:
"no", or "unknown" where the request may have been carried out.
"""

from collections.abc import Mapping

from semel.model.errors import SemelError as SemelError  # noqa: PLC0414 - the root of this tree

NO = "no"
UNKNOWN = "unknown"


class ClientError(SemelError):
    """Anything a call of the client ends with, other than well."""

    advice: str = ""
    applied: str = NO

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return f"{self.message} ({self.advice})" if self.advice else self.message


class Refused(ClientError):
    """The server said no. `facts` are what it gave to act on, beside code and message."""

    code = "refused"

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        code: str | None = None,
        applied: str = NO,
        facts: Mapping[str, object] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.applied = applied
        self.facts = dict(facts or {})
        self.retry_after = retry_after
        if code is not None:
            self.code = code

    def text(self, name: str) -> str | None:
        """Give a fact that is a text; None if the server did not tell."""
        value = self.facts.get(name)
        return value if isinstance(value, str) else None

    def number(self, name: str) -> int | None:
        """Give a fact that is a number; None if the server did not tell."""
        value = self.facts.get(name)
        return value if isinstance(value, int) else None


class BadRequest(Refused):
    """The call is wrong and will never succeed as it is."""

    code = "bad_request"
    advice = "correct the call; sending it again changes nothing"


class TooLarge(BadRequest):
    """The append is larger than the server takes."""

    code = "body_too_large"
    advice = "send smaller batches"


class Unauthorized(Refused):
    """The server wants credentials."""

    code = "unauthorized"
    advice = "pass token= or an Authorization header"


class Forbidden(Refused):
    """The credentials do not allow this."""

    code = "forbidden"
    advice = "ask for the right to do this"


class StreamNotFound(Refused):
    """There is no such stream."""

    code = "stream_not_found"
    advice = "create it, or correct the path"


class StreamGone(Refused):
    """The stream is deleted; its data lives on in its forks only."""

    code = "stream_gone"
    advice = "its path is free again once its forks are deleted"


class StreamExists(Refused):
    """The stream is there already, with the same configuration."""

    code = "stream_exists"
    advice = "pass exist_ok=True if that is fine"


class ConfigConflict(Refused):
    """The path holds a stream with another configuration."""

    code = "config_conflict"
    advice = "use its configuration, or another path"


class StreamClosed(Refused):
    """The stream takes no more appends; `next_offset` is its end."""

    code = "stream_closed"
    advice = "write to another stream"

    @property
    def next_offset(self) -> str | None:
        """Where the stream ends."""
        return self.text("next_offset")


class ContentTypeConflict(Refused):
    """The stream has another media type."""

    code = "content_type_conflict"
    advice = "send the stream's own media type"


class StreamSeqConflict(Refused):
    """Stream-Seq must grow, byte-wise."""

    code = "stream_seq_conflict"
    advice = "send a greater one, or none"


class PreconditionFailed(Refused):
    """If-Match named another end than `next_offset`."""

    code = "precondition_failed"
    advice = "read what was appended in between, then decide anew"

    @property
    def next_offset(self) -> str | None:
        """Where the stream ends now."""
        return self.text("next_offset")


class OffsetBeyondTail(BadRequest):
    """The offset lies past the end."""

    code = "OFFSET_BEYOND_TAIL"
    advice = "start at next_offset"

    @property
    def next_offset(self) -> str | None:
        """Where the stream ends."""
        return self.text("next_offset")


class OffsetTrimmed(Refused):
    """The offset lies before the first message that is kept."""

    code = "offset_trimmed"
    advice = "start at head, knowing that something is missing"

    @property
    def head(self) -> str | None:
        """Where the stream starts now."""
        return self.text("head")


class ProducerRefused(Refused):
    """The producer's number, epoch or session does not fit what the server knows of it."""

    code = "producer_refused"
    advice = "look at the producer's state with stream.producers()"

    @property
    def current_epoch(self) -> int | None:
        """The epoch the server knows."""
        return self.number("current_epoch")

    @property
    def last_seq(self) -> int | None:
        """The highest sequence the server has of the producer."""
        return self.number("last_seq")


class ProducerFenced(ProducerRefused):
    """A newer instance owns this producer id."""

    code = "PRODUCER_FENCED"
    advice = "stop this instance, or, if it is the rightful one, start a higher epoch"


class ProducerExpired(ProducerRefused):
    """The producer was idle so long that the server has let it go; only its epoch is known."""

    code = "producer_state_expired"
    advice = "begin a newer epoch, above current_epoch, with sequence 0"


class SequenceGap(ProducerRefused):
    """Something before this sequence is missing."""

    code = "producer_seq_conflict"
    advice = "send again from the sequence that is expected"

    @property
    def expected(self) -> int | None:
        """The sequence the server waits for."""
        return self.number("expected_seq")

    @property
    def received(self) -> int | None:
        """The sequence that came."""
        return self.number("received_seq")


class BatchOverlap(ProducerRefused):
    """Part of this range is stored already, part is not."""

    code = "batch_overlap"
    advice = "send the ranges as they were sent first"


class RestartAmbiguous(ProducerRefused):
    """A bare producer repeats a sequence with another payload: a restart, not a retry."""

    code = "producer_restart_ambiguous"
    advice = "send a session or an epoch, or begin with 0"


class PayloadMismatch(ProducerRefused):
    """This sequence was stored before with another payload; the first one stays."""

    code = "payload_mismatch"
    advice = "find out why two messages got one number"


class TransactionRefused(Refused):
    """A transaction, or a call on one, is refused."""

    code = "transaction_refused"
    advice = "look at it with client.transaction_status()"


class UnknownTransaction(TransactionRefused):
    """No transaction of that id and epoch is known."""

    code = "INVALID_TXN_ID"
    advice = "begin it; outcomes are remembered for 7 days"


class InvalidTransactionState(TransactionRefused):
    """The transaction is in a `state` that does not allow this."""

    code = "INVALID_TXN_STATE"
    advice = "begin the next one"

    @property
    def state(self) -> str | None:
        """What it is in."""
        return self.text("state")

    @property
    def reason(self) -> str | None:
        """Why it is aborted, if it is."""
        return self.text("reason")


class TransactionAborted(TransactionRefused):
    """The transaction is aborted, for `reason`; nothing of it will be seen."""

    code = "txn_aborted"
    advice = "do it again, in a new one"

    @property
    def reason(self) -> str | None:
        """Why: abort, timeout, fenced, superseded, reaped or operator."""
        return self.text("reason")


class TransactionTimedOut(TransactionAborted):
    """The transaction took longer than it was begun for."""

    code = "TRANSACTION_TIMED_OUT"
    advice = "do it again, in a new one, with a longer timeout if that is needed"

    @property
    def reason(self) -> str:
        """It is always the same."""
        return "timeout"


class TransactionCommitted(TransactionRefused):
    """The transaction is committed; that is final."""

    code = "txn_committed"
    advice = "nothing is left to do"


class TransactionFenced(TransactionRefused, ProducerFenced):
    """A newer instance owns the producer, or has begun the transaction anew."""

    code = "PRODUCER_FENCED"
    advice = "stop this instance: a newer one does its work"


class ConcurrentTransactions(TransactionRefused):
    """The transaction `other` is in the way."""

    code = "CONCURRENT_TRANSACTIONS"
    advice = "end that one first, or use another producer_id"

    @property
    def other(self) -> str | None:
        """The id of the other one."""
        return self.text("transaction_id")


class TooManyTransactions(TransactionRefused):
    """The producer has too many that are undecided."""

    code = "TOO_MANY_TRANSACTIONS"
    advice = "decide the prepared ones first"


class PartitionNotInTransaction(TransactionRefused):
    """The stream was not named when the transaction began, and not added since."""

    code = "PARTITION_NOT_IN_TXN"
    advice = "call add_streams first, or name no streams at all when it begins"


class BranchIncomplete(TransactionRefused):
    """What is staged is not what was counted, or was not prepared."""

    code = "branch_incomplete"
    advice = "stage what is missing, then prepare"


class BranchMissing(TransactionRefused):
    """A transaction that was to be committed is not there any more."""

    code = "branch_missing"
    advice = "stage it again"


class PositionRefused(Refused):
    """A group cannot be moved in `stream`."""

    code = "position_refused"
    advice = "nothing was applied: abort, and read on with a new tail(group=...)"

    @property
    def group(self) -> str | None:
        """Whose position it is."""
        return self.text("group")

    @property
    def stream(self) -> str | None:
        """Where it is."""
        return self.text("stream")


class PositionConflict(PositionRefused):
    """The group was moved in `stream` since its position was read, or the stream is another one.

    `reason`: "offset", "version" or "moved": somebody has moved it; "mover": `mover` has, and this
    client gave no position it had read from; "pending": the transaction itself moves it elsewhere;
    "incarnation": the stream was made anew; "deleted": it ended after the transaction named it.
    """

    code = "position_conflict"
    advice = (
        "nothing was applied: another worker has processed these messages, or the group was set by"
        " hand; abort, and read on with a new tail(group=...)"
    )

    @property
    def offset(self) -> str | None:
        """Where the group is."""
        return self.text("offset")

    @property
    def version(self) -> int | None:
        """How often the group was moved there."""
        return self.number("version")

    @property
    def mover(self) -> str | None:
        """The producer that moved it last, if only that one may move it without `from`."""
        return self.text("mover")

    @property
    def reason(self) -> str | None:
        """What is not as was believed."""
        return self.text("reason")

    @property
    def incarnation(self) -> str | None:
        """Which stream the path has now, if it is not the one that was read."""
        return self.text("incarnation")


class UnstableOffsets(PositionRefused):
    """A transaction that is not decided may still move the group in `stream`."""

    code = "unstable_offsets"
    advice = "commit or abort the transaction first: `semel txn` does it by hand"

    @property
    def transaction_id(self) -> str | None:
        """The transaction that holds the position."""
        return self.text("transaction_id")

    @property
    def transaction_epoch(self) -> int | None:
        """Which one of its id it is."""
        return self.number("transaction_epoch")


class StreamInTransaction(Refused):
    """An open transaction has messages in the stream."""

    code = "stream_in_transaction"
    advice = "wait until it is decided"


class OffsetUnstable(Refused):
    """What lies at the offset is not decided yet."""

    code = "offset_unstable"
    advice = "take an offset up to stable_offset, or wait"

    @property
    def stable_offset(self) -> str | None:
        """Up to where all is decided."""
        return self.text("stable_offset")


class SinkRefused(Refused):
    """A sink's commit does not fit what it has committed before."""

    code = "sink_refused"
    advice = "look at it with `semel sinks`"

    @property
    def last_version(self) -> int | None:
        """The last version that is committed."""
        return self.number("last_version")


class CheckpointDiverged(SinkRefused):
    """The sink's history and the caller's are two different ones."""

    code = "checkpoint_diverged"
    advice = "find out which one is right; `semel sinks rebind` if it is the caller's"


class AppBound(SinkRefused):
    """The sink belongs to another query."""

    code = "app_bound"
    advice = "use another app, or `semel sinks rebind`"


class VersionForgotten(SinkRefused):
    """The version is too old to be compared."""

    code = "version_forgotten"
    advice = "go on after last_version"


class KeyReused(Refused):
    """The Idempotency-Key was used with another payload."""

    code = "idempotency_key_reused"
    advice = "use a fresh key for each message"


class NotSupported(Refused):
    """The server does not know this call of semel's; nothing was sent that it could misread."""

    code = "not_supported"
    advice = "only semel has this call"


class LimitReached(Refused):
    """A limit of the server is reached."""

    code = "limit_reached"
    advice = "try again later, or delete what is no longer needed"


class DiskFull(LimitReached):
    """The server's disk has no room to grow."""

    code = "disk_full"
    advice = "free some space on the server, then send the same again"


class CorruptData(Refused):
    """What the server has stored is not what was written."""

    code = "corrupt_data"
    advice = "run `semel doctor --verify` on the server"


class Unavailable(ClientError):
    """Nothing was applied: the server was not reached, or would not take the request now."""

    code = "unavailable"
    advice = "try again later"

    def __init__(
        self, message: str, *, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class Indeterminate(ClientError):
    """The request was sent and no answer came that tells: it may have been applied."""

    code = "indeterminate"
    applied = UNKNOWN
    advice = "read the stream to find out; an append with a key or a producer is safe to repeat"

    def __init__(
        self, message: str, *, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class ProtocolError(ClientError):
    """What came is not an answer of the protocol."""

    code = "protocol_error"
    applied = UNKNOWN
    advice = "check the address: is this a Durable Streams server?"


class ClientClosed(ClientError):
    """The client, or the producer, was closed before this call."""

    code = "client_closed"
    advice = "make a new one"
