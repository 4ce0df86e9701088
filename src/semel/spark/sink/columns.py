"""Finds the columns of a DataFrame that the sink uses, and checks their types."""

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

from msgspec import Struct
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from semel.spark.options import SparkOptionError

_TEXT: Final = (StringType, BinaryType)
_NO_NAMES: Final = (ArrayType, BinaryType, MapType, StructType)
_NO_JSON: Final = frozenset({"variant", "geometry", "geography"})
_AS_SOURCE: Final = "array<struct<key string, value binary>>"


class SinkColumns(Struct, frozen=True):
    """The index of each column that the sink uses. An index is None if the column is not used.

    If there is no column `value`, each row is written as a JSON object, and `named` contains the
    index and the name of each column in that object. If there is a column `value`, `named` is
    empty.
    """

    value: int | None
    stream: int | None
    key: int | None
    headers: int | None
    timestamp: int | None
    named: tuple[tuple[int, str], ...]


def find_columns(schema: StructType, stream: str | None, topic: str | None = None) -> SinkColumns:
    """Return the indices of the columns that the sink uses.

    `stream` and `topic` are the values of these options. If both are None, `schema` must have a
    column named `stream`. With a topic, a column named `key` is always the key of the messages.
    Raises SparkOptionError if a DataFrame with this schema cannot be written.
    """
    names = [name.lower() for name in schema.names]
    indices = {name: index for index, name in enumerate(names)}
    _require_once(name for name in names if name in ("stream", "value"))
    route = None if stream is not None or topic is not None else indices.get("stream")
    if route is None and stream is None and topic is None:
        raise SparkOptionError(
            "no stream is set: add .option('stream', 'totals'), or add a column named 'stream'"
        )
    if route is not None:
        _require(schema, route, (StringType,), "string")
    value = indices.get("value")
    key = indices.get("key") if value is not None or topic is not None else None
    if key is not None:
        _require_once(name for name in names if name == "key")
        advice = "" if topic is None else ", because the key selects the partition: cast the column"
        _require(schema, key, _TEXT, "string or binary", advice)
    if value is None:
        return SinkColumns(None, route, key, None, None, _named(schema, {route, key}))
    _require(schema, value, _TEXT, "string or binary", " (use to_json(struct(*)) for whole rows)")
    _require_once(name for name in names if name in ("headers", "timestamp"))
    headers, timestamp = indices.get("headers"), indices.get("timestamp")
    if headers is not None and not _is_headers(schema.fields[headers].dataType):
        _refuse(schema, headers, _AS_SOURCE)
    if timestamp is not None:
        _require(schema, timestamp, (TimestampType, TimestampNTZType), "timestamp")
    return SinkColumns(value, route, key, headers, timestamp, ())


def _named(schema: StructType, others: Collection[int | None]) -> tuple[tuple[int, str], ...]:
    """Return the columns of the JSON object: all columns whose indices are not in `others`."""
    named = [(at, field.name) for at, field in enumerate(schema.fields) if at not in others]
    for at, name in named:
        _require_json(name, schema.fields[at].dataType)
    if not named:
        raise SparkOptionError("there is no column with data: add at least one")
    _require_once(name for _, name in named)
    return tuple(named)


def _require_once(names: Iterable[str]) -> None:
    """Raise SparkOptionError if a name occurs twice, because one of the columns would be lost."""
    for name, count in Counter(names).items():
        if count > 1:
            raise SparkOptionError(f"two columns are named {name!r}: rename or drop one of them")


def _require(
    schema: StructType, at: int, kinds: tuple[type[DataType], ...], expected: str, advice: str = ""
) -> None:
    if not isinstance(schema.fields[at].dataType, kinds):
        _refuse(schema, at, expected, advice)


def _refuse(schema: StructType, at: int, expected: str, advice: str = "") -> None:
    field = schema.fields[at]
    kind = field.dataType.simpleString()
    raise SparkOptionError(f"the column {field.name!r} is {kind}; expected {expected}{advice}")


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    parts = kind.elementType.fields
    return (
        len(parts) == 2
        and isinstance(parts[0].dataType, StringType)
        and isinstance(parts[1].dataType, _TEXT)
    )


def _require_json(name: str, kind: DataType) -> None:
    """Raise SparkOptionError if values of type `kind` cannot be written as JSON."""
    if isinstance(kind, ArrayType):
        _require_json(name, kind.elementType)
    elif isinstance(kind, MapType):
        if isinstance(kind.keyType, _NO_NAMES):
            raise SparkOptionError(
                f"the column {name!r} has the type {kind.simpleString()}, but the keys of a JSON"
                " object must be strings: cast the keys of the map to string"
            )
        _require_json(name, kind.valueType)
    elif isinstance(kind, StructType):
        for field in kind.fields:
            _require_json(f"{name}.{field.name}", field.dataType)
    elif kind.typeName() in _NO_JSON or "interval" in kind.typeName():
        raise SparkOptionError(
            f"the column {name!r} is {kind.simpleString()}, which cannot be written as JSON:"
            " cast the column to string, or drop it"
        )
