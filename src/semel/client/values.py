"""What calls take and return."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from semel.model.media import is_json, is_text
from semel.model.messages import Header, encode_extras, find_extras_fault
from semel.model.offsets import print_offset

# ---- extras --------------------------------------------------------------------------------------
# What messages carry beside their values: keys, headers and times of their own.


Key = bytes | str | None
Headers = Mapping[str, bytes | str] | Iterable[tuple[str, bytes | str]] | None


_MILLISECOND: Final = timedelta(milliseconds=1)
_COLUMNS_BYTES: Final = 32  # a message of which others have what it has not: a place in each column


class Extras(Struct, frozen=True):
    """One element for each message of an append, or None for none at all."""

    keys: Sequence[bytes | None] | None = None
    headers: Sequence[Sequence[Header]] | None = None
    timestamps: Sequence[int | None] | None = None

    def __bool__(self) -> bool:
        return any(column is not None for column in (self.keys, self.headers, self.timestamps))


class Extra(Struct, frozen=True):
    """What one message carries; `size` is what it adds to the body of an append, at most."""

    key: bytes | None
    headers: Sequence[Header]
    time_ms: int | None
    size: int


def extra_of(key: Key, headers: Headers, timestamp: datetime | None) -> Extra | None:
    """Read what one message is given; ValueError or TypeError if it cannot be stored."""
    if key is None and headers is None and timestamp is None:
        return None
    name = None if key is None else _bytes(key)
    pairs, time_ms = _pairs(headers), _milliseconds(timestamp)
    packed = encode_extras(1, keys=[name], headers=[pairs], timestamps=[time_ms])
    fault = find_extras_fault(packed, 1) if packed else None
    if fault is not None:
        raise ValueError(fault)
    return Extra(name, pairs, time_ms, len(packed) + _COLUMNS_BYTES) if packed else None


def columns_of(count: int, extras: Mapping[int, Extra]) -> Extras:
    """Spread what some of `count` messages carry over columns with an element for each."""
    found = [extras.get(index) for index in range(count)]
    return Extras(
        [None if extra is None else extra.key for extra in found],
        [() if extra is None else extra.headers for extra in found],
        [None if extra is None else extra.time_ms for extra in found],
    )


def extras_of(
    keys: Iterable[Key] | None,
    headers: Iterable[Headers] | None,
    timestamps: Iterable[datetime | None] | None,
) -> Extras:
    """Read what an append is given; ValueError or TypeError if it cannot be sent."""
    return Extras(
        None if keys is None else [None if key is None else _bytes(key) for key in keys],
        None if headers is None else [_pairs(each) for each in headers],
        None if timestamps is None else [_milliseconds(moment) for moment in timestamps],
    )


def milliseconds(moment: datetime) -> int:
    """Count from 1970; ValueError without a time zone."""
    if moment.tzinfo is None:
        raise ValueError("a time needs a time zone, such as datetime.timezone.utc")
    return (moment - _EPOCH) // _MILLISECOND


def _milliseconds(moment: datetime | None) -> int | None:
    return None if moment is None else milliseconds(moment)


def _pairs(headers: Headers) -> list[Header]:
    if headers is None:
        return []
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return [(name, _bytes(value)) for name, value in pairs]


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    raise TypeError(f"keys and headers are bytes or str, not {type(value).__name__}")


# ---- values --------------------------------------------------------------------------------------


START: Final = "-1"
NOW: Final = "now"

# Bytes that are taken as they are. A tuple: a union would be made anew for every message.
PREENCODED: Final = (bytes, bytearray, memoryview)
# Moves a group behind a message; of the client for asyncio, it is awaited.
OnCommit = Callable[["Message"], Any]
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_decode_json: Final = msgspec.json.Decoder().decode


class ReadOffset(str):
    """An offset after a message, which knows what the message was read by: `source`.

    In all else it is a str; copies of it are plain ones.
    """

    __slots__ = ("source",)
    source: object

    def __new__(cls, offset: str, source: object) -> "ReadOffset":
        """Make an offset that is of a source."""
        self = super().__new__(cls, offset)
        self.source = source
        return self

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


class Message(Struct, gc=False):  # noqa: PLW1641 - it can be changed, and has no hash
    """One message of a stream.

    `raw` is its bytes, `value` what they mean: JSON decoded, text as str, else the bytes.

    semel tells each message's `offset`, and `next_offset`, where to go on after it. Other servers
    tell them for a whole answer only: then the first message of an answer has an `offset`, the last
    one a `next_offset`, and those between have neither. In a stream that is not JSON such an answer
    is one message, whatever the appends were. Only semel keeps `key`, `headers` and `timestamp`;
    without one of its own, a message has the time when it was stored.
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

    @property
    def value(self) -> Any:
        """The message decoded; done when first asked for."""
        if self._decoded is UNSET:
            self._decoded = decode(self.raw, self.content_type)
        return self._decoded

    @property
    def offset(self) -> str | None:
        """Where the message is."""
        return _offset(self.ordinal)

    @property
    def next_offset(self) -> str | None:
        """Where to go on after it. A str that knows the reader of the message, for commits."""
        offset = _offset(self.next_ordinal)
        if offset is None or self.source is None:
            return offset
        return ReadOffset(offset, self.source)

    @property
    def timestamp(self) -> datetime | None:
        """Its own time, or else when the server stored it."""
        time_ms = self.written_ms if self.time_ms is None else self.time_ms
        return None if time_ms is None else _EPOCH + timedelta(milliseconds=time_ms)

    def commit(self) -> Any:
        """Move the group it was read for behind this message; awaited, of an AsyncClient.

        PositionConflict if the group stands elsewhere: another instance has moved it.
        """
        if self.on_commit is None:
            raise ValueError("only a message of tail(group=...) can be committed")
        return self.on_commit(self)

    def __eq__(self, other: object) -> bool:
        """Whether it is the same message, whoever has read it."""
        return isinstance(other, Message) and self._content() == other._content()

    def __reduce__(self) -> tuple[type["Message"], tuple[Any, ...]]:
        """A copy in another process knows nothing of its reader."""
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


