"""Decodes JSON messages to typed columns. A bad record affects only its own row.

Arrow's parser is fast, but it refuses a whole block if one record is bad. A refused block is halved
until it is small. A small block is decoded record by record, with `record_parser`.

Only records that are JSON objects are passed to Arrow's parser. With any other record, the parser
can return too many or too few rows, or crash Python.
"""

import json
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

# A block of this many records is not halved again, because decoding it record by record is faster.
_SMALL: Final = 256


class _AnyObject(msgspec.Struct):
    """Any JSON object. Its members are ignored."""


_check: Final = msgspec.json.Decoder(_AnyObject).decode


class Decoder:
    """Decodes JSON messages to the columns of a schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._parse_record = record_parser(schema)
        self._is_plain = all(_is_plain(field.type, is_top=True) for field in schema)
        self._texts = [
            index for index, field in enumerate(schema) if pa.types.is_temporal(field.type)
        ]
        parsed = schema
        for index in self._texts:
            parsed = parsed.set(index, schema.field(index).with_type(pa.string()))
        self._options = pj.ParseOptions(
            explicit_schema=parsed, newlines_in_values=True, unexpected_field_behavior="ignore"
        )

    def decode(self, values: pa.BinaryArray) -> tuple[pa.Table, list[int]]:
        """Return a table with one row for each message, and the sorted indices of the bad messages.

        A bad message does not match the schema. All columns of its row are null.
        """
        records = values.to_pylist()
        bad = [index for index, record in enumerate(records) if not is_object(record)]
        for index in bad:
            records[index] = b"{}"
        return self._decode(records, 0, bad), sorted(bad)

    def _decode(self, records: list[bytes], first: int, bad: list[int]) -> pa.Table:
        """Decode `records` to a table, and append the indices of bad records to `bad`.

        `first` is the index of `records[0]` among all records.
        """
        table = self._parse_block(records) if self._is_plain else None
        if table is not None:
            return table
        if len(records) <= _SMALL or not self._is_plain:
            return self._parse_each(records, first, bad)
        half = len(records) // 2
        parts = [
            self._decode(records[:half], first, bad),
            self._decode(records[half:], first + half, bad),
        ]
        return pa.concat_tables(parts)

    def _parse_block(self, records: list[bytes]) -> pa.Table | None:
        """Decode `records` with Arrow's parser. Return None if any record is bad."""
        data = b"".join(records)
        if not data:
            return self._schema.empty_table()
        options = pj.ReadOptions(use_threads=False, block_size=len(data) + 1)
        try:
            table = pj.read_json(
                pa.BufferReader(data), read_options=options, parse_options=self._options
            )
            for index in self._texts:
                field = self._schema.field(index)
                texts = table.column(index).combine_chunks()
                table = table.set_column(index, field, parse_texts(texts, field.type))
        except (pa.ArrowInvalid, BadRecord):
            return None
        if table.num_rows != len(records) or any(map(_has_infinity, table.columns)):
            return None
        return table

    def _parse_each(self, records: list[bytes], first: int, bad: list[int]) -> pa.Table:
        rows: list[dict[str, Any]] = []
        for index, record in enumerate(records, first):
            try:
                rows.append(self._parse_record(record))
            except BadRecord:
                rows.append({})
                bad.append(index)
        return pa.Table.from_pylist(rows, self._schema)


def is_object(record: bytes) -> bool:
    """Return True if `record` is exactly one JSON object in valid UTF-8."""
    try:
        _check(record)
        if not record.isascii():
            record.decode()
    except (ValueError, RecursionError):
        return False
    return True


def _has_infinity(column: pa.ChunkedArray) -> bool:
    """Return True if the column contains infinity.

    Arrow decodes a number as infinity if the number is too large for the column's type.
    """
    kind = column.type
    if pa.types.is_struct(kind):
        return any(map(_has_infinity, column.flatten()))
    if pa.types.is_list(kind):
        return _has_infinity(pc.list_flatten(column))
    return pa.types.is_floating(kind) and pc.any(pc.is_inf(column)).as_py() is True


def _is_plain(kind: pa.DataType, *, is_top: bool = False) -> bool:
    """Return True if Arrow's parser can decode columns of this type.

    Arrow's parser cannot decode maps. It decodes dates and times only at the top level (`is_top`),
    not inside a struct or a list.
    """
    if pa.types.is_struct(kind):
        return all(_is_plain(field.type) for field in kind)
    if pa.types.is_map(kind):
        return False
    if pa.types.is_list(kind):
        return _is_plain(kind.value_type)
    return is_top or not pa.types.is_temporal(kind)


