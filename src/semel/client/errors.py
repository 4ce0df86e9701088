"""The errors that calls of the client raise.

    SemelError
    ├── Refused                  the server refused; nothing was applied, unless `applied` differs
    │   ├── BadRequest           400 and similar: correct the call
    │   │   ├── OffsetBeyondTail
    │   │   └── TooLarge
    │   ├── Unauthorized · Forbidden
    │   ├── StreamNotFound · StreamGone · StreamExists · StreamClosed
    │   ├── ConfigConflict · ContentTypeConflict · StreamSeqConflict
    │   ├── PreconditionFailed   the tail is `next_offset`, not the offset in If-Match
    │   ├── OffsetTrimmed        start at `head`
    │   ├── ProducerRefused      the sequence or epoch does not match the producer's state
    │   │   ├── ProducerFenced   a newer instance owns the id, under `current_epoch`
    │   │   ├── SequenceGap      `expected` is missing, `received` was sent
    │   │   ├── BatchOverlap     only the sequences up to `last_seq` are stored
    │   │   ├── ProducerExpired  it was idle too long; begin above `current_epoch`
    │   │   ├── RestartAmbiguous
    │   │   └── PayloadMismatch
    │   ├── TransactionRefused   a transaction cannot do this
    │   │   ├── TransactionAborted       see `reason`; nothing is visible: begin another one
    │   │   │   └── TransactionTimedOut  its deadline passed
    │   │   ├── TransactionFenced        a newer instance owns the producer (also a ProducerFenced)
    │   │   ├── TransactionCommitted     it cannot be aborted any more
    │   │   ├── InvalidTransactionState · UnknownTransaction · ConcurrentTransactions
    │   │   ├── PartitionNotInTransaction · TooManyTransactions
    │   │   └── BranchIncomplete · BranchMissing
    │   ├── PositionRefused      the position of `group` in `stream` cannot be moved
    │   │   ├── PositionConflict it was moved after it was read, and is at `offset` now
    │   │   └── UnstableOffsets  a pending transaction may still move it
    │   ├── StreamInTransaction · OffsetUnstable    a pending transaction has messages there
    │   ├── SinkRefused          CheckpointDiverged · AppBound · VersionForgotten
    │   ├── KeyReused            the Idempotency-Key was used with another payload
    │   ├── NotSupported         the server is not semel, and lacks this call
    │   ├── LimitReached         try again after `retry_after`, or delete something
    │   │   └── DiskFull
    │   └── CorruptData          the stored data is corrupt
    ├── Unavailable              nothing was applied: the server is unreachable or overloaded
    ├── Indeterminate            no response came: the request may have been applied
    ├── ProtocolError            the response does not follow the protocol
    └── ClientClosed             the call came after `close()`

Every error has `code` (stable), `message` (for people), `advice` (what to do next) and `applied`:
"no", or "unknown" if the request may have had an effect. The codes and the advice for refusals of
the server are in `semel.wire.refusal_table`.
"""

from collections.abc import Mapping
from typing import Generic, TypeVar, overload

from semel.model.errors import SemelError as SemelError  # noqa: PLC0414 - the root of this tree
from semel.wire.refusal_table import ADVICE, BY_CODE

T = TypeVar("T")

NO = "no"
UNKNOWN = "unknown"
# Codes by the name of the error class. A class for refusals with several codes sets its own code.
_CODES = {entry.error: code for code, entry in BY_CODE.items()}


class ClientError(SemelError):
    """The base of the errors that calls of the client raise."""

    advice: str = ""
    applied: str = NO

    def __init_subclass__(cls) -> None:
        """Set the code and the advice of the class, if the table of refusals has them."""
        if "code" not in vars(cls):
            cls.code = _CODES.get(cls.__name__, cls.code)
        cls.advice = ADVICE.get(cls.__name__, cls.advice)

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return f"{self.message} ({self.advice})" if self.advice else self.message


class Refused(ClientError):
    """The server refused the request.

    `facts` are the members of its problem document other than code, message and applied.
    """

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
        self.retry_after = retry_after
        self.applied = applied
        self.facts = dict(facts or {})
        if code is not None:
            self.code = code


