"""The readers as plain objects without a JVM, against a real server."""

import json
import pickle
import threading
import time
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructType

from semel import local
from semel.client.local import LocalServer
from semel.client.sync.stream import Stream
from semel.spark.errors import DataLossError, ServerUnreachable, StreamMissing
from semel.spark.options import SparkOptionError, parse_source
from semel.spark.source.columns import source_schema
from semel.spark.source.readers import BatchReader, StreamReader
from semel.wire.bodies import encode_batch

ALL = ReadAllAvailable()
TYPED = (
    StructType()
    .add("n", LongType())
    .add("_offset", LongType())
    .add("_corrupt_record", StringType())
)


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with local() as it:
        yield it


@pytest.fixture
def stream(server: LocalServer) -> Stream:
    """Return an empty JSON stream."""
    return server.stream(f"r/{uuid4().hex}").create("application/json")


def fill(stream: Stream, first: int, count: int) -> None:
    stream.append_many([{"n": number} for number in range(first, first + count)])


def stream_reader(server: LocalServer, **options: Any) -> StreamReader:
    parsed = parse_source({"url": server.url, "retryTimeout": "20s", **texts(options)})
    return StreamReader(parsed, source_schema(parsed))


def batch_reader(server: LocalServer, **options: Any) -> BatchReader:
    parsed = parse_source({"url": server.url, "retryTimeout": "20s", **texts(options)})
    return BatchReader(parsed, source_schema(parsed))


def texts(options: dict[str, Any]) -> dict[str, str]:
    return {
        name: json.dumps(value) if isinstance(value, dict | bool) else str(value)
        for name, value in options.items()
    }


def rows(reader: StreamReader | BatchReader, parts: list[InputPartition]) -> list[dict[str, Any]]:
    """Return the rows of the partitions, read with a pickled copy of the reader as in tasks."""
    copy = pickle.loads(pickle.dumps(reader))
    return [
        row
        for part in parts
        for batch in copy.read(pickle.loads(pickle.dumps(part)))
        for row in batch.to_pylist()
    ]


def numbers(reader: StreamReader | BatchReader, parts: list[InputPartition]) -> list[int]:
    return [json.loads(row["value"])["n"] for row in rows(reader, parts)]


def moved(reader: StreamReader, start: dict[str, Any], limit: Any = ALL) -> dict[str, Any]:
    """Return the latest offset after a round trip through JSON, as in Spark's offset log."""
    found = reader.latestOffset(start, limit)
    result: dict[str, Any] = json.loads(json.dumps(found))
    assert json.dumps(result) == json.dumps(found)
    return result


# ---- batches -------------------------------------------------------------------------------------


def test_a_batch_reads_everything_once_and_in_order(server: LocalServer, stream: Stream) -> None:
    for first in range(0, 3000, 500):
        fill(stream, first, 500)
    reader = batch_reader(server, stream=stream.path, minPartitions=3)
    parts = reader.partitions()
    assert len(parts) == 3
    found = rows(reader, parts)
    assert [json.loads(row["value"])["n"] for row in found] == list(range(3000))
    assert [row["offset"] for row in found] == list(range(3000))
    assert {(row["stream"], row["partition"], row["key"]) for row in found} == {
        (stream.path, 0, None)
    }


def test_a_batch_may_begin_and_end_anywhere(server: LocalServer, stream: Stream) -> None:
    fill(stream, 0, 10)
    path = stream.path
    reader = batch_reader(server, stream=path, startingOffsets={path: 3}, endingOffsets={path: 7})
    assert numbers(reader, reader.partitions()) == [3, 4, 5, 6]
    none = batch_reader(server, stream=path, startingOffsets="latest")
    assert none.partitions() == []
    back = batch_reader(server, stream=path, startingOffsets={path: 8}, endingOffsets={path: 2})
    assert back.partitions() == []


