"""Rows as JSON objects, column by column: no Python runs for each row of the usual types.

Each column becomes an array of JSON texts, and one join makes the objects of them. What JSON has no
word for is written as people expect: times as ISO 8601 (in UTC, if they are instants), dates as
YYYY-MM-DD, decimals as numbers with all their digits, binary as base64, NaN and infinity as null.
"""

from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

_NULL: Final = "null"
_DAY: Final = 24 * 60 * 60 * 1_000_000  # microseconds
_MICROS_MIN: Final = -719_162 * _DAY  # the year 1
_MICROS_MAX: Final = 2_932_897 * _DAY - 1  # the end of 9999
_quote: Final = msgspec.json.Encoder().encode


def json_objects(names: Sequence[str], columns: Sequence[pa.Array]) -> pa.Array:
    """Give one object for each row, nulls kept as null; a string array without nulls."""
    parts: list[Any] = []
    lead = "{"
    for name, column in zip(names, columns, strict=True):
        parts += [f"{lead}{_quote(name).decode()}:", json_texts(column)]
        lead = ","
    return pc.binary_join_element_wise(*parts, "}", "")


def json_texts(array: pa.Array) -> pa.Array:
    """Give the JSON text of each value; TypeError if the type has none."""
    for is_kind, texts in _KINDS:
        if is_kind(array.type):
            found = texts(array)
            return pc.fill_null(found, _NULL) if found.null_count else found
    raise TypeError(f"the type {array.type} has no form in JSON")


# ---- texts of one type, null where the value is --------------------------------------------------


def _plain(array: pa.Array) -> pa.Array:
    return pc.cast(array, pa.string())


def _float(array: pa.Array) -> pa.Array:
    finite = pc.is_finite(array)
    if not pc.all(finite, min_count=0).as_py():
        array = pc.if_else(finite, array, pa.scalar(None, array.type))
    return pc.cast(array, pa.string())


def _quoted(array: pa.Array) -> pa.Array:
    """Put quotes around texts that need no escapes."""
    return pc.binary_join_element_wise('"', pc.cast(array, pa.string()), '"', "")


def _string(array: pa.Array) -> pa.Array:
    array = pc.cast(array, pa.string())
    if not _needs_escapes(array):
        return _quoted(array)
    texts = [None if raw is None else _escaped(raw) for raw in array.view(pa.binary()).to_pylist()]
    return pa.array(texts, pa.binary()).view(pa.string())


def _escaped(raw: bytes) -> bytes:
    """Quote a text. What is no UTF-8 stays as it is: the server refuses it and names its row."""
    try:
        return _quote(raw.decode())
    except UnicodeDecodeError:
        return b'"%b"' % raw


def _needs_escapes(array: pa.Array) -> bool:
    _, offsets, data = array.buffers()
    if data is None or not len(array):
        return False
    first, last = np.frombuffer(offsets, np.int32)[[array.offset, array.offset + len(array)]]
    found = np.frombuffer(data, np.uint8, int(last - first), int(first))
    return bool(((found < 0x20) | (found == 0x22) | (found == 0x5C)).any())


def _timestamp(array: pa.Array) -> pa.Array:
    # Without its zone an instant is in UTC; to print it with a zone takes thirty times as long.
    times = pc.cast(array, pa.timestamp("us"))
    _require_four_digits(times, pa.int64(), _MICROS_MIN, _MICROS_MAX)
    texts = pc.cast(times, pa.string())
    texts = pc.replace_substring(texts, " ", "T", max_replacements=1)
    return pc.binary_join_element_wise('"', texts, '"' if array.type.tz is None else 'Z"', "")


def _date(array: pa.Array) -> pa.Array:
    _require_four_digits(array, pa.int32(), _MICROS_MIN // _DAY, _MICROS_MAX // _DAY)
    return _quoted(array)


def _require_four_digits(array: pa.Array, kind: pa.DataType, low: int, high: int) -> None:
    """Refuse years that ISO 8601 has no digits for; Arrow would print something else."""
    found = pc.min_max(array.view(kind)).as_py()
    if found["min"] is not None and not low <= found["min"] <= found["max"] <= high:
        raise ValueError("a year is not within 1 to 9999: cast the column to string, or drop it")


def _binary(array: pa.Array) -> pa.Array:
    encoded = [None if raw is None else b64encode(raw) for raw in array.to_pylist()]
    return _quoted(pa.array(encoded, pa.binary()).view(pa.string()))


def _struct(array: pa.StructArray) -> pa.Array:
    names = [field.name for field in array.type]
    if not names:
        texts = pa.array(["{}"] * len(array), pa.string())
    else:
        texts = json_objects(names, array.flatten())
    return _where_there(array, texts)


def _list(array: pa.Array) -> pa.Array:
    return _enclosed(array, "[", json_texts(array.flatten()), "]")


def _map(array: pa.MapArray) -> pa.Array:
    entries = array.cast(_as_list(array.type))
    keys, values = entries.flatten().flatten()
    names = _string(keys) if types.is_string(keys.type) else _quoted(keys)
    pairs = pc.binary_join_element_wise(names, json_texts(values), ":")
    return _enclosed(entries, "{", pairs, "}")


def _as_list(type_: pa.MapType) -> pa.ListType:
    fields = [pa.field("key", type_.key_type, nullable=False), ("value", type_.item_type)]
    return pa.list_(pa.struct(fields))


def _enclosed(array: pa.Array, start: str, items: pa.Array, end: str) -> pa.Array:
    """Join the items of each list."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(array) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), items), ",")
    return _where_there(array, pc.binary_join_element_wise(start, joined, end, ""))


def _where_there(array: pa.Array, texts: pa.Array) -> pa.Array:
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