class Fact(Generic[T]):
    """An attribute with the value of one of the `facts`, or `default` if it was not sent."""

    def __init__(self, kind: type[T], name: str, default: T | None = None) -> None:
        self._kind = kind
        self._name = name
        self._default = default

    @overload
    def __get__(self, error: None, owner: type) -> "Fact[T]": ...

    @overload
    def __get__(self, error: Refused, owner: type) -> T | None: ...

    def __get__(self, error: Refused | None, owner: type) -> "T | Fact[T] | None":
        if error is None:
            return self
        value = error.facts.get(self._name)
        return value if isinstance(value, self._kind) else self._default


class BadRequest(Refused):
    """The request is malformed, and a retry would be refused again."""

    code = "bad_request"
    advice = "correct the call; the same request would be refused again"


class TooLarge(BadRequest):
    """The append is larger than the server accepts."""

    code = "body_too_large"


class Unauthorized(Refused):
    """The server requires credentials."""

    code = "unauthorized"
    advice = "pass token= or an Authorization header"


class Forbidden(Refused):
    """The credentials do not permit the request."""

    code = "forbidden"
    advice = "use credentials that permit this request"


class StreamNotFound(Refused):
    """There is no such stream."""


class StreamGone(Refused):
    """The stream is deleted; only its forks still have its data."""

    code = "stream_gone"


class StreamExists(Refused):
    """The stream exists already, with the same configuration."""

    code = "stream_exists"
    advice = "pass exist_ok=True to accept an existing stream"


class ConfigConflict(Refused):
    """The stream exists with another configuration."""


class StreamClosed(Refused):
    """The stream is closed: it accepts no more appends."""

    next_offset = Fact(str, "next_offset")  # the tail


class ContentTypeConflict(Refused):
    """The stream has another media type."""


class StreamSeqConflict(Refused):
    """The Stream-Seq is not greater than the last one of the stream, compared byte by byte."""


class PreconditionFailed(Refused):
    """The tail of the stream is `next_offset`, not the offset in If-Match."""

    next_offset = Fact(str, "next_offset")  # the tail


class OffsetBeyondTail(BadRequest):
    """The offset is after the tail."""

    next_offset = Fact(str, "next_offset")  # the tail


class OffsetTrimmed(Refused):
    """The offset is before the head of the stream: the messages there were trimmed."""

    head = Fact(str, "head")  # the first offset that is still kept


class ProducerRefused(Refused):
    """The sequence, epoch or session does not match the producer's state in the stream."""

    code = "producer_refused"
    advice = "look at the producer's state with stream.producers()"
    current_epoch = Fact(int, "current_epoch")  # the epoch the server has stored
    last_seq = Fact(int, "last_seq")  # the highest stored sequence


class ProducerFenced(ProducerRefused):
    """A newer instance owns this producer id."""

    code = "PRODUCER_FENCED"


class ProducerExpired(ProducerRefused):
    """The producer was idle for so long that its state has expired; only its epoch is stored."""


class SequenceGap(ProducerRefused):
    """A sequence before this one is missing."""

    expected = Fact(int, "expected_seq")  # the first missing sequence
    received = Fact(int, "received_seq")  # the sequence that was sent


class BatchOverlap(ProducerRefused):
    """Some sequences of this range are stored already, the others are not."""


class RestartAmbiguous(ProducerRefused):
    """A bare producer sent a sequence again with another payload: it seems to have restarted."""


class PayloadMismatch(ProducerRefused):
    """This sequence was stored before with another payload, which stays stored."""


class TransactionRefused(Refused):
    """The server refused a call of a transaction."""

    code = "transaction_refused"
    advice = "get its state with client.transaction_status()"


class UnknownTransaction(TransactionRefused):
    """There is no transaction with this id and epoch, or its outcome is no longer retained."""


class InvalidTransactionState(TransactionRefused):
    """The transaction is in a `state` that does not allow the call."""

    state = Fact(str, "state")
    reason = Fact(str, "reason")  # why it was aborted, if it was


class TransactionAborted(TransactionRefused):
    """The transaction was aborted, see `reason`. Nothing of it is visible."""

    reason = Fact(str, "reason")  # abort, timeout, fenced, superseded, reaped or operator


class TransactionTimedOut(TransactionAborted):
    """The transaction was aborted at its deadline."""

    reason = Fact(str, "reason", "timeout")


