"""The messages of a batch: their media type, their payload, and their extras.

Extras are keys, timestamps and headers. The extras of a batch are encoded as one block of columns.
The block is stored and sent unchanged. All integers are little-endian. The block contains:

    columns     u32 flags that say which columns follow: 0x1 keys, 0x2 timestamps, 0x4 headers
    timestamps  an i64 for each message, in ms since 1970; -2^63 if the message has no timestamp
    keys        a u32 for each message: the length of its key, or 0xffffffff if it has no key; then
                the bytes of all keys
    headers     a u32: the number of bytes that follow; then a msgpack array with one element for
                each message: nil, or an array of [name, value] pairs
"""

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from semel.model.limits import (
    HEADER_NAME_CHARACTERS_MAX,
    HEADER_VALUE_BYTES_MAX,
    HEADERS_PER_MESSAGE_MAX,
    MESSAGE_KEY_BYTES_MAX,
    NUMBER_MAX,
)
from semel.model.steps import STEP_BYTES, Steps, finish

# ---- payload -------------------------------------------------------------------------------------


def split_messages(
    payload: bytes, count: int, lengths: bytes, *, is_joined: bool
) -> Iterator[bytes]:
    """Yield the messages in `payload`. With `is_joined`, there is a comma between messages."""
    if count == 1:
        yield payload
        return
    at = 0
    for length in struct.unpack(f"<{count}I", lengths):
        yield payload[at : at + length]
        at += length + is_joined


# ---- extras --------------------------------------------------------------------------------------


Header = tuple[str, bytes]

# The bits that say which columns a block of extras has.
HAS_KEYS: Final = 1
HAS_TIMESTAMPS: Final = 2
HAS_HEADERS: Final = 4
_ALL: Final = HAS_KEYS | HAS_TIMESTAMPS | HAS_HEADERS
NO_KEY: Final = 0xFFFF_FFFF
NO_TIMESTAMP: Final = -(2**63)
_U32: Final = struct.Struct("<I")

_Name = Annotated[str, Meta(min_length=1, max_length=HEADER_NAME_CHARACTERS_MAX)]
_Value = Annotated[bytes, Meta(max_length=HEADER_VALUE_BYTES_MAX)]
_Headers = Annotated[list[tuple[_Name, _Value]], Meta(max_length=HEADERS_PER_MESSAGE_MAX)]
_decode_headers: Final = msgspec.msgpack.Decoder(list[_Headers | None]).decode
_encode_headers: Final = msgspec.msgpack.Encoder().encode
_split_headers: Final = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
# The elements of messages without headers: nil and an empty array.
_NO_HEADERS: Final = (msgspec.Raw(b"\xc0"), msgspec.Raw(b"\x90"))
_HEADERS_PER_STEP: Final = 500  # messages whose headers are checked in one step
_ARRAY: Final = struct.Struct(">BH")  # msgpack: the beginning of an array
_ARRAY_CODE: Final = 0xDC


class _Columns(NamedTuple):
    """The columns of a block of extras, still encoded. A missing column is empty."""

    timestamps: memoryview
    key_lengths: memoryview
    keys: memoryview
    headers: memoryview


def encode_extras(
    count: int,
    *,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Sequence[Header]] | None = None,
    timestamps: Sequence[int | None] | None = None,
) -> bytes:
    """Return the encoded extras of `count` messages.

    The result is empty if no message has a key, a header or a timestamp. Raises ValueError if a
    column does not have exactly one element per message.
    """
    for column in (keys, headers, timestamps):
        if column is not None and len(column) != count:
            raise ValueError(
                f"keys, headers and timestamps must each have {count} items for {count} messages"
            )
    times = lengths = names = packed = b""
    if timestamps is not None and any(time is not None for time in timestamps):
        times = struct.pack(
            f"<{count}q", *(NO_TIMESTAMP if time is None else time for time in timestamps)
        )
    if keys is not None and any(key is not None for key in keys):
        sizes = [NO_KEY if key is None else len(key) for key in keys]
        lengths = struct.pack(f"<{count}I", *sizes)
        names = b"".join([key for key in keys if key])
    if headers is not None and any(headers):
        packed = pack_headers(headers)
    return pack_columns(timestamps=times, key_lengths=lengths, keys=names, headers=packed)


def pack_headers(headers: Sequence[Sequence[Header] | None]) -> bytes:
    """Return the headers of a batch, encoded as a column. `headers` has one item per message."""
    return _encode_headers([list(pairs) if pairs else None for pairs in headers])


def pack_columns(
    *, timestamps: bytes = b"", key_lengths: bytes = b"", keys: bytes = b"", headers: bytes = b""
) -> bytes:
    """Return a block of extras made from encoded columns. Empty columns are left out."""
    columns = (
        HAS_TIMESTAMPS * bool(timestamps)
        | HAS_KEYS * bool(key_lengths)
        | HAS_HEADERS * bool(headers)
    )
    if not columns:
        return b""
    sized = _U32.pack(len(headers)) + headers if headers else b""
    return b"".join((_U32.pack(columns), timestamps, key_lengths, keys, sized))


def find_extras_fault(extras: bytes, count: int) -> str | None:
    """Return what is wrong with the extras of `count` messages, or None if they are valid."""
    return finish(extras_fault_steps(extras, count))


def extras_fault_steps(extras: bytes, count: int) -> Steps[str | None]:
    """Do the same as `find_extras_fault`, in steps."""
    try:
        columns = _columns(extras, count)
        if columns.headers and (yield from _count_headers(columns.headers)) != count:
            return "the array of headers must have one element for each message"
    except (ValueError, struct.error, RecursionError) as error:
        # Errors from msgspec and from decoding UTF-8 are also ValueErrors.
        return f"the keys, timestamps or headers are malformed: {error}"
    if columns.keys and max(_lengths_of(columns.key_lengths)) > MESSAGE_KEY_BYTES_MAX:
        return f"a message key can have at most {MESSAGE_KEY_BYTES_MAX} bytes"
    if not all(time is None or abs(time) <= NUMBER_MAX for time in _times(columns)):
        return f"a timestamp must be at most {NUMBER_MAX} ms before or after 1970-01-01"
    return None