def test_a_batch_of_nothing_has_one_task_with_nothing_to_do(
    server: LocalServer, stream: Stream
) -> None:
    reader = batch_reader(server, stream=stream.path)
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []
    assert list(stream_reader(server, stream=stream.path).read(InputPartition(None))) == []


def test_a_batch_refuses_offsets_that_are_not_there(server: LocalServer, stream: Stream) -> None:
    fill(stream, 0, 2)
    for wrong in ({"startingOffsets": {stream.path: 9}}, {"endingOffsets": {stream.path: 9}}):
        with pytest.raises(SparkOptionError, match="use a smaller offset"):
            batch_reader(server, stream=stream.path, **wrong).partitions()


def test_a_time_says_where_to_begin(server: LocalServer, stream: Stream) -> None:
    for first in range(0, 40, 10):
        fill(stream, first, 10)
        time.sleep(0.005)
    times = [row["timestamp"] for row in rows(*planned(batch_reader(server, stream=stream.path)))]
    middle_ms = int(times[20].timestamp() * 1000)
    reader = batch_reader(server, stream=stream.path, startingTimestamp=middle_ms)
    assert numbers(*planned(reader)) == list(range(20, 40))
    early = batch_reader(server, stream=stream.path, startingTimestamp=0)
    assert len(numbers(*planned(early))) == 40
    late = batch_reader(server, stream=stream.path, startingTimestamp=middle_ms + 10**9)
    assert numbers(*planned(late)) == []


def test_a_time_is_found_also_among_messages_that_were_staged_before_it(
    server: LocalServer, stream: Stream
) -> None:
    sink = server.sink(uuid4().hex)
    task = sink.task(0, 0)
    task.begin()
    task.append_batch(stream.path, encode_batch("application/json", [b'{"n":1}'] * 9), 9)
    time.sleep(0.005)
    fill(stream, 0, 1)
    sink.commit(0, [task.prepare()], query_id="q")
    time.sleep(0.005)
    fill(stream, 2, 1)
    found = rows(*planned(batch_reader(server, stream=stream.path)))
    assert found[0]["timestamp"] > found[1]["timestamp"]
    since_ms = int(found[0]["timestamp"].timestamp() * 1000)
    reader = batch_reader(server, stream=stream.path, startingTimestamp=since_ms)
    assert numbers(*planned(reader)) == [0, *[1] * 9, 2]
    last_ms = int(found[-1]["timestamp"].timestamp() * 1000)
    reader = batch_reader(server, stream=stream.path, startingTimestamp=last_ms)
    assert numbers(*planned(reader)) == [2]


def planned(reader: BatchReader) -> tuple[BatchReader, list[InputPartition]]:
    return reader, reader.partitions()


def test_many_streams_are_read_by_their_names_or_by_a_pattern(server: LocalServer) -> None:
    base = f"p/{uuid4().hex}"
    for name in ("a", "b", "c1"):
        fill(server.stream(f"{base}/{name}").create("application/json"), 0, 2)
    named = batch_reader(server, subscribe=f"{base}/a,{base}/b")
    assert [row["stream"] for row in rows(*planned(named))] == [f"{base}/a"] * 2 + [f"{base}/b"] * 2
    matched = batch_reader(server, subscribePattern=f"{base}/(b|c.)")
    assert {row["stream"] for row in rows(*planned(matched))} == {f"{base}/b", f"{base}/c1"}
    (portion,) = batch_reader(server, subscribePattern=f"{base}/ab*").partitions()
    assert [named_stream for named_stream, *_ in portion.value] == [f"{base}/a"]
    assert batch_reader(server, subscribePattern=f"{base}/none").partitions() == []


