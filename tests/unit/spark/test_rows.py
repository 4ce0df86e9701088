"""From Arrow batches to request bodies: routing, chunks, keys and headers."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.model.limits import BATCH_MESSAGES_MAX
from semel.model.messages import headers_of, keys_of, split_messages, timestamps_of
from semel.spark.errors import RowError
from semel.spark.sink import staging
from semel.spark.sink.columns import SinkColumns
from semel.spark.sink.rows import StreamRows
from semel.spark.sink.staging import Chunker, RowSplitter
from semel.wire.bodies import decode_batch

JSON = "application/json"
VALUE = SinkColumns(0, None, None, None, None, ())
ROUTED = SinkColumns(0, 1, None, None, None, ())


def split(
    batch: pa.RecordBatch,
    columns: SinkColumns = VALUE,
    stream: str | None = "s",
    content_type: str = JSON,
) -> list[StreamRows]:
    splitter = RowSplitter(columns, stream, lambda _: content_type, 7)
    return list(splitter.split(batch))


def messages(rows: StreamRows) -> list[bytes]:
    carried = decode_batch(rows.body())
    assert carried.batch is not None, carried.error
    batch = carried.batch
    is_joined = carried.content_type == JSON
    return list(split_messages(batch.payload, batch.count, batch.lengths, is_joined=is_joined))


def extras(rows: StreamRows) -> bytes:
    batch = decode_batch(rows.body()).batch
    assert batch is not None
    return batch.extras


@pytest.mark.parametrize("type_", [pa.string(), pa.binary(), pa.large_string(), pa.string_view()])
def test_values_are_messages_and_null_is_the_null_of_json(type_: pa.DataType) -> None:
    batch = pa.record_batch([pa.array(["1", None, '{"a":2}'], type_)], ["value"])
    for start in range(3):
        (rows,) = split(batch.slice(start))
        assert messages(rows) == [b"1", b"null", b'{"a":2}'][start:]
        assert extras(rows) == b""


def test_rows_are_routed_by_their_stream_in_their_order() -> None:
    values = [str(number) for number in range(6)]
    batch = pa.record_batch({"value": values, "stream": ["b", "a", "b", "c", "a", "b"]})
    found = {rows.path: messages(rows) for rows in split(batch, ROUTED, None)}
    assert found == {"a": [b"1", b"4"], "b": [b"0", b"2", b"5"], "c": [b"3"]}
    numbers = {rows.path: list(rows.numbers) for rows in split(batch, ROUTED, None)}
    assert numbers["b"] == [0, 2, 5]
    (only,) = split(batch.slice(3, 1), ROUTED, None)
    assert (only.path, messages(only)) == ("c", [b"3"])


def test_keys_headers_and_times_go_with_their_messages() -> None:
    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    moments = [datetime(1969, 12, 31, 23, 59, 59, 999500, tzinfo=UTC), None, None]
    batch = pa.record_batch(
        [
            pa.array(["1", "2", "3"]),
            pa.array(["k", None, ""]),
            pa.array([[("h", b"v"), ("h", None)], None, []], pa.list_(pair)),
            pa.array(moments, pa.timestamp("us", "Asia/Tokyo")),
        ],
        ["value", "key", "headers", "timestamp"],
    )
    (rows,) = split(batch, SinkColumns(0, None, 1, 2, 3, ()))
    found = extras(rows)
    assert keys_of(found, 3) == [b"k", None, b""]
    assert headers_of(found, 3) == [[("h", b"v"), ("h", b"")], [], []]
    assert timestamps_of(found, 3) == [-1, None, None]
    assert messages(rows) == [b"1", b"2", b"3"]
    (empty,) = split(batch.slice(1, 1), SinkColumns(0, None, 1, 2, 3, ()))
    assert extras(empty) == b""


def test_without_a_value_a_row_is_an_object() -> None:
    batch = pa.record_batch({"stream": ["a"], "id": [1], "key": ["k"]})
    columns = SinkColumns(None, 0, None, None, None, ((1, "id"), (2, "key")))
    (rows,) = split(batch, columns, None)
    assert (rows.path, messages(rows)) == ("a", [b'{"id":1,"key":"k"}'])
    with pytest.raises(RowError, match="text/plain"):
        split(batch, columns, None, "text/plain")


@pytest.mark.parametrize(
    ("values", "content_type", "words"),
    [
        (["1", ""], JSON, "row 1: the column 'value' is empty, which is not valid JSON"),
        (
            ["x", None],
            "text/plain",
            "row 1: the column 'value' is null, which text/plain cannot represent",
        ),
        (["x", ""], "text/plain", "row 1: the column 'value' is empty"),
    ],
)
def test_what_is_no_message_is_named_by_its_row(
    values: list[Any], content_type: str, words: str
) -> None:
    with pytest.raises(RowError) as caught:
        split(pa.record_batch({"value": values}), content_type=content_type)
    assert str(caught.value).startswith("partition 7, ")
    assert words in str(caught.value)


def test_rows_are_counted_over_the_batches_of_a_partition() -> None:
    splitter = RowSplitter(ROUTED, None, lambda _: JSON, 0)
    list(splitter.split(pa.record_batch({"value": ["1"] * 5, "stream": ["a"] * 5})))
    list(splitter.split(pa.record_batch({"value": pa.array([], pa.string()), "stream": []})))
    with pytest.raises(RowError, match="row 6: the column 'stream' is null"):
        list(splitter.split(pa.record_batch({"value": ["1", "2"], "stream": ["a", None]})))


def test_a_key_that_is_too_long_and_a_path_that_is_none_are_named() -> None:
    batch = pa.record_batch({"value": ["1", "2"], "key": ["k", "k" * 70_000]})
    with pytest.raises(RowError, match="row 1: the key has 70000 bytes"):
        split(batch, SinkColumns(0, None, 1, None, None, ()))

    def refuse(path: str) -> str:
        raise ValueError("no")

    splitter = RowSplitter(ROUTED, None, refuse, 0)
    with pytest.raises(RowError, match="row 0: cannot write to 'bad': no"):
        list(splitter.split(pa.record_batch({"value": ["1"], "stream": ["bad"]})))


def test_the_first_row_that_is_no_json_is_found() -> None:
    (rows,) = split(pa.record_batch({"value": ["[1,2]", '"\\ud800"', "{oops", "]"]}))
    fault = rows.first_invalid()
    assert fault is not None
    assert fault[0] == 2
    assert "not JSON" in fault[1]
    assert "{oops" in fault[1]
    broken = pa.array([b"1", b'"\xff"']).view(pa.string())
    (no_text,) = split(pa.record_batch({"value": broken}))
    assert no_text.first_invalid() == (1, "JSON must be UTF-8; byte 2 is invalid: b'\"\\xff\"'")
    (split_in_two,) = split(pa.record_batch({"value": ["1,2"]}))
    assert split_in_two.first_invalid() is not None
    (text,) = split(pa.record_batch({"value": ["{oops"]}), content_type="text/plain")
    assert text.first_invalid() is None


# ---- chunks --------------------------------------------------------------------------------------


def gathered(chunker: Chunker, pieces: list[StreamRows]) -> Iterator[StreamRows]:
    for piece in pieces:
        yield from chunker.add(piece)
    yield from chunker.rest()


def piece(values: list[str], path: str = "s") -> StreamRows:
    return split(pa.record_batch({"value": values}), stream=path)[0]


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.lists(st.integers(0, 400), min_size=1, max_size=30)),
        max_size=12,
    ),
    st.integers(1_100, 3_000),
)
def test_chunks_hold_every_row_once_in_order_and_within_the_limit(
    given_: list[tuple[str, list[int]]], limit: int
) -> None:
    pieces = [piece([f'"{"x" * size}"' for size in sizes], path) for path, sizes in given_]
    wanted: dict[str, list[bytes]] = {}
    for one in pieces:
        wanted.setdefault(one.path, []).extend(messages(one))
    found: dict[str, list[bytes]] = {}
    for chunk in gathered(Chunker(limit), pieces):
        assert len(chunk) == 1 or len(chunk.body()) <= limit
        found.setdefault(chunk.path, []).extend(messages(chunk))
    assert found == wanted


def test_small_pieces_of_many_streams_are_gathered() -> None:
    pieces = [piece(["1"], f"s{number % 3}") for number in range(300)]
    assert sorted(len(chunk) for chunk in gathered(Chunker(), pieces)) == [100, 100, 100]


def test_a_full_chunk_goes_at_once_and_is_not_copied() -> None:
    chunker = Chunker()
    (full,) = chunker.add(piece(["1"] * BATCH_MESSAGES_MAX))
    assert len(full) == BATCH_MESSAGES_MAX
    assert [len(chunk) for chunk in chunker.add(piece(["1"] * (2 * BATCH_MESSAGES_MAX + 5)))] == [
        BATCH_MESSAGES_MAX,
        BATCH_MESSAGES_MAX,
    ]
    assert [len(chunk) for chunk in chunker.rest()] == [5]


def test_no_more_is_held_than_a_few_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "HELD_BYTES_MAX", 1_000)
    chunker = Chunker()
    assert not list(chunker.add(piece(["1"] * 30, "a")))
    assert [chunk.path for chunk in chunker.add(piece(["1"] * 30, "b"))] == ["a", "b"]
    assert not list(chunker.rest())


def test_a_year_that_has_no_form_is_named_by_its_partition() -> None:
    columns = SinkColumns(None, None, None, None, None, ((0, "at"),))
    with pytest.raises(
        RowError,
        match="partition 7, row 0: this or a later row is invalid: a date is before year 1",
    ):
        split(pa.record_batch({"at": pa.array([2**62], pa.timestamp("us"))}), columns)