def _count_headers(headers: memoryview) -> Steps[int]:
    """Return for how many messages there are headers. Raises ValueError if they are invalid."""
    if len(headers) <= STEP_BYTES:
        return len(_decode_headers(headers))
    elements = _split_headers(headers)
    for start in range(0, len(elements), _HEADERS_PER_STEP):
        part = elements[start : start + _HEADERS_PER_STEP]
        _decode_headers(_ARRAY.pack(_ARRAY_CODE, len(part)) + b"".join(part))
        yield
    return len(elements)


def keys_of(extras: bytes, count: int) -> list[bytes | None]:
    """Return each message's key, or None for a message without a key. `extras` must be valid."""
    columns = _columns(extras, count)
    if not columns.key_lengths:
        return [None] * count
    data = bytes(columns.keys)
    keys: list[bytes | None] = []
    at = 0
    for length in columns.key_lengths.cast("I"):
        if length == NO_KEY:
            keys.append(None)
        else:
            keys.append(data[at : at + length])
            at += length
    return keys


def timestamps_of(extras: bytes, count: int) -> list[int | None]:
    """Return each message's timestamp, or None if it is missing. `extras` must be valid."""
    return _times(_columns(extras, count)) or [None] * count


def headers_of(extras: bytes, count: int) -> list[list[Header]]:
    """Return the headers of each message. `extras` must be valid."""
    columns = _columns(extras, count)
    if not columns.headers:
        return [[] for _ in range(count)]
    return [pairs or [] for pairs in _decode_headers(columns.headers)]


def slice_extras(extras: bytes, count: int, start: int, end: int) -> bytes:
    """Return the extras of the messages from index `start` up to, but not including, `end`.

    `extras` must be the valid extras of all `count` messages.
    """
    columns = _columns(extras, count)
    times = columns.timestamps[8 * start : 8 * end]
    if all(time == NO_TIMESTAMP for time in times.cast("q")):
        times = times[:0]
    lengths = columns.key_lengths[4 * start : 4 * end]
    before = sum(_lengths_of(columns.key_lengths[: 4 * start]))
    keys = columns.keys[before : before + sum(_lengths_of(lengths))]
    if all(length == NO_KEY for length in lengths.cast("I")):
        lengths = lengths[:0]
    return pack_columns(
        timestamps=bytes(times),
        key_lengths=bytes(lengths),
        keys=bytes(keys),
        headers=_slice_headers(columns.headers, start, end),
    )


def _slice_headers(headers: memoryview, start: int, end: int) -> bytes:
    """Return the encoded headers of some messages. The result is empty if they have none.

    The headers are not decoded, because that takes 80 ms for a long batch with many headers.
    """
    elements = _split_headers(headers)[start:end] if headers else []
    if all(element in _NO_HEADERS for element in elements):
        return b""
    return _encode_headers(elements)


def _columns(extras: bytes, count: int) -> _Columns:
    """Split a block of extras into its columns.

    Raises ValueError or `struct.error` if the block is too short, has bytes after the last column,
    has no columns, or has unknown columns.
    """
    view = memoryview(extras)
    columns: int = _U32.unpack_from(view)[0]
    if not columns or columns & ~_ALL:
        raise ValueError("unknown columns")
    timestamps, view = _take(view[4:], 8 * count if columns & HAS_TIMESTAMPS else 0)
    key_lengths, view = _take(view, 4 * count if columns & HAS_KEYS else 0)
    keys, view = _take(view, sum(_lengths_of(key_lengths)))
    headers = view[:0]
    if columns & HAS_HEADERS:
        packed_bytes: int = _U32.unpack_from(view)[0]
        headers, view = _take(view[4:], packed_bytes)
        if not headers:
            raise ValueError("no headers")
    if view:
        raise ValueError("there are bytes after the last column")
    return _Columns(timestamps, key_lengths, keys, headers)


def _take(view: memoryview, size: int) -> tuple[memoryview, memoryview]:
    if size > len(view):
        raise ValueError("truncated")
    return view[:size], view[size:]


def _lengths_of(key_lengths: memoryview) -> list[int]:
    return [length for length in key_lengths.cast("I") if length != NO_KEY]


def _times(columns: _Columns) -> list[int | None]:
    return [None if time == NO_TIMESTAMP else time for time in columns.timestamps.cast("q")]


# ---- media types ---------------------------------------------------------------------------------
# A media type is stored as it was sent. Comparisons ignore case and parameters.

DEFAULT_MEDIA_TYPE: Final = "application/octet-stream"
JSON_MEDIA_TYPE: Final = "application/json"


@lru_cache(maxsize=256)
def normalise(content_type: str) -> str:
    """Return the media type of a Content-Type value, in lower case and without parameters."""
    return content_type.partition(";")[0].strip().lower()


def same_media_type(media_type: str | None, stored: str) -> bool:
    """Return True if two media types are the same. None means the default media type."""
    return normalise(media_type or DEFAULT_MEDIA_TYPE) == normalise(stored)


def is_json(content_type: str) -> bool:
    """Return True if a stream with this content type contains JSON messages."""
    return content_type == JSON_MEDIA_TYPE or normalise(content_type) == JSON_MEDIA_TYPE


def is_text(content_type: str) -> bool:
    """Return True if a stream with this content type contains text messages."""
    return normalise(content_type).startswith("text/")