class Receipt(Struct, frozen=True):
    """An append is stored. `duplicate`: it was before, and this is what was answered then.

    `next_offset` is the end of the stream after it; None if the server no longer knows.
    `mismatch`: what is stored under the producer's number is another payload, which stays.
    """

    next_offset: str | None
    duplicate: bool = False
    closed: bool = False
    mismatch: bool = False


class StreamInfo(Struct, frozen=True):
    """A stream as it is now. `ttl` is in seconds. Only semel tells `incarnation`.

    `dedup`: whether it recognises duplicates; since `dedup_from`, if not from its beginning.
    `stable_offset`: where a committed reader stops, for now; only semel tells.
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


class StreamEntry(Struct, frozen=True):
    """A stream in a listing. Times are in milliseconds since 1970."""

    path: str
    content_type: str
    incarnation: str
    first_offset: str
    next_offset: str
    closed: bool
    created_at_ms: int
    written_at_ms: int


class ProducerReceipt(Struct, frozen=True):
    """What was answered to one of a producer's last appends."""

    first_seq: int
    last_seq: int
    first_offset: str
    next_offset: str
    digest: str


class ProducerState(Struct, frozen=True):
    """What the server knows of a producer in a stream.

    `expired`: it was silent so long that only its epoch and cursor are kept. `registered_epoch`:
    the epoch its id is registered under, if it is. `receipts` are told of one producer only.
    """

    stream: str
    producer_id: str
    mode: str
    epoch: int
    last_seq: int | None = None
    last_offset: str | None = None
    cursor: str | None = None
    updated_at: str | None = None
    registered_epoch: int | None = None
    session: str | None = None
    expired: bool = False
    receipts: list[ProducerReceipt] | None = None


class Registration(Struct, frozen=True):
    """An id the server has given out, or the epoch it has raised."""

    producer_id: str
    producer_epoch: int


class ProducerClaim(Struct, frozen=True):
    """The epoch a producer got by a claim, and what was stored before, by an earlier instance."""

    producer_epoch: int
    last_seq: int | None = None
    last_offset: str | None = None
    cursor: str | None = None


def to_plain(value: Any) -> str:
    """Return an offset of a message as a plain str, for an encoder; TypeError if it is none."""
    if isinstance(value, ReadOffset):
        return str(value)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


_encode_json: Final = msgspec.json.Encoder(enc_hook=to_plain).encode


def encode(value: Any, content_type: str) -> bytes:
    """Turn a value into the bytes of one message; TypeError if the stream cannot hold it."""
    if isinstance(value, PREENCODED):
        return bytes(value)
    if is_json(content_type):
        return encode_json(value)
    if isinstance(value, str) and is_text(content_type):
        return value.encode()
    raise TypeError(
        f"a stream of {content_type} takes bytes{' or str' if is_text(content_type) else ''}, "
        f"not {type(value).__name__}; encode it, or create the stream as application/json"
    )


def encode_json(value: Any) -> bytes:
    """Turn a value into JSON; bytes are taken for JSON that is ready."""
    if isinstance(value, PREENCODED):
        return bytes(value)
    try:
        return _encode_json(value)
    except UnicodeEncodeError:  # half of a surrogate pair: JSON can say it, as an escape
        return json.dumps(value, separators=(",", ":")).encode("ascii")


def decode(raw: bytes, content_type: str) -> Any:
    """Turn the bytes of one message into a value."""
    if is_json(content_type):
        try:
            return _decode_json(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            # JSON, and more than msgspec takes: half a surrogate pair, a very large number.
            return json.loads(raw)
    return raw.decode() if is_text(content_type) else raw


def _offset(place: int | str | None) -> str | None:
    return print_offset(place) if isinstance(place, int) else place


def join_messages(messages: Iterable[Message]) -> bytes:
    """Put the messages of a byte stream together; TypeError for JSON, which has no such form."""
    parts: list[bytes] = []
    for message in messages:
        if is_json(message.content_type):
            raise TypeError("the messages of a JSON stream are values: use read()")
        parts.append(message.raw)
    return b"".join(parts)
