"""Holds rows as Arrow columns, and converts them to JSON and to the body of an append.

The conversion works on whole columns. For the common types, there is no Python loop over rows.
"""

from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace
from pyarrow import types

from semel.model.messages import NO_KEY, NO_TIMESTAMP, is_json, pack_columns, pack_headers
from semel.wire.bodies import decode_batch, encode_batch, pack_batch

# The overhead of one message: 4 bytes for its length, 4 for the length of its key, 8 for its time.
_MESSAGE_BYTES: Final = 16
_SHOWN_BYTES_MAX: Final = 60


class StreamRows(Struct, frozen=True):
    """Rows that are written to one stream, as columns.

    `numbers` contains the number of each row in its partition. Errors report these numbers.
    """

    path: str
    content_type: str
    values: pa.Array
    numbers: Any
    keys: pa.Array | None = None
    headers: pa.Array | None = None
    times: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.values)

    def part(self, start: int, end: int) -> "StreamRows":
        """Return the rows from `start` up to `end`, without copying them."""
        return self._mapped(
            lambda column: column.slice(start, end - start), self.numbers[start:end]
        )

    def take(self, indices: Any) -> "StreamRows":
        """Return the rows at `indices`, in that order."""
        return self._mapped(lambda column: column.take(pa.array(indices)), self.numbers[indices])

    def _mapped(self, change: Callable[[pa.Array], pa.Array], numbers: Any) -> "StreamRows":
        columns = {name: getattr(self, name) for name in _COLUMNS}
        changed = {name: change(array) for name, array in columns.items() if array is not None}
        return replace(self, numbers=numbers, **changed)

    def sizes(self) -> Any:
        """Return the number of bytes that each row adds to a body. Headers are not counted."""
        sizes = lengths_of(self.values) + _MESSAGE_BYTES
        if self.keys is not None:
            sizes += pc.fill_null(pc.binary_length(self.keys), 0).to_numpy(zero_copy_only=False)
        return sizes

    def body(self) -> bytes:
        """Encode the rows in the batch format, as the body of an append request."""
        offsets, data = _buffers(self.values)
        lengths = np.diff(offsets).astype("<u4").tobytes()
        return pack_batch(
            self.content_type, lengths, [data[offsets[0] : offsets[-1]]], self._extras()
        )

    def _extras(self) -> bytes:
        times = lengths = keys = headers = b""
        if self.times is not None and self.times.null_count < len(self):
            times = _milliseconds(self.times)
        if self.keys is not None and self.keys.null_count < len(self):
            lengths, keys = _key_column(self.keys)
        if self.headers is not None and pc.max(pc.list_value_length(self.headers)).as_py():
            headers = pack_headers([_pairs(entry) for entry in self.headers.to_pylist()])
        return pack_columns(timestamps=times, key_lengths=lengths, keys=keys, headers=headers)

    def first_invalid(self) -> tuple[int, str] | None:
        """Find the first row that the server would refuse. Return its number and the reason.

        Return None if no such row is found, or if the content type is not JSON.
        """
        if not is_json(self.content_type):
            return None
        # The values are read as bytes, because they can be invalid UTF-8.
        messages = self.values.view(pa.binary()).to_pylist()
        for number, message in zip(self.numbers, messages, strict=True):
            error = decode_batch(encode_batch(self.content_type, [message])).error
            if error is not None:
                return int(number), f"{error}: {message[:_SHOWN_BYTES_MAX]!r}"
        return None


_COLUMNS: Final = ("values", "keys", "headers", "times")


def concatenate(parts: list[StreamRows]) -> StreamRows:
    """Join `parts` in the given order. All parts must belong to the same stream."""
    first = parts[0]
    if len(parts) == 1:
        return first
    columns = {
        name: pa.concat_arrays([getattr(part, name) for part in parts])
        for name in _COLUMNS
        if getattr(first, name) is not None
    }
    return replace(first, numbers=np.concatenate([part.numbers for part in parts]), **columns)


# ---- columns as bytes ----------------------------------------------------------------------------


def compact(array: pa.Array) -> pa.Array:
    """Convert an array of strings or bytes to the Arrow layout that uses 32-bit offsets."""
    if array.type in (pa.string(), pa.binary()):
        return array
    is_text = array.type in (pa.large_string(), pa.string_view())
    return array.cast(pa.string() if is_text else pa.binary())


def _buffers(array: pa.Array) -> tuple[Any, memoryview]:
    _, offsets, data = array.buffers()
    own = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    return own, memoryview(b"" if data is None else data)


