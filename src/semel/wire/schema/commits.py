"""The JSON bodies of `/v1/commits` and `/v1/sinks`."""

from typing import Generic, TypeVar

from msgspec import UNSET, Raw, Struct, UnsetType, field

from semel.wire.schema import StrictRequest
from semel.wire.schema.transactions import (
    CommitWakes,
    GroupOffsets,
    NextWake,
    Offset,
    StreamResults,
    Target,
)

T = TypeVar("T")

# ---- commits -------------------------------------------------------------------------------------


class Base64Message(StrictRequest, frozen=True):
    """A message or a key as base64: bytes that are not UTF-8."""

    base64: str


class StreamAppend(StrictRequest, frozen=True):
    """The messages that a one-shot commit appends to one stream, or to the partitions of a topic.

    `messages` is a JSON array. Its bytes are kept exactly as they were sent, because the server
    computes the commit's digest from them. `keys` has the key of each message, or None.
    """

    stream: str
    messages: Raw
    keys: list[str | Base64Message | None] | UnsetType = UNSET


class ListedTransaction(StrictRequest, frozen=True):
    """A staged transaction that is committed together with a one-shot commit."""

    id: str
    epoch: int


class CommitSink(StrictRequest, frozen=True, omit_defaults=False):
    """The sink version in a one-shot commit. A version is one batch of the sink's query.

    `input` is the digest of this batch's input, and `previous` is that of the previous batch.
    """

    app: str
    query_id: str
    version: int
    input: str | None = None
    previous: str | None = None


class CommitRequest(StrictRequest, frozen=True, rename={"expects": "if"}):
    """The body of `POST /v1/commits`, sent by a producer or a sink.

    `expects` maps each path to the tail that the stream must have. Otherwise the commit is refused.
    `member` and `epochs` are as in `SetPositionsRequest`. They are those of one group.
    `subscriptions` maps the id of a subscription to the acks of its wake.
    """

    producer_id: str | None = None
    producer_epoch: int | None = None
    producer_seq: int | None = None
    sink: CommitSink | None = None
    appends: list[StreamAppend] = field(default_factory=list)
    offsets: dict[str, dict[str, Target]] = field(default_factory=dict)
    expects: dict[str, Offset] = field(default_factory=dict)
    transactions: list[ListedTransaction] = field(default_factory=list)
    member: str | None = None
    epochs: dict[str, int] = field(default_factory=dict)
    subscriptions: CommitWakes = field(default_factory=dict)


class CommitLists(Struct, frozen=True, rename={"expects": "if"}):
    """The lists of a `CommitRequest`, as they were sent. Every other member is ignored."""

    appends: Raw = Raw(b"[]")
    offsets: Raw = Raw(b"{}")
    expects: Raw = Raw(b"{}")
    transactions: Raw = Raw(b"[]")
    epochs: Raw = Raw(b"{}")
    subscriptions: Raw = Raw(b"{}")


class AppendKeys(Struct, frozen=True):
    """The keys in a `StreamAppend`, as they were sent. Every other member is ignored."""

    keys: Raw = Raw(b"[]")


class CommittedSink(Struct, frozen=True):
    """The sink version that was committed."""

    app: str
    version: int


class CommitResponse(Struct, frozen=True):
    """The response to the one-shot commit of a sink or a producer.

    `subscriptions` is as in `TxnCommitResponse`.
    """

    duplicate: bool
    streams: StreamResults | None
    offsets: GroupOffsets | None
    deleted: list[str] | None
    sink: CommittedSink | UnsetType = UNSET
    producer_id: str | UnsetType | None = UNSET
    producer_epoch: int | UnsetType | None = UNSET
    producer_seq: int | UnsetType | None = UNSET
    warning: str | UnsetType = UNSET
    subscriptions: dict[str, NextWake] | UnsetType = UNSET


class CommitResult(Struct, frozen=True):
    """The result of a one-shot commit or a transaction, as the client returns it to its caller.

    `streams`, `offsets` and `deleted` are None if the server no longer retains them.

    If `duplicate` is True, the commit was already stored, and the other fields describe the stored
    commit.
    """

    streams: StreamResults | None = None  # the keys are paths
    offsets: GroupOffsets | None = None
    deleted: list[str] | None = None  # streams deleted while their transaction was pending
    duplicate: bool = False
    # Set if the repeated request differs from the stored commit or could not be compared with it.
    warning: str | None = None


# ---- sinks ---------------------------------------------------------------------------------------


class RebindRequest(StrictRequest, frozen=True):
    """The body of `POST /v1/sinks/{app}/rebind`."""

    query_id: str
    last_version: int


class SinkVersion(Struct, frozen=True):
    """A committed version of a sink. A version is one batch of the query that writes to the sink.

    `input` is the digest of the batch's input. For each path, `streams` describes the messages that
    the version added: their offsets and their number.
    """

    version: int
    input: str | None = None
    streams: StreamResults | None = None


class SinkVersionResult(SinkVersion, frozen=True):
    """A committed version of a sink, with its group positions and deleted streams.

    `offsets` maps each group to its new position in each stream. `deleted` lists the version's
    streams that were deleted while their transaction was pending.
    """

    offsets: GroupOffsets | None = None
    deleted: list[str] | None = None


class SinkBinding(Struct, frozen=True):
    """A sink: the id of the query that writes to it, and its last committed version."""

    app: str
    query_id: str
    last_version: int


class SinkEntry(SinkBinding, frozen=True):
    """A sink in the list of all sinks.

    `owner` is the principal that owns it. It is UNSET if access is off or the caller may not see
    it.
    """

    open_transactions: int = 0
    owner: str | UnsetType | None = UNSET


class SinkInfo(SinkEntry, frozen=True):
    """A sink with its retained versions, as the client returns it to its caller.

    The list of all sinks does not contain the versions. `owner` is None if the sink has no owner,
    if access is off, or if the caller may not see it.
    """

    owner: str | None = None
    versions: list[SinkVersion] = []


class SinksPage(Struct, Generic[T], frozen=True):
    """The list of all sinks."""

    sinks: list[T]
