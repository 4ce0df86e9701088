"""JSON messages to typed columns. A bad record costs its own row and no other.

Whole blocks go through Arrow's parser, about a million rows a second. It refuses a block for one
bad record, so a block that it refuses is halved until the rest is small, and that is read record by
record (`row_values`). It must never see what is no JSON object: it takes two records for one, one
for two, and dies of a bare `null`. So each record is looked at before; that is cheap.
"""

from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from semel.spark.row_values import BadRecord, parse_texts, record_parser

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
