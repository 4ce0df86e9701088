"""The errors that the client raises. `semel.errors`, the public module, shows their tree.

The codes and the advice for the server's refusals are in `semel.wire.refusal_table`.
"""

from semel.client.refused import NO as NO  # noqa: PLC0414 - `semel.errors` exports all of these
from semel.client.refused import UNKNOWN as UNKNOWN  # noqa: PLC0414
from semel.client.refused import ClientError as ClientError  # noqa: PLC0414
from semel.client.refused import Fact
from semel.client.refused import Refused as Refused  # noqa: PLC0414
from semel.client.subscription_errors import *  # noqa: F403 - the same
from semel.model.errors import SemelError as SemelError  # noqa: PLC0414 - the root of this tree


class BadRequest(Refused):
    """The request is invalid. The server would refuse it again."""

    code = "bad_request"
    advice = "correct the call; the same request would be refused again"


class TooLarge(BadRequest):
    """The append is larger than the server accepts."""

    code = "body_too_large"


class Unauthenticated(Refused):
    """The request has no valid token: it is missing, unknown, expired or revoked.

    If a function computes the token, it was called again before this error was raised.
    """

    code = "unauthenticated"
    advice = "pass a valid token: token= of the client, or the environment variable SEMEL_TOKEN"


class Forbidden(Refused):
    """The token is valid, but it does not have the right that the request needs.

    `right` is the missing right, for the thing with this `kind` and `name`.
    """

    code = "forbidden"
    advice = "use a token that has this right"
    right = Fact(str, "right")  # read, write, create, delete, describe or admin, or a cluster right
    kind = Fact(str, "kind")  # stream, group, producer, transaction, sink, cluster and so on
    name = Fact(str, "name")


class StreamNotFound(Refused):
    """There is no such stream."""


class StreamGone(Refused):
    """The stream was deleted but its forks still use its data, or it was deleted and recreated."""

    code = "stream_gone"


class StreamRestored(Refused):
    """The server's data was restored from an older copy while the stream was being read.

    Messages that were read may be missing now, and others may have their offsets.
    """

    code = "stream_restored"
    advice = "compare what was read with the stream, and read on with a new reader"


class StreamExists(Refused):
    """The stream exists with the same configuration. For a topic: its `paths` are not free."""

    code = "stream_exists"
    advice = "pass exist_ok=True to accept an existing stream; for a topic, choose another name"
    paths = Fact(list, "paths")


class ConfigConflict(Refused):
    """The stream already exists with a different configuration."""


class StreamClosed(Refused):
    """The stream is closed and accepts no more appends."""

    next_offset = Fact(str, "next_offset")  # the tail


class ContentTypeConflict(Refused):
    """The stream has a different media type."""


class StreamSeqConflict(Refused):
    """The Stream-Seq is not greater than the stream's last Stream-Seq, compared byte by byte."""


class PreconditionFailed(Refused):
    """The offset in If-Match is not the stream's tail. The tail is `next_offset`."""

    next_offset = Fact(str, "next_offset")  # the tail


class OffsetBeyondTail(BadRequest):
    """The offset is after the stream's tail."""

    next_offset = Fact(str, "next_offset")  # the tail


class OffsetTrimmed(Refused):
    """The offset is before the stream's head, because the messages there were trimmed."""

    head = Fact(str, "head")  # the first offset that is still kept


class ProducerRefused(Refused):
    """The sequence, epoch or session does not match the producer's state in the stream."""

    code = "producer_refused"
    advice = "check the producer's state with stream.producers()"
    current_epoch = Fact(int, "current_epoch")  # the epoch the server has stored
    last_seq = Fact(int, "last_seq")  # the highest stored sequence


class ProducerFenced(ProducerRefused):
    """A newer instance owns this producer id."""

    code = "PRODUCER_FENCED"


class ProducerExpired(ProducerRefused):
    """The producer was idle too long. Its state is no longer stored, except for its epoch."""


class SequenceGap(ProducerRefused):
    """The sequence `expected` is missing. It must be stored before the sequence `received`."""

    expected = Fact(int, "expected_seq")  # the first missing sequence
    received = Fact(int, "received_seq")  # the sequence that was sent


class SequenceExpired(ProducerRefused):
    """It is not known whether messages with this sequence were stored before.

    The producer is in sparse mode and has skipped sequences. The server no longer knows which of
    the sequences up to `expired_seq` are stored. It has stored nothing for this request.
    """

    expired_seq = Fact(int, "expired_seq")


class BatchOverlap(ProducerRefused):
    """The batch's range of sequences overlaps a stored range but is not equal to it."""


