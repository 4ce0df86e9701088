"""JSON messages to typed columns. A bad record costs its own row and no other.

Whole blocks go through Arrow's parser, about a million rows a second. It refuses a block for one
bad record, so a block that it refuses is halved until the rest is small, and that is read record by
record (`row_values`). It must never see what is no JSON object: it takes two records for one, one
for two, and dies of a bare `null`. So each record is looked at before; that is cheap.
"""

import json
import sys
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

_SMALL: Final = 256  # records; halving further costs more than reading each


class _AnyObject(msgspec.Struct):
    """Any JSON object: its fields are passed over."""


_check: Final = msgspec.json.Decoder(_AnyObject).decode


class Decoder:
    """Decodes messages to the columns of a schema."""

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
        """Give the columns, a row for each message, and which rows are bad: those are all null."""
        records = values.to_pylist()
        bad = [index for index, record in enumerate(records) if not is_object(record)]
        for index in bad:
            records[index] = b"{}"
        return self._decode(records, 0, bad), sorted(bad)

    def _decode(self, records: list[bytes], first: int, bad: list[int]) -> pa.Table:
        """Decode records of which the first is the row `first`; more bad rows are added."""
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
        """Decode all at once; None if anything is wrong with any."""
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
    """Tell whether a message is one JSON object, in UTF-8."""
    try:
        _check(record)
        if not record.isascii():
            record.decode()
    except (ValueError, RecursionError):
        return False
    return True


def _has_infinity(column: pa.ChunkedArray) -> bool:
    """Tell whether a number was too large, of which Arrow says nothing: JSON has no infinity."""
    kind = column.type
    if pa.types.is_struct(kind):
        return any(map(_has_infinity, column.flatten()))
    if pa.types.is_list(kind):
        return _has_infinity(pc.list_flatten(column))
    return pa.types.is_floating(kind) and pc.any(pc.is_inf(column)).as_py() is True


def _is_plain(kind: pa.DataType, *, is_top: bool = False) -> bool:
    """Tell whether Arrow's parser knows the type: no map, and dates and times only as columns."""
    if pa.types.is_struct(kind):
        return all(_is_plain(kind.field(index).type) for index in range(kind.num_fields))
    if pa.types.is_map(kind):
        return False
    if pa.types.is_list(kind):
        return _is_plain(kind.value_type)
    return is_top or not pa.types.is_temporal(kind)


# ---- row values ----------------------------------------------------------------------------------
# JSON to the values of a schema, record by record: the rule book of `decode`, and its last
# resort.
#
# A value is taken only if it is of the column's type: whole numbers for whole types and within
# their range, any number for float and double, a number or a text of one for decimals, ISO 8601
# texts for dates and times. A time without a zone is in UTC. A column that is missing or null is
# null.


Convert = Callable[[Any], Any]
Parse = Callable[[bytes], dict[str, Any]]
_FLOAT_MAX: Final = 3.4028235677973364e38  # what still rounds to the largest float, not beyond


class BadRecord(ValueError):
    """The record is no JSON object of the schema."""


class _Real(str):
    """A number with a point or an exponent, as it is written."""

    __slots__ = ()


def _refuse(value: object) -> Any:
    raise BadRecord(f"{value!r} is not of the column's type")


_load: Final = json.JSONDecoder(parse_float=_Real, parse_constant=_refuse).decode


def record_parser(schema: pa.Schema) -> Parse:
    """Make what turns the text of a record into the values of a schema; raises BadRecord."""
    fields = [(field.name, _converter(field.type)) for field in schema]

    def parse(raw: bytes) -> dict[str, Any]:
        try:
            document = _load(raw.decode())
        except (ValueError, RecursionError) as error:
            raise BadRecord(str(error)) from None
        if not isinstance(document, dict):
            _refuse(document)
        return {name: convert(document.get(name)) for name, convert in fields}

    return parse


def _converter(kind: pa.DataType) -> Convert:
    convert = _converter_of_value(kind)
    return lambda value: None if value is None else convert(value)


def _converter_of_value(kind: pa.DataType) -> Convert:
    if pa.types.is_boolean(kind):
        return _boolean
    if pa.types.is_integer(kind):
        return _integer(kind.bit_width)
    if pa.types.is_floating(kind):
        return _real(kind)
    if pa.types.is_string(kind):
        return _text
    if pa.types.is_struct(kind):
        return _struct(kind)
    if pa.types.is_map(kind):
        return _map(kind)
    if pa.types.is_list(kind):
        return _list(kind)
    return lambda value: parse_texts(pa.array([_number_or_text(value, kind)]), kind)[0].as_py()


def parse_texts(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Turn texts into dates, times or decimals; BadRecord if one of them is none."""
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid as error:
        if not pa.types.is_timestamp(kind) or kind.tz is None:
            raise BadRecord(str(error)) from None
    try:
        return texts.cast(pa.timestamp(kind.unit)).cast(kind)  # without a zone: in UTC
    except pa.ArrowInvalid as error:
        raise BadRecord(str(error)) from None


def _boolean(value: Any) -> Any:
    return value if isinstance(value, bool) else _refuse(value)


def _integer(bits: int) -> Convert:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def convert(value: Any) -> Any:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return value if is_whole and low <= value <= high else _refuse(value)

    return convert


def _real(kind: pa.DataType) -> Convert:
    high = _FLOAT_MAX if kind.bit_width == 32 else sys.float_info.max

    def convert(value: Any) -> Any:
        if not isinstance(value, _Real | int) or isinstance(value, bool):
            return _refuse(value)
        try:
            number = float(value)
        except OverflowError:
            return _refuse(value)
        return number if abs(number) <= high else _refuse(value)

    return convert


def _text(value: Any) -> Any:
    if not isinstance(value, str) or isinstance(value, _Real):
        return _refuse(value)
    try:
        value.encode()
    except UnicodeEncodeError:
        return _refuse(value)
    return value


def _number_or_text(value: Any, kind: pa.DataType) -> str:
    """Give the text that `parse_texts` reads: numbers are taken for decimals only."""
    if pa.types.is_decimal(kind) and isinstance(value, _Real | int) and not isinstance(value, bool):
        return str(value)
    text: str = _text(value)
    return text


def _struct(kind: pa.DataType) -> Convert:
    fields = [
        (kind.field(index).name, _converter(kind.field(index).type))
        for index in range(kind.num_fields)
    ]

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            return _refuse(value)
        return {name: inner(value.get(name)) for name, inner in fields}

    return convert


def _list(kind: pa.DataType) -> Convert:
    inner = _converter(kind.value_type)

    def convert(value: Any) -> Any:
        return [inner(each) for each in value] if isinstance(value, list) else _refuse(value)

    return convert


def _map(kind: pa.DataType) -> Convert:
    inner = _converter(kind.item_type)

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            return _refuse(value)
        return [(_text(name), inner(each)) for name, each in value.items()]

    return convert
