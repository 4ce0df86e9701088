"""The errors that calls of the client raise.

    SemelError
    ├── Refused                  the server refused; nothing was applied unless `applied` says so
    │   ├── BadRequest           400 and the like: correct the call
    │   │   ├── OffsetBeyondTail
    │   │   └── TooLarge
    │   ├── Unauthorized · Forbidden
    │   ├── StreamNotFound · StreamGone · StreamExists · StreamClosed
    │   ├── ConfigConflict · ContentTypeConflict · StreamSeqConflict
    │   ├── PreconditionFailed   If-Match named another tail than `next_offset`
    │   ├── OffsetTrimmed        start at `head`
    │   ├── ProducerRefused      the producer's sequence or epoch does not fit
    │   │   ├── ProducerFenced   a newer instance owns the id, under `current_epoch`
    │   │   ├── SequenceGap      `expected` is missing, `received` was sent
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
    │   │   └── UnstableOffsets  a pending transaction may still move the group
    │   ├── StreamInTransaction · OffsetUnstable    a pending transaction has messages there
    │   ├── SinkRefused          CheckpointDiverged · AppBound · VersionForgotten
    │   ├── KeyReused            the Idempotency-Key was used with another payload
    │   ├── NotSupported         another server, which lacks this call of semel's
    │   ├── LimitReached         try again after `retry_after`, or delete something
    │   │   └── DiskFull
    │   └── CorruptData          the stored data is corrupt
    ├── Unavailable              nothing was applied: unreachable, overloaded, or not sent in time
    ├── Indeterminate            sent, but no response came: it may have been applied
    ├── ProtocolError            the response does not follow the protocol
    └── ClientClosed             the call came after `close()`

Every one has `code` (stable), `message` (for people), `advice` (what to do next) and `applied`:
"no", or "unknown" if the request may have had an effect. `semel.wire.refusal_table` has the codes
and the advice for refusals of the server.
"""

from collections.abc import Mapping
from typing import Generic, TypeVar, overload

from semel.model.errors import SemelError as SemelError  # noqa: PLC0414 - the root of this tree
from semel.wire.refusal_table import ADVICE, BY_CODE

T = TypeVar("T")

NO = "no"
UNKNOWN = "unknown"
# By the name of the class. A class that several refusals raise sets its code itself.
_CODES = {entry.error: code for code, entry in BY_CODE.items()}


class ClientError(SemelError):
    """The base of the errors that calls of the client raise."""

    advice: str = ""
    applied: str = NO

    def __init_subclass__(cls) -> None:
        """Set the code and the advice of a class that the table of refusals names."""
        if "code" not in vars(cls):
            cls.code = _CODES.get(cls.__name__, cls.code)
        cls.advice = ADVICE.get(cls.__name__, cls.advice)

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return f"{self.message} ({self.advice})" if self.advice else self.message


class Refused(ClientError):
    """Raised if the server refuses. `facts` are the other members of its problem document."""

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
    """A fact of a refusal as an attribute; `default` if the server did not send it."""

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
    advice = "correct the call; sending it again changes nothing"


class TooLarge(BadRequest):
    """The append is larger than the server accepts."""

    code = "body_too_large"


class Unauthorized(Refused):
    """The server requires credentials."""

    code = "unauthorized"
    advice = "pass token= or an Authorization header"


class Forbidden(Refused):
    """The credentials do not allow this."""

    code = "forbidden"
    advice = "ask for the right to do this"


class StreamNotFound(Refused):
    """There is no such stream."""


class StreamGone(Refused):
    """The stream is deleted; only its forks still have its data."""

    code = "stream_gone"


class StreamExists(Refused):
    """The stream exists already, with the same configuration."""

    code = "stream_exists"
    advice = "pass exist_ok=True if that is fine"


class ConfigConflict(Refused):
    """The stream exists with another configuration."""


class StreamClosed(Refused):
    """The stream is closed: it accepts no more appends."""

    next_offset = Fact(str, "next_offset")  # the tail


class ContentTypeConflict(Refused):
    """The stream has another media type."""


class StreamSeqConflict(Refused):
    """Stream-Seq must grow, byte-wise."""


class PreconditionFailed(Refused):
    """If-Match named another tail than `next_offset`."""

    next_offset = Fact(str, "next_offset")  # the tail


class OffsetBeyondTail(BadRequest):
    """The offset is after the tail."""

    next_offset = Fact(str, "next_offset")  # the tail


class OffsetTrimmed(Refused):
    """The offset is before the head: its messages were trimmed."""

    head = Fact(str, "head")  # the first offset that is still kept


class ProducerRefused(Refused):
    """The producer's sequence, epoch or session does not fit its state in the stream."""

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
    """Part of this range is stored already, part is not."""


