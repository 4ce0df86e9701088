"""JSON to typed columns: decoding in blocks has the same result as record by record."""

import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.spark.source.decode import BadRecord, Decoder, is_object, record_parser

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int32()),
        ("price", pa.float64()),
        ("ok", pa.bool_()),
        ("name", pa.string()),
        ("tags", pa.list_(pa.int32())),
        ("place", pa.struct([("x", pa.int64()), ("y", pa.string())])),
    ]
)


def decoded(schema: pa.Schema, *records: bytes) -> tuple[list[dict[str, Any]], list[int]]:
    table, bad = Decoder(schema).decode(pa.array(records, pa.binary()))
    assert table.schema == schema
    return table.to_pylist(), bad


def one(kind: pa.DataType, text: str) -> Any:
    """Return a decoded value, or "bad". Other records in the block must not change the result."""
    record = f'{{"a": {text}}}'.encode()
    rows, bad = decoded(pa.schema([("a", kind)]), record)
    again, bad_again = decoded(pa.schema([("a", kind)]), *[b"{}"] * 600, record, b'{"a": null}')
    assert (again[600], bad_again) == (rows[0], [each + 600 for each in bad])
    return "bad" if bad else rows[0]["a"]


# ---- a reference: json.loads, checked by type ----------------------------------------------------


def expected_value(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_list(kind):
        return [expected_value(each, kind.value_type) for each in expect(value, list)]
    if pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        document = expect(value, dict)
        return {each.name: expected_value(document.get(each.name), each.type) for each in fields}
    if pa.types.is_floating(kind):
        if type(value) not in (int, float) or not math.isfinite(float(value)):
            raise TypeError
        return float(value)
    if pa.types.is_integer(kind):
        if not -(2 ** (kind.bit_width - 1)) <= expect(value, int) < 2 ** (kind.bit_width - 1):
            raise TypeError
        return value
    return expect(value, bool if pa.types.is_boolean(kind) else str)


def expect(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError
    return value


def expected_row(record: bytes) -> dict[str, Any] | None:
    try:
        document = expect(json.loads(record.decode(), parse_constant=lambda _: 1 / 0), dict)
        return {
            field.name: expected_value(document.get(field.name), field.type) for field in SCHEMA
        }
    except (ValueError, TypeError, OverflowError, ZeroDivisionError):
        return None


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-9, 9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=4,
)
GOOD = st.fixed_dictionaries(
    {},
    optional={
        "id": st.integers(-(2**63), 2**63 - 1),
        "small": st.integers(-(2**31), 2**31 - 1),
        "price": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**60), 2**60),
        "ok": st.booleans(),
        "name": st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
        "tags": st.lists(st.none() | st.integers(0, 9), max_size=3),
        "place": st.fixed_dictionaries({}, optional={"x": st.integers(0, 9), "z": SCALARS}),
        "more": SCALARS,
    },
)
ODD = st.dictionaries(st.sampled_from(SCHEMA.names), VALUES, max_size=3)
RECORDS = st.one_of(
    GOOD.map(lambda value: json.dumps(value).encode()),
    GOOD.map(lambda value: json.dumps(value, ensure_ascii=False, indent=1).encode()),
    ODD.map(lambda value: json.dumps(value).encode()),
    VALUES.map(lambda value: json.dumps(value).encode()),
    st.sampled_from(
        [b"", b" ", b"null", b"{", b"}", b'{"id":1}{"id":2}', b'{"id":1', b',"small":2}', b"[{}]"]
    ),
    st.binary(max_size=6),
)


@given(st.lists(RECORDS, max_size=12), st.integers(0, 1))
def test_a_block_is_decoded_as_if_each_record_were_read_by_itself(
    records: list[bytes], is_large: int
) -> None:
    records = records + [b'{"id": 7}'] * (300 * is_large)  # large enough to be split
    rows, bad = decoded(SCHEMA, *records)
    nothing = dict.fromkeys(SCHEMA.names)
    wanted = [expected_row(record) for record in records]
    assert bad == [index for index, row in enumerate(wanted) if row is None]
    assert rows == [nothing if row is None else row for row in wanted]