def test_keys_times_and_headers_are_columns(server: LocalServer) -> None:
    from datetime import UTC, datetime

    moment = datetime(2020, 2, 3, tzinfo=UTC)
    stream = server.stream(f"r/{uuid4().hex}").create("text/plain")
    stream.append("x", key=b"k", headers={"h": b"1"}, timestamp=moment)
    reader = batch_reader(server, stream=stream.path, includeHeaders=True)
    (row,) = rows(*planned(reader))
    assert (row["key"], row["value"], row["timestamp"]) == (b"k", b"x", moment)
    assert row["headers"] == [{"key": "h", "value": b"1"}]


def test_many_small_appends_are_read_over_many_pages(server: LocalServer, stream: Stream) -> None:
    with stream.producer("small", max_batch_bytes=10) as producer:
        for number in range(2500):
            producer.append({"n": number})
    assert numbers(*planned(batch_reader(server, stream=stream.path))) == list(range(2500))


def test_a_schema_is_decoded_and_a_bad_record_costs_its_own_row(server: LocalServer) -> None:
    stream = server.stream(f"r/{uuid4().hex}").create("text/plain")
    for text in ('{"n": 1}', "no JSON", '{"n": "x"}', '{"n": 4}'):
        stream.append(text)
    reader = BatchReader(parse_source({"url": server.url, "stream": stream.path}), TYPED)
    assert [tuple(row.values()) for row in rows(*planned(reader))] == [
        (1, 0, None),
        (None, 1, "no JSON"),
        (None, 2, '{"n": "x"}'),
        (4, 3, None),
    ]


# ---- streams -------------------------------------------------------------------------------------


def test_a_stream_is_read_batch_after_batch(server: LocalServer, stream: Stream) -> None:
    reader = stream_reader(server, stream=stream.path)
    begin = reader.initialOffset()
    incarnation = stream.head().incarnation
    assert begin == {stream.path: {"id": incarnation, "next": 0}}
    fill(stream, 0, 3)
    first = moved(reader, begin)
    assert first == {stream.path: {"id": incarnation, "next": 3}}
    assert numbers(reader, reader.partitions(begin, first)) == [0, 1, 2]
    fill(stream, 3, 2)
    second = moved(reader, first)
    assert numbers(reader, reader.partitions(first, second)) == [3, 4]
    assert reader.reportLatestOffset() == second
    reader.commit(second)
    reader.stop()


def test_nothing_new_is_the_same_offset_after_a_while(server: LocalServer, stream: Stream) -> None:
    reader = stream_reader(server, stream=stream.path)
    begin = reader.initialOffset()
    assert reader.reportLatestOffset() is None
    assert reader.latestOffset(begin, ALL) is begin


def test_a_reader_that_waits_sees_at_once_what_comes(server: LocalServer, stream: Stream) -> None:
    reader = stream_reader(server, stream=stream.path)
    begin = reader.initialOffset()
    timer = threading.Timer(0.2, fill, (stream, 0, 1))
    timer.start()
    end = moved(reader, begin)
    timer.join()
    if end == begin:  # a busy machine took more than a second
        end = moved(reader, begin)
    assert end[stream.path]["next"] == 1


def test_a_limit_counts_offsets_and_may_be_overruled(server: LocalServer, stream: Stream) -> None:
    fill(stream, 0, 10)
    reader = stream_reader(server, stream=stream.path, maxOffsetsPerTrigger=4)
    assert reader.getDefaultReadLimit() == ReadMaxRows(4)
    at, seen = reader.initialOffset(), []
    while (end := moved(reader, at, ReadMaxRows(4))) != at:
        seen.append(numbers(reader, reader.partitions(at, end)))
        at = end
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert moved(reader, reader.initialOffset(), ALL)[stream.path]["next"] == 10
    assert isinstance(
        stream_reader(server, stream=stream.path).getDefaultReadLimit(), ReadAllAvailable
    )


