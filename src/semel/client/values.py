"""The values that callers of the client pass and receive.

Values that are JSON documents are defined in `semel.wire.schema`, because the server uses them too.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, Protocol

import msgspec
from msgspec import UNSET, Struct, UnsetType

from semel.client.errors import UndecodableMessage
from semel.model.commands import READ_COMMITTED, READ_UNCOMMITTED, TXN_INLINE, TXN_STAGED
from semel.model.messages import Header, is_json, is_text
from semel.model.offsets import parse_offset, print_offset
from semel.wire.headers import to_datetime
from semel.wire.schema import StreamEntry
from semel.wire.schema.commits import CommitResult
from semel.wire.schema.producers import (
    ProducerClaim,
    ProducerReceipt,
    ProducerState,
    Registration,
    RetiredEntry,
)
from semel.wire.schema.transactions import (
    MoveRequest,
    PinnedRange,
    PinnedStep,
    StreamResult,
    Target,
    TransactionStatus,
)

__all__ = [
    "KIND_INLINE",
    "KIND_STAGED",
    "NOW",
    "PREENCODED",
    "READ_COMMITTED",
    "READ_UNCOMMITTED",
    "START",
    "CommitResult",
    "Header",
    "Message",
    "Metadata",
    "Move",
    "Moves",
    "Offset",
    "OnCommit",
    "Origin",
    "PinnedRange",
    "PinnedStep",
    "ProducerClaim",
    "ProducerReceipt",
    "ProducerState",
    "ReadOffset",
    "Receipt",
    "Registration",
    "RetiredEntry",
    "StreamEntry",
    "StreamInfo",
    "StreamResult",
    "TransactionStatus",
    "decode",
    "encode",
    "encode_json",
    "offset_of",
    "ordinal_of",
    "parse_token",
    "targets_of",
    "to_plain",
    "token_of",
]

# ---- values --------------------------------------------------------------------------------------


START: Final = "-1"
NOW: Final = "now"

# The types of values that are encoded already. This is a tuple for `isinstance`, because a union
# would be built again for every message.
PREENCODED: Final = (bytes, bytearray, memoryview)
# A function that moves a group's position to the offset after a message. With AsyncClient, the
# function returns an awaitable.
OnCommit = Callable[["Message", "Metadata | None"], Any]
_decode_json: Final = msgspec.json.Decoder().decode


class ReadOffset(str):
    """The offset after a message: a str with the attribute `source`.

    `source` identifies the reader that returned the message. A copy or a pickle is a plain str
    without `source`.
    """

    __slots__ = ("source",)
    source: object

    def __new__(cls, offset: str, source: object) -> "ReadOffset":
        self = super().__new__(cls, offset)
        self.source = source
        return self

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


class Message(Struct, gc=False):  # noqa: PLW1641 - a message is mutable, so it has no hash
    """One message of a stream.

    `raw` is the bytes of the message. `value` is the decoded message: a JSON value, a str or bytes.
    `offset` is the offset of the message. To continue after the message, read at `next_offset`.

    Only semel stores `key`, `headers` and `timestamp`. Only semel returns both offsets for each
    message. With a different server, or with live="sse", messages come in pages. Only the first
    message of a page has an `offset`, and only the last has a `next_offset`. If the stream is not
    JSON, a page is one message.
    """

    raw: bytes
    content_type: str
    ordinal: int | str | None = None
    next_ordinal: int | str | None = None
    written_ms: int | None = None
    key: bytes | None = None
    headers: Sequence[Header] = ()
    time_ms: int | None = None
    _decoded: Any | UnsetType = UNSET
    on_commit: OnCommit | None = None
    source: Any = None
    letter: "Letter | None" = None

    @property
    def value(self) -> Any:
        """The decoded message. It is decoded on the first access.

        Raises UndecodableMessage if the bytes are not UTF-8 in a text stream, or not JSON in a JSON
        stream. The bytes are in `raw`.
        """
        if self._decoded is UNSET:
            try:
                self._decoded = decode(self.raw, self.content_type)
            except (ValueError, RecursionError) as error:
                raise self._undecodable(error) from error
        return self._decoded

    def _undecodable(self, error: Exception) -> UndecodableMessage:
        where = "" if self.offset is None else f" at offset {self.offset}"
        where += "" if self.stream is None else f" of stream {self.stream}"
        return UndecodableMessage(
            f"the message{where} cannot be decoded as {self.content_type}: {error}"
        )

    @property
    def stream(self) -> str | None:
        """The path of the stream that has the message, or None if the reader is not known.

        For a message of a topic, this is the stream of its partition, such as `orders/3`.
        """
        path: str | None = getattr(self.source, "path", None)
        return path

    @property
    def partition(self) -> int | None:
        """The partition of the topic that has the message. None if it was not read from a topic."""
        partition: int | None = getattr(self.source, "partition", None)
        return partition

    @property
    def offset(self) -> str | None:
        return _offset(self.ordinal)

    @property
    def next_offset(self) -> str | None:
        """The offset after the message.

        If the reader of the message is known, this is a ReadOffset that refers to the reader. A
        commit of this offset moves a group only if it is at the position that this reader expects.
        """
        offset = _offset(self.next_ordinal)
        if offset is None or self.source is None:
            return offset
        return ReadOffset(offset, self.source)

    @property
    def origin(self) -> "Origin":
        """The stream and the offset of the message.

        A message from the retry stream of a group was rejected before. For such a message, this is
        where it was first read, and `stream` and `offset` are its place in the retry stream.
        """
        return Origin(self.stream, self.offset) if self.letter is None else self.letter.origin

    @property
    def attempts(self) -> int:
        """How often the processing of the message has failed before, as far as that is known.

        It counts the attempts before the message was rejected, and crashes of members that were
        processing it.
        """
        crashes: int = getattr(self.on_commit, "crashes", lambda _: 0)(self)
        return crashes + (0 if self.letter is None else self.letter.attempts)

    @property
    def timestamp(self) -> datetime | None:
        """The timestamp of the message.

        If the message was appended without a timestamp, this is the time at which the server
        stored it. It is None if the server did not return that time.
        """
        time_ms = self.written_ms if self.time_ms is None else self.time_ms
        return None if time_ms is None else to_datetime(time_ms)

    def commit(self, *, metadata: "Metadata | None" = None) -> Any:
        """Move the position of the message's group to the offset after the message.

        `metadata` is stored with the position, and replaces what was stored before.
        With AsyncClient, await the result. Raises PositionConflict if a different client has moved
        the position. Raises ValueError if the message was not read for a group.
        """
        if self.on_commit is None:
            raise ValueError(
                "only a message that consume(...) or tail(group=...) returned can be committed"
            )
        return self.on_commit(self, metadata)

    def reject(self, reason: str | BaseException = "rejected") -> Any:
        """Store the message as a dead letter of its group, and move the group past the message.

        Both happen in one commit. The dead letter has the message and the `reason`, a text or an
        exception: then its class and its text. With AsyncClient, await the result. Raises what
        `commit` raises. Raises TooLarge if not even a dead letter without the value fits into a
        request.
        """
        reject = getattr(self.on_commit, "reject", None)
        if reject is None:
            raise ValueError(
                "only a message that consume(...) or tail(group=...) returned can be rejected"
            )
        return reject(self, reason)

    def __eq__(self, other: object) -> bool:
        """Return True if both messages have the same content. Their readers are not compared."""
        return isinstance(other, Message) and self._content() == other._content()

    def __reduce__(self) -> tuple[type["Message"], tuple[Any, ...]]:
        """Omit the reader from copies and pickles, because a reader cannot leave its process."""
        return Message, self._content()

    def _content(self) -> tuple[Any, ...]:
        return (
            self.raw,
            self.content_type,
            self.ordinal,
            self.next_ordinal,
            self.written_ms,
            self.key,
            self.headers,
            self.time_ms,
        )

    def __repr__(self) -> str:
        return f"Message(offset={self.offset!r}, raw={self.raw[:80]!r})"


class Origin(NamedTuple):
    """The stream that a message was first read from, and its offset there."""

    stream: str | None
    offset: str | None


class Letter(Protocol):
    """What a dead letter says about its message."""

    @property
    def origin(self) -> Origin:
        """The stream that the message was first read from, and its offset there."""

    @property
    def attempts(self) -> int:
        """How often the processing of the message has failed."""


class Receipt(Struct, frozen=True):
    """The result of an append that is stored.

    `next_offset` is the stream's tail after the append. It is None if the append is part of a
    staged transaction, or if the server no longer retains the offset.

    `duplicate` is True if an earlier request had stored the append. In that case, `next_offset`
    is from the earlier request, and `mismatch` is True if that request had a different payload.
    """

    next_offset: str | None
    duplicate: bool = False
    closed: bool = False
    mismatch: bool = False


class StreamInfo(Struct, frozen=True):
    """The state of a stream when the server responded. `ttl` is in seconds.

    If `dedup` is True, the stream recognises duplicates of its messages. If `dedup_from` is not
    None, this applies only to messages at this offset and later. `dedup_source` says where the
    setting comes from: "own", "policy" or "built-in". `dedup_policy` is the prefix of the policy.
    `dedup_pending` is the value that the next append switches to, or None if it does not switch.

    A `read_committed` reader stops at `stable_offset`. `generation` is raised when the server's
    data is restored from an older copy. Only semel returns `stable_offset`, `incarnation`,
    `generation` and `dedup_source`.
    """

    content_type: str
    next_offset: str
    closed: bool = False
    ttl: int | None = None
    expires_at: datetime | None = None
    incarnation: str | None = None
    dedup: bool = True
    dedup_from: str | None = None
    stable_offset: str | None = None
    generation: int | None = None
    dedup_source: str | None = None
    dedup_policy: str | None = None
    dedup_pending: bool | None = None

    @property
    def will_dedup(self) -> bool:
        """True if the stream recognises duplicates of its next message."""
        return self.dedup if self.dedup_pending is None else self.dedup_pending


class Policy(Struct, frozen=True):
    """What holds for every stream below a prefix. The prefix of the whole server is empty.

    `dedup` is True if the streams recognise duplicates.
    """

    prefix: str
    dedup: bool
    changed_at: str


def to_plain(value: Any) -> str:
    """Return a ReadOffset as a plain str. JSON encoders use this function as a hook.

    Raises TypeError for other types.
    """
    if isinstance(value, ReadOffset):
        return str(value)
    raise TypeError(f"a value of type {type(value).__name__} cannot be encoded as JSON")


_encode_json: Final = msgspec.json.Encoder(enc_hook=to_plain).encode


def encode(value: Any, content_type: str) -> bytes:
    """Encode a value as one message. Bytes are returned unchanged.

    Raises TypeError if a stream of this content type cannot store the value.
    """
    if isinstance(value, PREENCODED):
        return bytes(value)
    if is_json(content_type):
        return encode_json(value)
    if isinstance(value, str) and is_text(content_type):
        return value.encode()
    raise TypeError(
        f"a {content_type} stream accepts only bytes{' or str' if is_text(content_type) else ''}, "
        f"not {type(value).__name__}; encode the value, or use an application/json stream"
    )


def encode_json(value: Any) -> bytes:
    """Encode a value as JSON. Bytes must be JSON already, and are returned unchanged."""
    if isinstance(value, PREENCODED):
        return bytes(value)
    try:
        return _encode_json(value)
    except UnicodeEncodeError:  # half of a surrogate pair; JSON can contain it as an escape
        return json.dumps(value, separators=(",", ":")).encode("ascii")


def decode(raw: bytes, content_type: str) -> Any:
    """Return the value of a message: a JSON value, a str for text, otherwise the bytes."""
    if is_json(content_type):
        try:
            return _decode_json(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            # msgspec refuses some valid JSON: half of a surrogate pair, or a very large number.
            return json.loads(raw)
    return raw.decode() if is_text(content_type) else raw


def _offset(position: int | str | None) -> str | None:
    return print_offset(position) if isinstance(position, int) else position


# ---- transactions, commits and groups ------------------------------------------------------------


KIND_INLINE: Final = TXN_INLINE
KIND_STAGED: Final = TXN_STAGED

Offset = str | int
# How to move a position:
# - an offset: move the position to this offset;
# - (from, to): move the position to `to`, but only if it is at `from`;
# - (from, to, incarnation): also require that the stream at the path is still the one that was
#   read;
# - (from, to, incarnation, version): also require that the position was not moved since.
Move = (
    Offset
    | tuple[Offset, Offset]
    | tuple[Offset, Offset, str | None]
    | tuple[Offset, Offset, str | None, int | None]
)
Moves = Mapping[str, Move]
# What to store with a position: a mapping from names to texts or 64-bit integers. The next move of
# the position replaces it.
Metadata = Mapping[str, str | int]


def ordinal_of(offset: Offset | None) -> int:
    """Convert an offset to its ordinal, an int. Raises ValueError if `offset` is invalid."""
    ordinal = parse_offset(offset) if isinstance(offset, str) else offset
    if not isinstance(ordinal, int) or ordinal < 0:
        raise ValueError(f"{offset!r} is not an offset; use the next_offset of a message")
    return ordinal


def offset_of(offset: Offset | None) -> str:
    """Convert an offset to a str. Raises ValueError if `offset` is invalid."""
    return print_offset(ordinal_of(offset))


def targets_of(
    moves: Moves, metadata: Mapping[str, Metadata | None] | None = None
) -> dict[str, Target]:
    """Convert each move to the value that a request contains. All mappings are keyed by path.

    Raises ValueError if there is metadata for a stream without a move.
    """
    noted = {path: value for path, value in (metadata or {}).items() if value}
    if not noted.keys() <= moves.keys():
        raise ValueError(
            f"there is metadata, but no offset, for {', '.join(sorted(noted.keys() - moves))}; pass"
            " an offset for each stream that has metadata"
        )
    return {path: _target_of(move, noted.get(path)) for path, move in moves.items()}


def _target_of(move: Move, metadata: Metadata | None) -> Target:
    noted = UNSET if metadata is None else dict(metadata)
    if not isinstance(move, tuple):
        to = offset_of(move)
        return to if metadata is None else MoveRequest(to=to, metadata=noted)
    start, to, incarnation, version = (*move, None, None)[:4]
    return MoveRequest(
        start=offset_of(start),
        to=offset_of(to),
        incarnation=UNSET if incarnation is None else incarnation,
        version=UNSET if version is None else version,
        metadata=noted,
    )


def token_of(transaction_id: str, epoch: int) -> str:
    """Return the token of a transaction. `prepare` returns the same token."""
    return f"{transaction_id}:{epoch}"


def parse_token(token: str) -> tuple[str, int]:
    """Return the transaction id and the transaction epoch that a token contains.

    Raises ValueError if `token` is not a token.
    """
    transaction_id, colon, epoch = token.rpartition(":")
    if not (colon and transaction_id and epoch.isascii() and epoch.isdigit()):
        raise ValueError(f"{token!r} is not a transaction token; a token looks like txn-1:1")
    return transaction_id, int(epoch)
