"""Rows as JSON objects."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.spark.sink.rows import json_objects, json_texts


def texts(*values: Any, type_: pa.DataType | None = None) -> list[str]:
    found: list[str] = json_texts(pa.array(values, type_)).to_pylist()
    return found


@pytest.mark.parametrize(
    ("values", "type_", "wanted"),
    [
        ([1, -2, None], pa.int64(), ["1", "-2", "null"]),
        ([True, None], pa.bool_(), ["true", "null"]),
        ([1.5, float("nan"), float("-inf"), None], pa.float64(), ["1.5", "null", "null", "null"]),
        ([Decimal("1.50"), None], pa.decimal128(38, 2), ["1.50", "null"]),
        ([date(2024, 2, 29), None], pa.date32(), ['"2024-02-29"', "null"]),
        ([b"\x00\xff", b"", None], pa.binary(), ['"AP8="', '""', "null"]),
        (["é", 'a"b\\c\n\x00', None], pa.string(), ['"é"', '"a\\"b\\\\c\\n\\u0000"', "null"]),
        (["large"], pa.large_string(), ['"large"']),
        ([None, None], pa.null(), ["null", "null"]),
        ([[1, None], [], None], pa.list_(pa.int32()), ["[1,null]", "[]", "null"]),
        ([[("a", 1)], [], None], pa.map_(pa.string(), pa.int32()), ['{"a":1}', "{}", "null"]),
        ([[(1, "x")]], pa.map_(pa.int32(), pa.string()), ['{"1":"x"}']),
        ([{}, None], pa.struct([]), ["{}", "null"]),
    ],
)
def test_each_type_has_its_form(values: list[Any], type_: pa.DataType, wanted: list[str]) -> None:
    assert texts(*values, type_=type_) == wanted


def test_an_instant_is_told_in_utc_and_a_time_on_the_wall_without_a_zone() -> None:
    moment = datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    for zone in ("UTC", "Asia/Tokyo"):
        assert texts(moment, None, type_=pa.timestamp("us", zone)) == [
            '"2024-01-02T03:04:05.000006Z"',
            "null",
        ]
    assert texts(moment.replace(tzinfo=None), type_=pa.timestamp("us")) == [
        '"2024-01-02T03:04:05.000006"'
    ]
    before = datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    assert texts(before, type_=pa.timestamp("us", "UTC")) == ['"1969-12-31T23:59:59.999999Z"']


def test_structs_within_lists_within_structs_keep_their_nulls() -> None:
    rows = [{"a": [{"b": 1}, None]}, None, {"a": None}]
    assert [json.loads(text) for text in texts(*rows)] == rows


def test_rows_are_objects_of_all_columns_in_their_order() -> None:
    batch = pa.record_batch({'q"': [1, 2], "b": ["x", None]})
    assert json_objects(batch.schema.names, batch.columns).to_pylist() == [
        '{"q\\"":1,"b":"x"}',
        '{"q\\"":2,"b":null}',
    ]


def test_a_part_of_a_batch_is_read_from_where_it_begins() -> None:
    columns = {
        "s": ["a\n", "b", "c"],
        "l": [[1], None, [2, 3]],
        "m": pa.array([[("k", 1)], [("l", 2)], None], pa.map_(pa.string(), pa.int64())),
        "t": [{"x": 1}, None, {"x": 3}],
    }
    whole = pa.record_batch(columns)
    all_rows = json_objects(whole.schema.names, whole.columns).to_pylist()
    for start in range(4):
        part = whole.slice(start)
        assert json_objects(part.schema.names, part.columns).to_pylist() == all_rows[start:]


def test_a_type_without_a_form_is_refused_by_its_name() -> None:
    with pytest.raises(TypeError, match="duration"):
        json_texts(pa.array([1], pa.duration("us")))


@given(st.lists(st.text() | st.none()))
def test_any_text_comes_back(values: list[str | None]) -> None:
    found = [json.loads(text) for text in texts(*values, type_=pa.string())]
    assert found == values


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False)))
def test_any_number_comes_back(values: list[float]) -> None:
    assert [float(text) for text in texts(*values, type_=pa.float64())] == values


def test_what_is_no_utf_8_is_left_for_the_server_to_refuse() -> None:
    for other in (b"plain", b'"'):
        broken = pa.array([other, b"\xff"]).view(pa.string())
        assert json_texts(broken).view(pa.binary())[1].as_py() == b'"\xff"'


@pytest.mark.parametrize("type_", [pa.timestamp("us", tz="UTC"), pa.timestamp("us"), pa.date32()])
def test_a_year_that_has_not_four_digits_is_refused(type_: pa.DataType) -> None:
    first, last = pa.array(["0001-01-01", "9999-12-31"]).cast(pa.timestamp("us")).cast(type_)
    assert '"0001-01-01' in json_texts(pa.array([first]))[0].as_py()
    assert '"9999-12-31' in json_texts(pa.array([last, None]))[0].as_py()
    assert json_texts(pa.array([None], type_))[0].as_py() == "null"
    day = 1 if type_ == pa.date32() else 24 * 60 * 60 * 1_000_000
    for wrong in (first.value - 1, last.value + day):
        with pytest.raises(ValueError, match="a date is before year 1 or after year 9999"):
            json_texts(pa.array([None, wrong], type_))