def test_available_now_ends_where_the_stream_ended_then(
    server: LocalServer, stream: Stream
) -> None:
    fill(stream, 0, 5)
    reader = stream_reader(server, stream=stream.path, maxOffsetsPerTrigger=3)
    reader.prepareForTriggerAvailableNow()
    fill(stream, 5, 5)
    begin = reader.initialOffset()
    first = moved(reader, begin, ReadMaxRows(3))
    second = moved(reader, first, ReadMaxRows(3))
    assert (first[stream.path]["next"], second[stream.path]["next"]) == (3, 5)
    assert moved(reader, second, ReadMaxRows(3)) == second


def test_latest_is_pinned_by_an_empty_batch(server: LocalServer, stream: Stream) -> None:
    fill(stream, 0, 5)
    reader = stream_reader(server, stream=stream.path, startingOffsets="latest")
    pin = reader.initialOffset()
    assert pin == {"pin": "latest"} == reader.initialOffset()
    first = moved(reader, pin)
    assert first[stream.path]["next"] == 5
    assert reader.partitions(pin, first) == []
    fill(stream, 5, 2)
    again = stream_reader(server, stream=stream.path, startingOffsets="latest")  # after a crash
    assert again.partitions(again.initialOffset(), first) == []
    second = moved(again, first)
    assert numbers(again, again.partitions(first, second)) == [5, 6]


def test_latest_is_pinned_within_the_target_of_available_now(
    server: LocalServer, stream: Stream
) -> None:
    fill(stream, 0, 5)
    reader = stream_reader(server, stream=stream.path, startingOffsets={stream.path: -1})
    reader.prepareForTriggerAvailableNow()
    fill(stream, 5, 2)
    first = moved(reader, reader.initialOffset())
    assert first[stream.path]["next"] == 5
    assert moved(reader, first) == first


def test_a_stream_that_appears_later_is_read_from_its_start(server: LocalServer) -> None:
    base = f"n/{uuid4().hex}"
    reader = stream_reader(server, subscribePattern=f"{base}/.*", startingOffsets="latest")
    first = moved(reader, reader.initialOffset())
    assert first == {}
    late = server.stream(f"{base}/late").create("application/json")
    fill(late, 0, 6)
    late.trim(before="0000000000000000_0000000000000002")
    end = moved(reader, first)
    parts = reader.partitions(first, end)
    assert [part.value for part in parts] == [((late.path, end[late.path]["id"], 2, 6, True),)]
    late.trim(before="0000000000000000_0000000000000004")
    assert numbers(reader, parts) == [4, 5]  # the range begins at the first message left
    limited = moved(stream_reader(server, subscribePattern=f"{base}/.*"), {}, ReadMaxRows(1))
    assert limited[late.path]["next"] == 5


# ---- transactions --------------------------------------------------------------------------------


def test_what_is_undecided_or_aborted_is_not_read(server: LocalServer, stream: Stream) -> None:
    fill(stream, 0, 2)
    reader = stream_reader(server, stream=stream.path)
    begin = reader.initialOffset()
    with pytest.raises(KeyError), server.transaction(streams=[stream.path]) as aborted:
        aborted.append(stream.path, {"n": 98})
        raise KeyError
    with server.transaction(streams=[stream.path]) as open_one:
        open_one.append(stream.path, {"n": 2})
        fill(stream, 3, 1)
        stable = moved(reader, begin)
        assert numbers(reader, reader.partitions(begin, stable)) == [0, 1]
        with pytest.raises(SparkOptionError, match="after the stable offset"):
            batch_reader(
                server,
                stream=stream.path,
                endingOffsets={stream.path: stable[stream.path]["next"] + 1},
            ).partitions()
    end = moved(reader, stable)
    assert numbers(reader, reader.partitions(stable, end)) == [2, 3]
    assert end[stream.path]["next"] > 4  # offsets have gaps


def test_a_slice_of_gaps_only_is_read_as_nothing(server: LocalServer, stream: Stream) -> None:
    for _ in range(3):
        with pytest.raises(KeyError), server.transaction(streams=[stream.path]) as aborted:
            aborted.append(stream.path, {"n": 98})
            raise KeyError
    reader = batch_reader(server, stream=stream.path, minPartitions=2)
    assert len(reader.partitions()) == 2
    assert numbers(*planned(reader)) == []
    assert numbers(*planned(batch_reader(server, stream=stream.path, startingTimestamp=5))) == []


