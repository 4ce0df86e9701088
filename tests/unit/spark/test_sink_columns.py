"""The roles of the columns of a DataFrame."""

import pytest
from pyspark.sql.types import StructType

from semel.spark.options import SparkOptionError
from semel.spark.sink.columns import SinkColumns, find_columns

HEADERS = "headers array<struct<key:string,value:binary>>"


def schema(ddl: str) -> StructType:
    """Parse a list of columns such as `id long, total double` without a JVM."""
    from pyspark.sql import types

    kinds: dict[str, types.DataType] = {
        "string": types.StringType(),
        "binary": types.BinaryType(),
        "long": types.LongType(),
        "timestamp": types.TimestampType(),
        "variant": types.VariantType(),
        "interval": types.DayTimeIntervalType(),
    }
    pair = StructType().add("key", "string").add("value", "binary")
    kinds["headers"] = types.ArrayType(pair)
    kinds["nested"] = types.ArrayType(StructType().add("x", types.VariantType()))
    kinds["named"] = types.MapType(types.StringType(), types.LongType())
    kinds["by_bytes"] = types.MapType(types.BinaryType(), types.LongType())
    found = StructType()
    for part in ddl.split(","):
        name, kind = part.split()
        found = found.add(name, kinds[kind])
    return found


def test_a_value_may_bring_what_goes_beside_it_and_what_does_not_count() -> None:
    given = schema(
        "key binary, Value binary, stream string, offset long, timestamp timestamp, headers headers"
    )
    assert find_columns(given, None) == SinkColumns(1, 2, 0, 5, 4, ())
    assert find_columns(given, "totals") == SinkColumns(1, None, 0, 5, 4, ())


def test_names_of_data_may_differ_by_case_only_and_what_does_not_count_may_come_twice() -> None:
    assert find_columns(schema("id long, ID long"), "s").named == ((0, "id"), (1, "ID"))
    assert find_columns(schema("value string, id long, id long"), "s").value == 0


def test_without_a_value_all_columns_are_data_but_the_one_that_routes() -> None:
    given = schema("stream string, key long, timestamp timestamp, tags named")
    routed = find_columns(given, None)
    assert routed.stream == 0
    assert routed.named == ((1, "key"), (2, "timestamp"), (3, "tags"))
    assert find_columns(given, "totals").named[0][1] == "stream"


def test_with_a_topic_a_key_is_always_the_key_and_a_stream_never_routes() -> None:
    given = schema("stream string, Key binary, id long")
    assert find_columns(given, None, "orders") == SinkColumns(
        None, None, 1, None, None, ((0, "stream"), (2, "id"))
    )
    assert find_columns(given, "totals").key is None
    copied = schema("key string, value string, stream string, timestamp timestamp")
    assert find_columns(copied, None, "orders") == SinkColumns(1, None, 0, None, 3, ())
    assert find_columns(schema("id long"), None, "orders").key is None


@pytest.mark.parametrize(
    ("ddl", "words"),
    [
        ("key long, id long", "'key' is bigint; expected string or binary, because the key"),
        ("key long, value string", "'key' is bigint; expected string or binary, because the key"),
        ("key string, KEY string, id long", "two columns are named 'key'"),
        ("key string", "there is no column with data"),
    ],
)
def test_a_key_that_cannot_select_a_partition_is_refused(ddl: str, words: str) -> None:
    with pytest.raises(SparkOptionError, match=words):
        find_columns(schema(ddl), None, "orders")


@pytest.mark.parametrize(
    ("ddl", "stream", "words"),
    [
        ("value string", None, "no stream is set"),
        ("id long, id long", "s", "two columns are named 'id': rename or drop one"),
        ("value string, Value string", "s", "two columns are named 'value'"),
        ("value string, key string, KEY string", "s", "two columns are named 'key'"),
        ("tags by_bytes", "s", "'tags' has the type map<binary,bigint>, but the keys of a JSON"),
        ("value string, stream long", None, "column 'stream' is bigint; expected string"),
        ("value long", "s", "column 'value' is bigint; expected string or binary (use to_json"),
        ("value string, key long", "s", "column 'key' is bigint"),
        ("value string, headers string", "s", "column 'headers' is string; expected array<struct"),
        ("value string, headers nested", "s", "column 'headers'"),
        ("value string, timestamp long", "s", "column 'timestamp' is bigint"),
        ("stream string", None, "there is no column with data"),
        ("v variant", "s", "column 'v' is variant"),
        ("v interval", "s", "cast the column to string"),
        ("v nested", "s", "column 'v.x' is variant"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_cure(ddl: str, stream: str, words: str) -> None:
    with pytest.raises(SparkOptionError) as caught:
        find_columns(schema(ddl), stream)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