def lengths_of(array: pa.Array) -> Any:
    """Return the length of each value in bytes."""
    return np.diff(_buffers(array)[0]).astype(np.int64)


def nulls_as_json(values: pa.Array) -> pa.Array:
    """Replace each missing value with the JSON text `null`."""
    if not values.null_count:
        return values
    return pc.fill_null(values, "null" if values.type == pa.string() else b"null")


def _milliseconds(times: pa.Array) -> bytes:
    micros = pc.cast(pc.cast(times, pa.timestamp("us")), pa.int64())
    millis = np.floor_divide(pc.fill_null(micros, 0).to_numpy(zero_copy_only=False), 1000)
    if times.null_count:
        millis[times.is_null().to_numpy(zero_copy_only=False)] = NO_TIMESTAMP
    raw: bytes = millis.astype("<i8").tobytes()
    return raw


def _key_column(keys: pa.Array) -> tuple[bytes, bytes]:
    empty = "" if keys.type == pa.string() else b""
    offsets, data = _buffers(pc.fill_null(keys, empty) if keys.null_count else keys)
    lengths = np.diff(offsets).astype("<u4")
    if keys.null_count:
        lengths[keys.is_null().to_numpy(zero_copy_only=False)] = NO_KEY
    return lengths.tobytes(), bytes(data[offsets[0] : offsets[-1]])


def _pairs(entries: list[dict[str, Any] | None] | None) -> list[tuple[str, bytes]] | None:
    if not entries:
        return None
    pairs = [tuple(entry.values()) for entry in entries if entry is not None]
    return [(name, _bytes(value)) for name, value in pairs]