class TransactionCommitted(TransactionRefused):
    """The transaction is committed, and cannot be aborted any more."""


class TransactionFenced(TransactionRefused, ProducerFenced):
    """A newer instance owns the producer, or has begun the transaction again."""

    code = "PRODUCER_FENCED"
    advice = "stop this instance: a newer one has taken over"


class ConcurrentTransactions(TransactionRefused):
    """The transaction `other` must end first."""

    other = Fact(str, "transaction_id")  # the id of the other transaction


class TooManyTransactions(TransactionRefused):
    """The producer has too many pending transactions."""


class PartitionNotInTransaction(TransactionRefused):
    """The stream was not named when the transaction began, and was not added later."""


class BranchIncomplete(TransactionRefused):
    """The staged messages differ from the caller's counts, or the transaction is not prepared."""


class BranchMissing(TransactionRefused):
    """A listed transaction no longer exists."""


class PositionRefused(Refused):
    """The position of `group` in `stream` cannot be moved."""

    code = "position_refused"
    advice = "nothing was applied: abort, and continue with a new tail(group=...)"
    group = Fact(str, "group")
    stream = Fact(str, "stream")


class PositionConflict(PositionRefused):
    """The position was moved after it was read, or the path has another stream now.

    `reason` is one of:

    - "offset", "version", "moved": another client has moved the position;
    - "mover": `mover` has moved it, and this client did not send an expected offset;
    - "pending": the same transaction already moves it to another offset;
    - "incarnation": the stream was deleted and created again;
    - "deleted": the stream was deleted after the transaction named it.
    """

    offset = Fact(str, "offset")  # the present position
    version = Fact(int, "version")  # how often the position was moved
    mover = Fact(str, "mover")  # the last mover; others must send an expected offset
    reason = Fact(str, "reason")
    incarnation = Fact(str, "incarnation")  # of the present stream, if it was created again


class UnstableOffsets(PositionRefused):
    """A pending transaction may still move the position of `group` in `stream`."""

    transaction_id = Fact(str, "transaction_id")  # the transaction that holds the position
    transaction_epoch = Fact(int, "transaction_epoch")


class StreamInTransaction(Refused):
    """An open transaction has messages in the stream."""


class OffsetUnstable(Refused):
    """The messages at the offset belong to a pending transaction."""

    stable_offset = Fact(str, "stable_offset")  # every message before it is committed or aborted


class SinkRefused(Refused):
    """The commit of a sink conflicts with what the sink has committed before."""

    code = "sink_refused"
    advice = "inspect the sink with `semel sinks`"
    last_version = Fact(int, "last_version")  # the last committed version


class CheckpointDiverged(SinkRefused):
    """The input that the sink has committed differs from the caller's checkpoint."""


class AppBound(SinkRefused):
    """The sink belongs to another query."""


class VersionForgotten(SinkRefused):
    """The version is so old that the server no longer stores its digests to compare them."""


class KeyReused(Refused):
    """The Idempotency-Key was used with another payload."""


class NotSupported(Refused):
    """The server is not semel and lacks this call. Nothing was applied."""

    code = "not_supported"
    advice = "only semel supports this call"


class LimitReached(Refused):
    """A limit of the server is reached."""


class DiskFull(LimitReached):
    """The server's disk is full."""


class CorruptData(Refused):
    """The data that the server has stored is corrupt: a checksum does not match."""


class Unavailable(ClientError):
    """Nothing was applied: the server is unreachable, or does not accept requests now."""

    code = "unavailable"
    advice = "try again later"

    def __init__(
        self, message: str, *, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class Indeterminate(ClientError):
    """The request was sent, but no response shows its outcome: it may have been applied."""

    code = "indeterminate"
    applied = UNKNOWN
    advice = (
        "read the stream to find out; an append with an idempotency key or a producer is safe to"
        " repeat"
    )

    def __init__(
        self, message: str, *, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class ProtocolError(ClientError):
    """The response does not follow the protocol."""

    code = "protocol_error"
    applied = UNKNOWN
    advice = "check the address: is this a Durable Streams server?"


class ClientClosed(ClientError):
    """The client or the producer was closed before this call."""

    code = "client_closed"
    advice = "create a new one"