class RestartAmbiguous(ProducerRefused):
    """A bare producer repeats a sequence with another payload: a restart, not a retry."""


class PayloadMismatch(ProducerRefused):
    """This sequence was stored before with another payload; the first one stays."""


class TransactionRefused(Refused):
    """A call about a transaction is refused."""

    code = "transaction_refused"
    advice = "look at it with client.transaction_status()"


class UnknownTransaction(TransactionRefused):
    """There is no transaction of that id and epoch, or its outcome is no longer retained."""


class InvalidTransactionState(TransactionRefused):
    """The transaction is in a `state` that does not allow this."""

    state = Fact(str, "state")
    reason = Fact(str, "reason")  # why it is aborted, if it is


class TransactionAborted(TransactionRefused):
    """The transaction is aborted, for `reason`; nothing of it is visible."""

    reason = Fact(str, "reason")  # abort, timeout, fenced, superseded, reaped or operator


class TransactionTimedOut(TransactionAborted):
    """The transaction was aborted at its deadline."""

    reason = Fact(str, "reason", "timeout")


class TransactionCommitted(TransactionRefused):
    """The transaction is committed; that is final."""


class TransactionFenced(TransactionRefused, ProducerFenced):
    """A newer instance owns the producer, or has begun the transaction again."""

    code = "PRODUCER_FENCED"
    advice = "stop this instance: a newer one does its work"


class ConcurrentTransactions(TransactionRefused):
    """The transaction `other` must end first."""

    other = Fact(str, "transaction_id")  # the id of the other transaction


class TooManyTransactions(TransactionRefused):
    """The producer has too many pending transactions."""


class PartitionNotInTransaction(TransactionRefused):
    """The stream was not named when the transaction began, and not added since."""


class BranchIncomplete(TransactionRefused):
    """What is staged is not what the caller counted, or it was not prepared."""


class BranchMissing(TransactionRefused):
    """A listed transaction does not exist any more."""


class PositionRefused(Refused):
    """A group cannot be moved in `stream`."""

    code = "position_refused"
    advice = "nothing was applied: abort, and continue with a new tail(group=...)"
    group = Fact(str, "group")
    stream = Fact(str, "stream")


class PositionConflict(PositionRefused):
    """The group was moved in `stream` since its position was read, or the stream is another one.

    `reason`: "offset", "version" or "moved": another client has moved it; "mover": `mover` has, and
    this client sent no position it had read from; "pending": the transaction itself moves it
    elsewhere; "incarnation": the stream was deleted and created again; "deleted": it was deleted
    after the transaction named it.
    """

    offset = Fact(str, "offset")  # where the group is
    version = Fact(int, "version")  # how often the group was moved
    mover = Fact(str, "mover")  # who moved it last, if no other producer may move it without `from`
    reason = Fact(str, "reason")
    incarnation = Fact(str, "incarnation")  # of the stream the path has now, if it is another


class UnstableOffsets(PositionRefused):
    """A pending transaction may still move the group in `stream`."""

    transaction_id = Fact(str, "transaction_id")  # the transaction that holds the position
    transaction_epoch = Fact(int, "transaction_epoch")


class StreamInTransaction(Refused):
    """An open transaction has messages in the stream."""


class OffsetUnstable(Refused):
    """The messages at the offset belong to a pending transaction."""

    stable_offset = Fact(str, "stable_offset")  # every message before it is committed or aborted


class SinkRefused(Refused):
    """The commit of a sink does not fit what it has committed before."""

    code = "sink_refused"
    advice = "look at it with `semel sinks`"
    last_version = Fact(int, "last_version")  # the last committed version


class CheckpointDiverged(SinkRefused):
    """The sink has committed other input than the caller's checkpoint says."""


class AppBound(SinkRefused):
    """The sink belongs to another query."""


class VersionForgotten(SinkRefused):
    """The version is too old to be compared."""


class KeyReused(Refused):
    """The Idempotency-Key was used with another payload."""


class NotSupported(Refused):
    """The server is not semel and lacks this call; nothing was sent that it could misunderstand."""

    code = "not_supported"
    advice = "only semel has this call"


class LimitReached(Refused):
    """A limit of the server is reached."""


class DiskFull(LimitReached):
    """The server's disk is full."""


class CorruptData(Refused):
    """What the server has stored is not what was written: a checksum does not match."""


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
    """The request was sent, but no response says what happened: it may have been applied."""

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
    """The response does not follow the protocol."""

    code = "protocol_error"
    applied = UNKNOWN
    advice = "check the address: is this a Durable Streams server?"


class ClientClosed(ClientError):
    """The client or the producer was closed before this call."""

    code = "client_closed"
    advice = "make a new one"