def _bytes(value: str | bytes | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""


# ---- rows as JSON --------------------------------------------------------------------------------
# Each column is converted to an array of JSON texts. One join then combines the texts of each row
# into an object. Therefore no Python code runs for each row if the columns have common types.
#
# JSON has no type for some values. They are written as follows:
# - timestamps as ISO 8601 text, in UTC if they have a time zone
# - dates as YYYY-MM-DD
# - decimals as numbers with all their digits
# - binary values as base64
# - NaN and infinity as null


_NULL: Final = "null"
_DAY: Final = 24 * 60 * 60 * 1_000_000  # microseconds
_MICROS_MIN: Final = -719_162 * _DAY  # the start of the year 1
_MICROS_MAX: Final = 2_932_897 * _DAY - 1  # the end of the year 9999
_quote: Final = msgspec.json.Encoder().encode


def json_objects(names: Sequence[str], columns: Sequence[pa.Array]) -> pa.Array:
    """Return a string array with one JSON object for each row.

    `names` are the member names, one for each column. A missing value is written as null.
    """
    parts: list[Any] = []
    lead = "{"
    for name, column in zip(names, columns, strict=True):
        parts += [f"{lead}{_quote(name).decode()}:", json_texts(column)]
        lead = ","
    return pc.binary_join_element_wise(*parts, "}", "")


def json_texts(array: pa.Array) -> pa.Array:
    """Return the JSON text of each value. Raises TypeError if the type has no JSON form."""
    for is_kind, encode in _KINDS:
        if is_kind(array.type):
            texts = encode(array)
            return pc.fill_null(texts, _NULL) if texts.null_count else texts
    raise TypeError(f"the type {array.type} cannot be written as JSON")


# ---- encoders, one for each type -----------------------------------------------------------------
# Each encoder returns the JSON texts of an array. Where a value is null, its text is null, too.


def _plain(array: pa.Array) -> pa.Array:
    return pc.cast(array, pa.string())


def _float(array: pa.Array) -> pa.Array:
    finite = pc.is_finite(array)
    if not pc.all(finite, min_count=0).as_py():
        array = pc.if_else(finite, array, pa.scalar(None, array.type))
    return pc.cast(array, pa.string())


def _quoted(array: pa.Array) -> pa.Array:
    """Put quotes around each text. The texts must not contain characters that JSON escapes."""
    return pc.binary_join_element_wise('"', pc.cast(array, pa.string()), '"', "")


def _string(array: pa.Array) -> pa.Array:
    array = pc.cast(array, pa.string())
    if not _needs_escapes(array):
        return _quoted(array)
    texts = [None if raw is None else _escaped(raw) for raw in array.view(pa.binary()).to_pylist()]
    return pa.array(texts, pa.binary()).view(pa.string())


def _escaped(raw: bytes) -> bytes:
    """Encode a text as a JSON string.

    Invalid UTF-8 is copied unchanged. The server then refuses the row, and the error contains the
    row number.
    """
    try:
        return _quote(raw.decode())
    except UnicodeDecodeError:
        return b'"%b"' % raw


def _needs_escapes(array: pa.Array) -> bool:
    _, offsets, data = array.buffers()
    if data is None or not len(array):
        return False
    first, last = np.frombuffer(offsets, np.int32)[[array.offset, array.offset + len(array)]]
    own = np.frombuffer(data, np.uint8, int(last - first), int(first))
    return bool(((own < 0x20) | (own == 0x22) | (own == 0x5C)).any())


def _timestamp(array: pa.Array) -> pa.Array:
    # Arrow stores timestamps in UTC. Formatting a timestamp that has a zone takes thirty times as
    # long. Therefore the zone is removed first, and Z is added to the text.
    times = pc.cast(array, pa.timestamp("us"))
    _require_four_digits(times, pa.int64(), _MICROS_MIN, _MICROS_MAX)
    texts = pc.replace_substring(pc.cast(times, pa.string()), " ", "T", max_replacements=1)
    return pc.binary_join_element_wise('"', texts, '"' if array.type.tz is None else 'Z"', "")


def _date(array: pa.Array) -> pa.Array:
    _require_four_digits(array, pa.int32(), _MICROS_MIN // _DAY, _MICROS_MAX // _DAY)
    return _quoted(array)


def _require_four_digits(array: pa.Array, kind: pa.DataType, low: int, high: int) -> None:
    """Raise ValueError if a value is before year 1 or after year 9999.

    Arrow does not format such years as ISO 8601. The values are compared as integers of the type
    `kind`. `low` is the smallest valid integer, and `high` is the largest.
    """
    limits = pc.min_max(array.view(kind)).as_py()
    if limits["min"] is not None and not low <= limits["min"] <= limits["max"] <= high:
        raise ValueError(
            "a date is before year 1 or after year 9999: cast its column to string, or drop the"
            " column"
        )


def _binary(array: pa.Array) -> pa.Array:
    encoded = [None if raw is None else b64encode(raw) for raw in array.to_pylist()]
    return _quoted(pa.array(encoded, pa.binary()).view(pa.string()))


def _struct(array: pa.StructArray) -> pa.Array:
    names = [field.name for field in array.type]
    if not names:
        texts = pa.array(["{}"] * len(array), pa.string())
    else:
        texts = json_objects(names, array.flatten())
    return _where_valid(array, texts)


def _list(array: pa.Array) -> pa.Array:
    return _enclosed(array, "[", json_texts(array.flatten()), "]")


def _map(array: pa.MapArray) -> pa.Array:
    fields = [pa.field("key", array.type.key_type, nullable=False), ("value", array.type.item_type)]
    entries = array.cast(pa.list_(pa.struct(fields)))
    keys, values = entries.flatten().flatten()
    names = _string(keys) if types.is_string(keys.type) else _quoted(keys)
    pairs = pc.binary_join_element_wise(names, json_texts(values), ":")
    return _enclosed(entries, "{", pairs, "}")


def _enclosed(array: pa.Array, start: str, items: pa.Array, end: str) -> pa.Array:
    """Return the text of each list in `array`: `start`, its items separated by commas, and `end`.

    `items` contains the texts of the items of all lists, one list after the other.
    """
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(array) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), items), ",")
    return _where_valid(array, pc.binary_join_element_wise(start, joined, end, ""))


def _where_valid(array: pa.Array, texts: pa.Array) -> pa.Array:
    if not array.null_count:
        return texts
    return pc.if_else(array.is_valid(), texts, pa.scalar(None, pa.string()))


def _nothing(array: pa.Array) -> pa.Array:
    return pa.nulls(len(array), pa.string())


def _is_any(*kinds: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    return lambda type_: any(is_kind(type_) for is_kind in kinds)


_KINDS: Final[Sequence[tuple[Callable[[pa.DataType], bool], Callable[[Any], pa.Array]]]] = (
    (_is_any(types.is_integer, types.is_boolean, types.is_decimal), _plain),
    (types.is_floating, _float),
    (_is_any(types.is_string, types.is_large_string, types.is_string_view), _string),
    (types.is_timestamp, _timestamp),
    (types.is_date32, _date),
    (types.is_time, _quoted),
    (_is_any(types.is_binary, types.is_large_binary, types.is_binary_view), _binary),
    (types.is_map, _map),
    (_is_any(types.is_list, types.is_large_list), _list),
    (types.is_struct, _struct),
    (types.is_null, _nothing),
)
