"""The columns that a read returns: the message fields, or the columns of the user's schema."""

from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from semel.model.messages import Header
from semel.spark.options import SourceOptions, SparkOptionError
from semel.spark.source.decode import Decoder
from semel.spark.source.frames import FrameRows
from semel.spark.topics import partition_number

_HEADERS: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
_PLAIN: Final = (
    ("key", BinaryType()),
    ("value", BinaryType()),
    ("stream", StringType()),
    ("partition", IntegerType()),
    ("offset", LongType()),
    ("timestamp", TimestampType()),
)
CORRUPT: Final = "_corrupt_record"
_FILLED: Final[dict[str, DataType]] = {
    "_offset": LongType(),
    "_timestamp": TimestampType(),
    "_stream": StringType(),
    CORRUPT: StringType(),
}
_DECODED: Final = (
    BooleanType,
    ByteType,
    ShortType,
    IntegerType,
    LongType,
    FloatType,
    DoubleType,
    StringType,
    DateType,
    TimestampType,
    TimestampNTZType,
    DecimalType,
)
_TIME: Final = pa.timestamp("us", tz="UTC")


class SchemaError(SparkOptionError):
    """Raised if JSON cannot be decoded to the user's schema. The message says what to change."""


def source_schema(options: SourceOptions) -> StructType:
    """Return the schema of a read for which the user gives no schema."""
    fields = [StructField(name, kind) for name, kind in _PLAIN]
    if options.has_headers:
        fields.append(StructField("headers", _HEADERS))
    return StructType(fields)


def columns_for(options: SourceOptions, schema: StructType) -> "Columns":
    """Return the converter that makes Arrow batches with this schema.

    Raises SchemaError if JSON cannot be decoded to the schema.
    """
    if schema == source_schema(options):
        return PlainColumns(schema, topic=options.topic, has_headers=options.has_headers)
    return DecodedColumns(schema)


class Columns:
    """Base class of the converters from messages to Arrow batches for Spark."""

    has_headers = False

    def __init__(self, schema: StructType) -> None:
        self.arrow: pa.Schema = to_arrow_schema(schema, timezone="UTC")

    def batch(self, rows: FrameRows, stream: str) -> pa.RecordBatch:
        """Convert messages of `stream` to an Arrow batch with the schema `self.arrow`."""
        raise NotImplementedError


class PlainColumns(Columns):
    """Makes the columns key, value, stream, partition, offset and timestamp.

    With `has_headers` there is also a column for the headers. The partition is the number of the
    stream in `topic`. It is 0 if `topic` is None, because a stream does not know its topic.
    """

    def __init__(self, schema: StructType, *, topic: str | None, has_headers: bool) -> None:
        super().__init__(schema)
        self._topic = topic
        self.has_headers = has_headers

    def batch(self, rows: FrameRows, stream: str) -> pa.RecordBatch:
        count = len(rows.offsets)
        partition = 0 if self._topic is None else partition_number(self._topic, stream)
        columns: list[Any] = [
            pa.nulls(count, pa.binary()) if rows.keys is None else rows.keys,
            rows.values,
            _constant(stream, pa.string(), count),
            _constant(partition, pa.int32(), count),
            pa.array(rows.offsets),
            _times(rows),
        ]
        if self.has_headers:
            kind = self.arrow.field("headers").type
            columns.append(
                pa.nulls(count, kind) if rows.headers is None else _headers(rows.headers, kind)
            )
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow)


class DecodedColumns(Columns):
    """Decodes messages from JSON to the columns of the user's schema."""

    def __init__(self, schema: StructType) -> None:
        for field in schema.fields:
            _check_field(field)
        super().__init__(schema)
        self._schema = schema
        self._decoder = Decoder(
            pa.schema([field for field in self.arrow if field.name not in _FILLED])
        )

    def __reduce__(self) -> Any:
        """Pickle only the schema, because a decoder cannot be pickled."""
        return DecodedColumns, (self._schema,)

    def batch(self, rows: FrameRows, stream: str) -> pa.RecordBatch:
        table, bad = self._decoder.decode(rows.values)
        filled = {
            "_offset": lambda: pa.array(rows.offsets),
            "_timestamp": lambda: _times(rows),
            "_stream": lambda: _constant(stream, pa.string(), len(rows.offsets)),
            CORRUPT: lambda: _texts(rows.values, bad),
        }
        columns = [
            filled[name]() if name in filled else table.column(name).combine_chunks()
            for name in self.arrow.names
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow)


# ---- single columns ------------------------------------------------------------------------------


def _constant(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


def _times(rows: FrameRows) -> pa.Array:
    return pa.array(rows.times_us).view(_TIME)


def _headers(headers: list[list[Header] | None], kind: pa.DataType) -> pa.Array:
    entries = [
        None if pairs is None else [{"key": name, "value": value} for name, value in pairs]
        for pairs in headers
    ]
    return pa.array(entries, kind)


def _texts(values: pa.BinaryArray, bad: list[int]) -> pa.Array:
    """Return the text of each record whose index is in `bad`, and null for each other record."""
    count = len(values)
    if not bad:
        return pa.nulls(count, pa.string())
    texts = pa.array([values[index].as_py().decode(errors="replace") for index in bad])
    indices = np.full(count, -1)
    indices[bad] = np.arange(len(bad))
    return texts.take(pa.array(indices, mask=indices < 0))


# ---- the user's schema ---------------------------------------------------------------------------


def _check_field(field: StructField) -> None:
    expected = _FILLED.get(field.name)
    if expected is not None and field.dataType != expected:
        raise SchemaError(
            f"the type of the column {field.name!r} is fixed: write `{field.name}"
            f" {expected.simpleString()}` in the schema"
        )
    _check_type(field.name, field.dataType)
    if not field.nullable:
        raise SchemaError(
            f"the column {field.name!r} is declared not null, but it is null if a record cannot"
            " be decoded: remove NOT NULL from the schema"
        )


def _check_type(name: str, kind: DataType) -> None:
    if isinstance(kind, StructType):
        for field in kind.fields:
            _check_type(f"{name}.{field.name}", field.dataType)
            _check_nullable(f"{name}.{field.name}", is_nullable=field.nullable)
    elif isinstance(kind, ArrayType):
        _check_nullable(name, is_nullable=kind.containsNull)
        _check_type(name, kind.elementType)
    elif isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        _check_nullable(name, is_nullable=kind.valueContainsNull)
        _check_type(name, kind.valueType)
    elif not isinstance(kind, _DECODED):
        raise SchemaError(
            f"the column {name!r} cannot be decoded from JSON as {kind.simpleString()}:"
            " read without a schema, and convert the column 'value'"
        )


def _check_nullable(name: str, *, is_nullable: bool) -> None:
    if not is_nullable:
        raise SchemaError(
            f"{name!r} does not allow nulls, but JSON can contain null: allow nulls in the schema"
        )