class RestartAmbiguous(ProducerRefused):
    """A stored sequence was sent again, and its payload differs or can no longer be compared.

    The producer sent no epoch and no session, so the server cannot tell a retry from a restart.
    """


class PayloadMismatch(ProducerRefused):
    """This sequence is already stored with a different payload. The stored payload is kept."""


class TransactionRefused(Refused):
    """The server refused a request that belongs to a transaction."""

    code = "transaction_refused"
    advice = "get the transaction's state with client.transaction_status()"


class UnknownTransaction(TransactionRefused):
    """The server knows no transaction with this id and epoch.

    Either the transaction never began, or its outcome is no longer retained.
    """


class InvalidTransactionState(TransactionRefused):
    """The transaction's present `state` does not allow this request."""

    state = Fact(str, "state")
    reason = Fact(str, "reason")  # why the transaction was aborted, if it was aborted


class TransactionAborted(TransactionRefused):
    """The transaction was aborted for the given `reason`. None of its changes takes effect."""

    reason = Fact(str, "reason")  # abort, timeout, fenced, superseded, reaped or operator


class TransactionTimedOut(TransactionAborted):
    """The transaction was aborted because its deadline passed."""

    reason = Fact(str, "reason", "timeout")


class TransactionCommitted(TransactionRefused):
    """The transaction cannot be aborted because it is already committed."""


class TransactionFenced(TransactionRefused, ProducerFenced):
    """A newer instance owns the producer, or has begun the transaction again."""

    code = "PRODUCER_FENCED"
    advice = "stop this instance, because a newer instance has taken over"


class ConcurrentTransactions(TransactionRefused):
    """The request must wait until the transaction `other` has ended."""

    other = Fact(str, "transaction_id")  # the id of the other transaction


class TooManyTransactions(TransactionRefused):
    """The producer has too many pending transactions."""


class PartitionNotInTransaction(TransactionRefused):
    """The stream is not part of the transaction.

    If a transaction begins with a list of streams, any other stream must be added before use.
    """


class BranchIncomplete(TransactionRefused):
    """The staged transaction cannot be prepared or committed yet.

    - Prepare: the server has staged more or fewer appends or messages than the request states.
    - Commit: the transaction is not prepared.
    """


class BranchMissing(TransactionRefused):
    """The one-shot commit lists a transaction that no longer exists."""


class PositionRefused(Refused):
    """The position of `group` in `stream` cannot be moved."""

    code = "position_refused"
    advice = "abort the transaction, and read the messages again with a new tail(group=...)"
    group = Fact(str, "group")
    stream = Fact(str, "stream")


class PositionConflict(PositionRefused):
    """The group's position has changed since it was read, or the stream was deleted.

    `reason` is one of:

    - "offset", "version", "moved": another client has moved the position;
    - "mover": the request has no expected offset, and the producer or sink `mover` moved the
      position last;
    - "pending": the same transaction already moves the position, and its target is not the
      expected offset of this move;
    - "incarnation": the stream was deleted and created again;
    - "deleted": the stream was deleted after the move was added to the transaction;
    - "growth": the topic has grown, and the group must first read what was there before.
    """

    offset = Fact(str, "offset")  # where the position is now
    version = Fact(int, "version")  # how often the position was moved
    mover = Fact(str, "mover")  # the last mover; other movers must send an expected offset
    reason = Fact(str, "reason")
    incarnation = Fact(str, "incarnation")  # the new incarnation, if the stream was created again


class UnstableOffsets(PositionRefused):
    """A pending transaction can still move the position of `group` in `stream`."""

    transaction_id = Fact(str, "transaction_id")  # the transaction that holds the position
    transaction_epoch = Fact(int, "transaction_epoch")


class StreamInTransaction(Refused):
    """An open transaction has messages in the stream."""


class OffsetUnstable(Refused):
    """A pending transaction has messages before or at this offset."""

    # Every message before the stable offset is committed or aborted.
    stable_offset = Fact(str, "stable_offset")


class IllegalGeneration(PositionRefused):
    """The member does not own the stream any more, so it cannot move the group's position.

    `epoch` is that of the present owner, and `received_epoch` that of the request.
    """

    epoch = Fact(int, "epoch")
    received_epoch = Fact(int, "received_epoch")


class GroupIsShared(PositionRefused):
    """A member of the group owns the stream, so nobody else can move the position."""


class UnknownMember(Refused):
    """The group has no such member. It has left, was replaced, or its session has timed out."""


class GroupNotFound(Refused):
    """There is no such group: it has no positions, no members and no pinned step."""