# ---- types ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.int64(), "9223372036854775807", 2**63 - 1),
        (pa.int64(), "9223372036854775808", "bad"),
        (pa.int64(), "1.0", "bad"),
        (pa.int64(), "1e2", "bad"),
        (pa.int64(), '"1"', "bad"),
        (pa.int64(), "true", "bad"),
        (pa.int64(), "null", None),
        (pa.int64(), "-0", 0),
        (pa.int8(), "128", "bad"),
        (pa.int16(), "-32768", -32768),
        (pa.float64(), "1", 1.0),
        (pa.float64(), "1e400", "bad"),
        (pa.float64(), "true", "bad"),
        (pa.float64(), "1" + "0" * 400, "bad"),
        (pa.list_(pa.float64()), "[1" + "0" * 400 + "]", "bad"),
        (pa.struct([("x", pa.float64())]), '{"x": 1' + "0" * 400 + "}", "bad"),
        (pa.float32(), "0.5", 0.5),
        (pa.float32(), "1e39", "bad"),
        (pa.bool_(), "1", "bad"),
        (pa.string(), '"\\u00e9\\u0000"', "é\0"),
        (pa.string(), "5", "bad"),
        (pa.string(), "1.5", "bad"),
        (pa.string(), '{"x": 1}', "bad"),
        (pa.string(), '"\\ud800"', "bad"),
        (TIME, '"2024-05-06T07:08:09.123456Z"', datetime(2024, 5, 6, 7, 8, 9, 123456, UTC)),
        (TIME, '"2024-05-06T07:08:09+02:00"', datetime(2024, 5, 6, 5, 8, 9, tzinfo=UTC)),
        (TIME, '"2024-05-06 07:08:09"', datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)),
        (TIME, '"2024-05-06"', datetime(2024, 5, 6, tzinfo=UTC)),
        (TIME, '"yesterday"', "bad"),
        (TIME, "1700000000", "bad"),
        (pa.timestamp("us"), '"2024-05-06T07:08:09"', datetime(2024, 5, 6, 7, 8, 9)),
        (pa.timestamp("us"), '"2024-05-06T07:08:09Z"', "bad"),
        (pa.date32(), '"2024-05-06"', date(2024, 5, 6)),
        (pa.date32(), '"2024-13-06"', "bad"),
        (pa.decimal128(10, 2), "1.25", Decimal("1.25")),
        (pa.decimal128(10, 2), '"1.25"', Decimal("1.25")),
        (pa.decimal128(10, 2), "7", Decimal("7.00")),
        (pa.decimal128(10, 2), "1.255", "bad"),
        (pa.decimal128(10, 2), "123456789.00", "bad"),
        (pa.decimal128(10, 2), "true", "bad"),
        (pa.decimal128(10, 2), '"x"', "bad"),
        (pa.list_(pa.int64()), "[1, null]", [1, None]),
        (pa.list_(pa.int64()), '[1, "2"]', "bad"),
        (pa.list_(pa.int64()), '{"a": 1}', "bad"),
        (pa.list_(pa.date32()), '["2024-05-06"]', [date(2024, 5, 6)]),
        (pa.struct([("x", pa.int64())]), '{"x": 1, "y": 2}', {"x": 1}),
        (pa.struct([("x", pa.int64())]), "[1]", "bad"),
        (pa.struct([("t", pa.timestamp("us"))]), '{"t": "x"}', "bad"),
        (pa.map_(pa.string(), pa.int64()), '{"x": 1, "y": null}', [("x", 1), ("y", None)]),
        (pa.map_(pa.string(), pa.int64()), '{"x": "1"}', "bad"),
        (pa.map_(pa.string(), pa.int64()), "[]", "bad"),
    ],
)
def test_a_value_is_taken_only_if_it_is_of_the_columns_type(
    kind: pa.DataType, text: str, value: Any
) -> None:
    found = one(kind, text)
    assert found == value
    assert type(found) is type(value)


def test_times_with_and_without_a_zone_may_stand_in_one_block() -> None:
    records = [b'{"a": "2024-05-06T07:08:09Z"}', b'{"a": "2024-05-06T07:08:09"}'] * 300
    rows, bad = decoded(pa.schema([("a", TIME)]), *records)
    assert (len({row["a"] for row in rows}), bad) == (1, [])


def test_the_last_of_two_equal_names_counts() -> None:
    assert decoded(pa.schema([("a", pa.int64())]), b'{"a": 1, "a": 2}') == ([{"a": 2}], [])


def test_a_deep_record_is_bad_and_not_the_end() -> None:
    deep = b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert decoded(pa.schema([("a", pa.int64())]), deep, b'{"a": 1}')[1] == [0]


def test_a_schema_without_columns_of_the_record_still_has_its_rows() -> None:
    table, bad = Decoder(pa.schema([])).decode(pa.array([b"{}", b"no"], pa.binary()))
    assert (table.num_rows, bad) == (2, [1])


def test_a_number_of_thousands_of_digits_is_bad_and_not_the_end() -> None:
    long = b'{"a": ' + b"1" * 5000 + b"}"
    assert decoded(pa.schema([("a", pa.int64())]), long, b'{"a": 1}') == (
        [{"a": None}, {"a": 1}],
        [0],
    )


@pytest.mark.parametrize("record", [b"{", b"5", b'{"a": "\\ud800"}', b"\xff", b'{"a": NaN}'])
def test_records_read_one_by_one_are_refused_as_well(record: bytes) -> None:
    with pytest.raises(BadRecord):
        record_parser(pa.schema([("a", pa.string())]))(record)


@pytest.mark.parametrize("record", [b'{"a": "\xff"}', b"null", b"", b"{} {}", b'{"a": NaN}'])
def test_what_is_no_object_in_utf8_is_kept_from_arrow(record: bytes) -> None:
    assert not is_object(record)


def test_times_of_a_thousand_rows_are_decoded_in_one_block() -> None:
    first = datetime(2024, 1, 1, tzinfo=UTC)
    times = [first + timedelta(microseconds=index) for index in range(1000)]
    records = [json.dumps({"a": time.isoformat()}).encode() for time in times]
    rows, bad = decoded(pa.schema([("a", TIME)]), *records)
    assert ([row["a"] for row in rows], bad) == (times, [])