# ---- data loss -----------------------------------------------------------------------------------


def test_a_trimmed_range_is_an_error_or_passed_over(server: LocalServer, stream: Stream) -> None:
    fill(stream, 0, 6)
    for is_fatal in (True, False):
        reader = stream_reader(server, stream=stream.path, failOnDataLoss=is_fatal)
        begin = {stream.path: {"id": stream.head().incarnation, "next": 0}}
        end = moved(reader, begin)
        stream.trim(before="0000000000000000_0000000000000004")
        parts = reader.partitions(begin, end)
        if is_fatal:
            with pytest.raises(DataLossError, match="offsets 0 to 3 were trimmed"):
                numbers(reader, parts)
        else:
            assert numbers(reader, parts) == [4, 5]
            lost = reader.partitions(begin, {stream.path: {**begin[stream.path], "next": 3}})
            assert numbers(reader, lost) == []


def test_a_stream_made_anew_is_an_error_or_read_from_its_start(
    server: LocalServer, stream: Stream
) -> None:
    fill(stream, 0, 6)
    strict = stream_reader(server, stream=stream.path)
    begin = strict.initialOffset()
    end = moved(strict, begin)
    parts = strict.partitions(begin, end)
    stream.delete()
    with pytest.raises(DataLossError, match="was deleted while the query read it"):
        numbers(strict, parts)
    with pytest.raises(DataLossError, match="was deleted while the query read it"):
        strict.latestOffset(end, ALL)
    easy = stream_reader(server, stream=stream.path, failOnDataLoss=False)
    assert easy.latestOffset(end, ALL) is end
    assert numbers(easy, parts) == []
    stream.create("application/json")
    fill(stream, 10, 8)
    with pytest.raises(DataLossError, match="was deleted and created again"):
        numbers(strict, parts)
    with pytest.raises(DataLossError, match="was deleted and created again"):
        strict.latestOffset(end, ALL)
    again = moved(easy, end)
    assert numbers(easy, easy.partitions(end, again)) == list(range(10, 18))


def test_a_stream_that_came_and_went_before_its_first_batch_ran_is_an_error_or_passed_over(
    server: LocalServer,
) -> None:
    base = f"n/{uuid4().hex}"
    late = server.stream(f"{base}/late").create("application/json")
    fill(late, 0, 3)
    end = moved(stream_reader(server, subscribePattern=f"{base}/.*"), {})
    late.delete()
    again = stream_reader(server, subscribePattern=f"{base}/.*")
    with pytest.raises(DataLossError, match="was deleted while the query read it"):
        again.partitions({}, end)
    easy = stream_reader(server, subscribePattern=f"{base}/.*", failOnDataLoss=False)
    assert easy.partitions({}, end) == []


def test_a_stream_the_query_no_longer_names_keeps_its_place(server: LocalServer) -> None:
    base = f"k/{uuid4().hex}"
    streams = [server.stream(f"{base}/{name}").create("application/json") for name in "ab"]
    for stream in streams:
        fill(stream, 0, 2)
    begin = moved(stream_reader(server, subscribe=f"{base}/a,{base}/b"), {})
    for stream in streams:
        fill(stream, 2, 2)
    for fewer in ({"subscribe": f"{base}/a"}, {"subscribePattern": f"{base}/a"}):
        reader = stream_reader(server, **fewer)
        end = moved(reader, begin)
        (portion,) = reader.partitions(begin, end)
        assert [kept for kept, *_ in portion.value] == [f"{base}/a"]
        assert end[f"{base}/b"] == begin[f"{base}/b"]
    both = stream_reader(server, subscribePattern=f"{base}/.*")
    assert numbers(both, both.partitions(end, moved(both, end))) == [2, 3]


