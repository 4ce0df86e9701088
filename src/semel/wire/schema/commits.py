"""The JSON bodies of `/v1/commits` and `/v1/sinks`."""

from typing import Generic, TypeVar

from msgspec import UNSET, Raw, Struct, UnsetType, field

from semel.wire.schema import StrictRequest
from semel.wire.schema.transactions import GroupOffsets, Offset, StreamResults, Target

T = TypeVar("T")

# ---- commits -------------------------------------------------------------------------------------


class StreamAppend(StrictRequest, frozen=True):
    """Messages that a one-shot commit appends to a stream: a JSON array, kept byte for byte.

    The server's digest of a commit covers these bytes.
    """

    stream: str
    messages: Raw


class Base64Message(StrictRequest, frozen=True):
    """A message of bytes, for streams that are not JSON."""

    base64: str


class ListedTransaction(StrictRequest, frozen=True):
    """A staged transaction that a one-shot commit commits, too."""

    id: str
    epoch: int


class CommitSink(StrictRequest, frozen=True, omit_defaults=False):
    """The version of a sink that a one-shot commit commits, and the digests of its input.

    `previous` is the digest of the input of the previous version.
    """

    app: str
    query_id: str
    version: int
    input: str | None = None
    previous: str | None = None


class CommitRequest(StrictRequest, frozen=True, rename={"expects": "if"}):
    """`POST /v1/commits`, by a producer or a sink. `expects` maps streams to expected tails."""

    producer_id: str | None = None
    producer_epoch: int | None = None
    producer_seq: int | None = None
    sink: CommitSink | None = None
    appends: list[StreamAppend] = field(default_factory=list)
    offsets: dict[str, dict[str, Target]] = field(default_factory=dict)
    expects: dict[str, Offset] = field(default_factory=dict)
    transactions: list[ListedTransaction] = field(default_factory=list)


class CommittedSink(Struct, frozen=True):
    """The version of a sink that was committed."""

    app: str
    version: int


class CommitResponse(Struct, frozen=True):
    """The response to a one-shot commit of a sink or of a producer."""

    duplicate: bool
    streams: StreamResults | None
    offsets: GroupOffsets | None
    deleted: list[str] | None
    sink: CommittedSink | UnsetType = UNSET
    producer_id: str | UnsetType | None = UNSET
    producer_epoch: int | UnsetType | None = UNSET
    producer_seq: int | UnsetType | None = UNSET
    warning: str | UnsetType = UNSET


class CommitResult(Struct, frozen=True):
    """The result of a one-shot commit or of a transaction, for the caller of the client.

    `duplicate`: it was committed before, and this is the result of that commit. `streams` has the
    results by path, `offsets` the positions by group and stream. `deleted` lists the streams of the
    commit that do not exist any more. All three are None if the server no longer retains them.
    `warning` is set if this is a repeat, and the server could not compare it with the stored
    commit, or found a difference.
    """

    streams: StreamResults | None = None
    offsets: GroupOffsets | None = None
    deleted: list[str] | None = None
    duplicate: bool = False
    warning: str | None = None


# ---- sinks ---------------------------------------------------------------------------------------


class RebindRequest(StrictRequest, frozen=True):
    """`POST /v1/sinks/{app}/rebind`."""

    query_id: str
    last_version: int


class SinkVersion(Struct, frozen=True):
    """A committed version: the digest of its input, and its results by stream."""

    version: int
    input: str | None = None
    streams: StreamResults | None = None


class SinkVersionResult(SinkVersion, frozen=True):
    """A committed version with the positions it moved and the streams that are deleted."""

    offsets: GroupOffsets | None = None
    deleted: list[str] | None = None


class SinkBinding(Struct, frozen=True):
    """The query a sink belongs to, and its last version."""

    app: str
    query_id: str
    last_version: int


class SinkEntry(SinkBinding, frozen=True):
    """A sink in a listing."""

    open_transactions: int = 0


class SinkInfo(SinkEntry, frozen=True):
    """A sink with its retained versions, which are sent for a single sink only."""

    versions: list[SinkVersion] = []


class SinksPage(Struct, Generic[T], frozen=True):
    """The list of all sinks."""

    sinks: list[T]
