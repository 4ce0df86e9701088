"""The columns of a batch that Spark gets."""

import pickle
import struct
from datetime import UTC, datetime

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
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

from semel.model.messages import encode_extras
from semel.model.slices import Slice
from semel.spark.options import parse_source
from semel.spark.source.columns import SchemaError, columns_for, source_schema
from semel.spark.source.frames import FrameRows, rows_of
from semel.wire.bodies import encode_frames

READ = {"url": "http://127.0.0.1:4437", "stream": "orders"}
OPTIONS = parse_source(READ)
WITH_HEADERS = parse_source({**READ, "includeHeaders": "true"})
DAY = datetime(2024, 1, 1, tzinfo=UTC)
DAY_MS = int(DAY.timestamp() * 1000)


def schema_of(**kinds: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


def rows(*messages: bytes, extras: bytes = b"") -> FrameRows:
    count = len(messages)
    lengths = struct.pack(f"<{count}I", *map(len, messages)) if count > 1 else b""
    piece = Slice(5, count, b"".join(messages), lengths, False, DAY_MS, extras)
    end = 5 + count
    return rows_of(
        encode_frames("text/plain", [piece], next_offset=end, tail=end), has_headers=True
    )


def test_without_a_schema_the_columns_are_those_of_the_message() -> None:
    schema = source_schema(OPTIONS)
    assert schema.simpleString() == (
        "struct<key:binary,value:binary,stream:string,partition:int,offset:bigint,"
        "timestamp:timestamp>"
    )
    batch = columns_for(OPTIONS, schema).batch(rows(b"a", b"bc"), "orders")
    batch.validate(full=True)
    assert batch.schema == to_arrow_schema(schema, timezone="UTC")
    assert batch.to_pylist()[1] == {
        "key": None,
        "value": b"bc",
        "stream": "orders",
        "partition": 0,
        "offset": 6,
        "timestamp": DAY,
    }


def test_headers_are_a_column_if_they_are_asked_for() -> None:
    schema = source_schema(WITH_HEADERS)
    columns = columns_for(WITH_HEADERS, schema)
    extras = encode_extras(2, keys=[b"k", None], headers=[[("trace", b"\1")], []])
    batch = columns.batch(rows(b"a", b"b", extras=extras), "orders")
    batch.validate(full=True)
    assert batch.column("headers").to_pylist() == [[{"key": "trace", "value": b"\1"}], None]
    assert batch.column("key").to_pylist() == [b"k", None]
    assert columns.batch(rows(b"a"), "orders").column("headers").to_pylist() == [None]


def test_a_schema_is_decoded_and_the_columns_of_semel_are_filled_where_they_stand() -> None:
    schema = schema_of(
        _offset=LongType(),
        id=LongType(),
        _corrupt_record=StringType(),
        _stream=StringType(),
        t=StringType(),
    )
    columns = pickle.loads(pickle.dumps(columns_for(OPTIONS, schema)))
    batch = columns.batch(rows(b'{"id": 1, "t": "x"}', b'{"id": "no"}', b"\xff"), "orders")
    batch.validate(full=True)
    assert batch.schema == to_arrow_schema(schema, timezone="UTC")
    assert [tuple(row.values()) for row in batch.to_pylist()] == [
        (5, 1, None, "orders", "x"),
        (6, None, '{"id": "no"}', "orders", None),
        (7, None, "\ufffd", "orders", None),
    ]


def test_a_schema_may_hold_only_columns_of_semel() -> None:
    columns = columns_for(OPTIONS, schema_of(_timestamp=TimestampType()))
    batch = columns.batch(rows(b"x"), "orders")
    assert batch.to_pylist() == [{"_timestamp": DAY}]


@pytest.mark.parametrize(
    "kind",
    [
        BooleanType(),
        ByteType(),
        ShortType(),
        IntegerType(),
        LongType(),
        FloatType(),
        DoubleType(),
        StringType(),
        DateType(),
        TimestampType(),
        TimestampNTZType(),
        DecimalType(20, 3),
        ArrayType(IntegerType()),
        schema_of(x=LongType(), y=ArrayType(schema_of(z=DateType()))),
        MapType(StringType(), DoubleType()),
    ],
)
def test_every_type_that_is_promised_has_its_arrow_type(kind: DataType) -> None:
    schema = schema_of(a=kind)
    batch = columns_for(OPTIONS, schema).batch(rows(b"{}", b"bad"), "orders")
    batch.validate(full=True)
    assert batch.schema == to_arrow_schema(schema, timezone="UTC")


@pytest.mark.parametrize(
    ("field", "cure"),
    [
        (StructField("_offset", IntegerType()), "write `_offset bigint` in the schema"),
        (StructField("_corrupt_record", BinaryType()), "write `_corrupt_record string` in"),
        (StructField("a", BinaryType()), "cannot be decoded from JSON as binary"),
        (
            StructField("a", schema_of(b=DayTimeIntervalType())),
            "the column 'a.b' cannot be decoded",
        ),
        (StructField("a", MapType(LongType(), LongType())), "as map<bigint,bigint>"),
        (StructField("a", LongType(), nullable=False), "remove NOT NULL from the schema"),
        (
            StructField("a", StructType([StructField("b", LongType(), nullable=False)])),
            "'a.b' does not allow nulls",
        ),
        (StructField("a", ArrayType(LongType(), containsNull=False)), "allow nulls in the schema"),
        (
            StructField("a", MapType(StringType(), LongType(), valueContainsNull=False)),
            "allow nulls in the schema",
        ),
    ],
)
def test_a_schema_that_cannot_be_filled_is_refused_with_a_cure(
    field: StructField, cure: str
) -> None:
    with pytest.raises(SchemaError) as caught:
        columns_for(OPTIONS, StructType([field]))
    assert cure in str(caught.value)