class GroupInUse(Refused):
    """The group has `members`, or a pending transaction moves a position of it."""

    members = Fact(int, "members")


class TopicNotFound(Refused):
    """There is no such topic."""


class TopicConflict(Refused):
    """The topic already exists with a different configuration, in `field`."""

    field = Fact(str, "field")


class IsTopic(Refused):
    """The path names a topic, but the call needs a stream."""


class StreamInTopic(Refused):
    """The stream is a partition of `topic`, and the call is possible only for the whole topic."""

    topic = Fact(str, "topic")


class PartitionsChanged(Refused):
    """The topic has other `partitions`, or another `partitioner`, than the client has assumed."""

    partitions = Fact(int, "partitions")
    partitioner = Fact(str, "partitioner")


class PartitionNotFound(Refused):
    """The topic has no partition with this number. It has `partitions` of them."""

    partition = Fact(int, "partition")
    partitions = Fact(int, "partitions")


class KeysWouldMove(Refused):
    """The topic has messages with keys, and more partitions would move keys to other ones."""


class TooFewPartitions(Refused):
    """A topic cannot get fewer partitions than the `partitions` that it has."""

    partitions = Fact(int, "partitions")


class SinkRefused(Refused):
    """A sink's commit conflicts with an earlier commit of the same sink."""

    code = "sink_refused"
    advice = "inspect the sink with `semel sinks show`"
    last_version = Fact(int, "last_version")  # the last committed version


class CheckpointDiverged(SinkRefused):
    """The sink has committed this version, or the version before it, with a different input."""


class AppBound(SinkRefused):
    """The sink belongs to a different query."""


class VersionForgotten(SinkRefused):
    """The version is too old. The server no longer retains its result and its input's digest."""


class KeyReused(Refused):
    """The Idempotency-Key was used before with a different payload."""


class PolicyNotFound(Refused):
    """There is no policy with this prefix."""


class NotSupported(Refused):
    """The server is not semel and does not support this call. Nothing was applied."""

    code = "not_supported"
    advice = "only a semel server supports this call"


class LimitReached(Refused):
    """The server has reached one of its limits."""


class DiskFull(LimitReached):
    """The server's disk is full."""


class CorruptData(Refused):
    """The server's stored data is corrupt: a checksum does not match."""


class Unavailable(ClientError):
    """The server is unreachable or accepts no requests at present. Nothing was applied."""

    code = "unavailable"
    advice = "try again later"

    def __init__(
        self, message: str, *, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class Indeterminate(ClientError):
    """It is unknown whether the request was applied, because no response shows its outcome."""

    code = "indeterminate"
    applied = UNKNOWN
    advice = (
        "read the stream to find out whether the request was applied; an append with an"
        " idempotency key or a producer is safe to repeat"
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
    advice = "check that the address belongs to a Durable Streams server"


class DamagedResponse(ProtocolError):
    """The body of a response is damaged. `__cause__` is the error that the decoder has raised."""

    code = "damaged_response"
    advice = "repeat the call; if the error stays, check the server and the proxies before it"


class UndecodableMessage(ClientError, ValueError):
    """The bytes of a message do not have the format that the stream's media type promises."""

    code = "undecodable_message"
    advice = "use message.raw, which contains the bytes"


class CannotReplay(ClientError, ValueError):
    """A replay of dead letters has ended before a message that it cannot copy.

    The message at `offset` in `stream` is not a dead letter, or is one without its value, because
    that was too large. Only the `copied` dead letters before it were copied.
    """

    code = "cannot_replay"
    advice = "to pass over the message, use drop(until=error.next_offset)"

    def __init__(
        self, reason: str, *, stream: str, offset: str, next_offset: str, copied: int
    ) -> None:
        were = "dead letter before it was" if copied == 1 else "dead letters before it were"
        done = f"{copied:,} {were} copied" if copied else "nothing was copied"
        super().__init__(f"{reason}, so it cannot be replayed; {done}")
        self.stream, self.offset, self.next_offset = stream, offset, next_offset
        self.copied = copied


class InstanceReplaced(ClientError):
    """Another member of the group has joined with the same `instance` name."""

    code = "instance_replaced"
    advice = "end this consumer, or give each consumer an instance name of its own"


class CallbackFailed(ClientError):
    """A function that computes a header, a token or a parameter has failed in a producer."""

    code = "callback_failed"
    advice = "correct the function; `__cause__` is the error that it has raised"


class ClientClosed(ClientError):
    """The client or the producer was closed before this call."""

    code = "client_closed"
    advice = "create a new client or producer"