# ---- single records ------------------------------------------------------------------------------
# These functions decode records that Arrow's parser cannot decode. They follow the rules of Arrow's
# parser. A value must match the type of its column:
# - an integer column takes an integer within the range of its type
# - a float or double column takes any number
# - a decimal column takes a number, or the text of a number
# - a date or time column takes ISO 8601 text; a time without a zone is taken as UTC
# A column that is missing in a record is null.


Convert = Callable[[Any], Any]
Parse = Callable[[bytes], dict[str, Any]]
Fields = list[tuple[str, Convert]]
_FLOAT_MAX: Final = 3.4028235677973364e38  # the largest double that rounds to a finite float


class BadRecord(ValueError):
    """Raised if a record is not a JSON object, or if its values do not match the schema."""


class _Real(str):
    """The text of a JSON number that has a decimal point or an exponent."""

    __slots__ = ()


def _refuse(value: object) -> Any:
    raise BadRecord(f"the value {value!r} does not have the type of its column")


_load: Final = json.JSONDecoder(parse_float=_Real, parse_constant=_refuse).decode


def record_parser(schema: pa.Schema) -> Parse:
    """Return a function that decodes one record to a mapping from column name to value.

    The returned function raises BadRecord if the record does not match `schema`.
    """
    convert = partial(_struct, _fields(schema))

    def parse(raw: bytes) -> dict[str, Any]:
        try:
            document = _load(raw.decode())
        except (ValueError, RecursionError) as error:
            raise BadRecord(str(error)) from None
        values: dict[str, Any] = convert(document)
        return values

    return parse


def _fields(fields: Iterable[pa.Field]) -> Fields:
    return [(field.name, _converter(field.type)) for field in fields]


def _converter(kind: pa.DataType) -> Convert:
    convert = _converter_of_value(kind)
    return lambda value: None if value is None else convert(value)


def _converter_of_value(kind: pa.DataType) -> Convert:
    if pa.types.is_boolean(kind):
        return _boolean
    if pa.types.is_integer(kind):
        return partial(_integer, 2 ** (kind.bit_width - 1))
    if pa.types.is_floating(kind):
        return partial(_real, _FLOAT_MAX if kind.bit_width == 32 else sys.float_info.max)
    if pa.types.is_string(kind):
        return _text
    if pa.types.is_struct(kind):
        return partial(_struct, _fields(kind))
    if pa.types.is_map(kind):
        return partial(_map, _converter(kind.item_type))
    if pa.types.is_list(kind):
        return partial(_list, _converter(kind.value_type))
    return lambda value: parse_texts(pa.array([_number_or_text(value, kind)]), kind)[0].as_py()


def parse_texts(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert texts to dates, times or decimals. Raises BadRecord if any text is not valid."""
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid as error:
        if not pa.types.is_timestamp(kind) or kind.tz is None:
            raise BadRecord(str(error)) from None
    try:
        return texts.cast(pa.timestamp(kind.unit)).cast(kind)  # a time without a zone means UTC
    except pa.ArrowInvalid as error:
        raise BadRecord(str(error)) from None


def _boolean(value: Any) -> Any:
    return value if isinstance(value, bool) else _refuse(value)


def _is_number(value: Any, *kinds: type) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _integer(limit: int, value: Any) -> Any:
    return value if _is_number(value, int) and -limit <= value < limit else _refuse(value)


def _real(limit: float, value: Any) -> Any:
    if not _is_number(value, _Real, int):
        return _refuse(value)
    try:
        number = float(value)
    except OverflowError:
        return _refuse(value)
    return number if abs(number) <= limit else _refuse(value)


def _text(value: Any) -> Any:
    if not isinstance(value, str) or isinstance(value, _Real):
        return _refuse(value)
    try:
        value.encode()
    except UnicodeEncodeError:
        return _refuse(value)
    return value


def _number_or_text(value: Any, kind: pa.DataType) -> Any:
    """Return the text to pass to `parse_texts`. A number is accepted only for a decimal type."""
    is_number = pa.types.is_decimal(kind) and _is_number(value, _Real, int)
    return str(value) if is_number else _text(value)


def _struct(fields: Fields, value: Any) -> Any:
    if not isinstance(value, dict):
        return _refuse(value)
    return {name: convert(value.get(name)) for name, convert in fields}


def _list(convert: Convert, value: Any) -> Any:
    return [convert(each) for each in value] if isinstance(value, list) else _refuse(value)


def _map(convert: Convert, value: Any) -> Any:
    if not isinstance(value, dict):
        return _refuse(value)
    return [(_text(name), convert(each)) for name, each in value.items()]