def test_a_slice_that_ends_beyond_the_stream_is_an_error(
    server: LocalServer, stream: Stream
) -> None:
    fill(stream, 0, 2)
    reader = stream_reader(server, stream=stream.path)
    begin = reader.initialOffset()
    beyond = {stream.path: {**begin[stream.path], "next": 9}}
    with pytest.raises(DataLossError, match="ends at offset 2, but the query has read up to 9"):
        numbers(reader, reader.partitions(begin, beyond))


def test_a_missing_stream_is_named_with_those_that_are_called_nearly_so(
    server: LocalServer, stream: Stream
) -> None:
    wrong = stream.path + "s"
    with pytest.raises(StreamMissing, match=f"there is no stream {wrong}.*{stream.path}"):
        stream_reader(server, stream=wrong).initialOffset()
    with pytest.raises(StreamMissing):
        batch_reader(server, stream=wrong).partitions()
    with pytest.raises(StreamMissing):  # added to an existing query
        reader = stream_reader(server, subscribe=f"{wrong},{stream.path}")
        reader.latestOffset({stream.path: {"id": stream.head().incarnation, "next": 0}}, ALL)


def test_options_of_the_other_kind_are_refused(server: LocalServer, stream: Stream) -> None:
    with pytest.raises(SparkOptionError, match=r"use spark\.read"):
        stream_reader(server, stream=stream.path, endingOffsets="latest")
    with pytest.raises(SparkOptionError, match="set endingOffsets"):
        batch_reader(server, stream=stream.path, maxOffsetsPerTrigger=5)


# ---- an unavailable server -----------------------------------------------------------------------


def test_a_restart_in_the_middle_loses_and_repeats_nothing() -> None:
    with local() as server:
        stream = server.stream("orders").create("application/json")
        body = "x" * 2000
        for first in range(0, 5000, 500):
            stream.append_many([{"n": first + rank, "body": body} for rank in range(500)])
        reader = stream_reader(server, stream="orders")
        begin = reader.initialOffset()
        end = moved(reader, begin)
        (part,) = reader.partitions(begin, end)
        batches = reader.read(part)
        found = next(batches).column("offset").to_pylist()
        server.kill()
        again = threading.Timer(0.5, server.restart)
        again.start()
        for batch in batches:
            found += batch.column("offset").to_pylist()
        again.join()
        assert found == list(range(5000))
        server.kill()
        again = threading.Timer(0.5, server.restart)
        again.start()
        assert moved(reader, end) == end  # planning also waits
        again.join()


def test_a_server_that_stays_away_is_an_error_with_a_cure() -> None:
    with local() as server:
        stream = server.stream("orders").create("application/json")
        fill(stream, 0, 3)
        reader = stream_reader(server, stream="orders", retryTimeout="300ms")
        begin = reader.initialOffset()
        parts = reader.partitions(begin, moved(reader, begin))
        server.kill()
        with pytest.raises(ServerUnreachable, match=r"cannot be reached.*correct the option 'url'"):
            reader.latestOffset(begin, ALL)
        with pytest.raises(ServerUnreachable, match=r"cannot be reached.*correct the option 'url'"):
            numbers(reader, parts)
        for options in ({"stream": "orders"}, {"subscribePattern": "o.*"}):
            with pytest.raises(ServerUnreachable, match="start the server"):
                stream_reader(server, retryTimeout="300ms", **options).initialOffset()


def test_a_server_of_something_else_is_told_from_one_without_the_stream() -> None:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{other.server_port}"
        for options in ({"stream": "orders"}, {"subscribePattern": "o.*"}):
            parsed = parse_source({"url": url, "retryTimeout": "5s", **options})
            with pytest.raises(ServerUnreachable, match="is not a semel server"):
                StreamReader(parsed, source_schema(parsed)).initialOffset()
        other.shutdown()
