"""JSON to the values of a schema, record by record: the rule book of `decode`, and its last resort.

A value is taken only if it is of the column's type: whole numbers for whole types and within their
range, any number for float and double, a number or a text of one for decimals, ISO 8601 texts for
dates and times. A time without a zone is in UTC. A column that is missing or null is null.
"""

import json
import sys
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

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
