"""Topics read and written without a JVM, against a real server."""

import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from pickle import PicklingError
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StringType, StructType

from semel import Client
from semel.client.sync.topic import Topic
from semel.errors import StreamInTransaction
from semel.model.partitioners import partition_of
from semel.spark.errors import DataLossError, RowError, TopicMissing
from semel.spark.options import SparkOptionError, parse_sink, parse_source
from semel.spark.sink import topics
from semel.spark.sink.writers import BatchWriter, StagedTask, StreamWriter
from semel.spark.source.columns import source_schema
from semel.spark.source.readers import PIN, BatchReader, StreamReader
from semel.testing.fault_proxy import FaultProxy
from tests.unit.spark.sink_world import VALUE, Current, Query, Task
from tests.unit.spark.test_readers import ALL, moved, rows, texts

KEYED = StructType().add("key", StringType()).add("value", StringType())
Make = Callable[..., Topic]


@pytest.fixture
def make(client: Client) -> Make:
    """Make topics of JSON with unused names."""

    def made(partitions: int = 3, **options: Any) -> Topic:
        return client.topic(f"t/{uuid4().hex}").create(partitions, "application/json", **options)

    return made


def fill(topic: Topic, first: int, count: int) -> None:
    """Append numbers. The key of each is its last digit."""
    numbers = range(first, first + count)
    topic.append_many(list(numbers), keys=[key_of(number) for number in numbers])


def key_of(number: int) -> str:
    return f"k{number % 10}"


def place_of(number: int, partitions: int, partitioner: str = "crc32") -> int:
    return partition_of(partitioner, key_of(number).encode(), partitions)


def placed(found: list[dict[str, Any]]) -> dict[int, int]:
    """Return the partition of each number. Fails if a number occurs twice."""
    pairs = [(int(row["value"]), row["partition"]) for row in found]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def contents(client: Client, topic: Topic) -> dict[int, list[Any]]:
    """Return the committed values of each partition."""
    return {
        partition.partition: [message.value for message in client.stream(partition.stream).read()]
        for partition in topic.describe().partitions
    }


# ---- reading -------------------------------------------------------------------------------------


def batch_reader(url: str, **options: Any) -> BatchReader:
    parsed = parse_source({"url": url, "retryTimeout": "20s", **texts(options)})
    return BatchReader(parsed, source_schema(parsed))


def stream_reader(url: str, **options: Any) -> StreamReader:
    parsed = parse_source({"url": url, "retryTimeout": "20s", **texts(options)})
    return StreamReader(parsed, source_schema(parsed))


def read(reader: BatchReader) -> list[dict[str, Any]]:
    return rows(reader, reader.partitions())


@pytest.mark.parametrize("partitioner", ["crc32", "murmur2"])
def test_a_batch_reads_all_partitions_with_their_numbers_and_streams(
    url: str, make: Make, partitioner: str
) -> None:
    topic = make(4, partitioner=partitioner)
    fill(topic, 0, 50)
    found = read(batch_reader(url, topic=topic.name, minPartitions=3))
    assert placed(found) == {n: place_of(n, 4, partitioner) for n in range(50)}
    assert len({row["stream"] for row in found}) > 2
    for row in found:
        assert row["stream"] == f"{topic.name}/{row['partition']}"
        assert row["key"].decode() == key_of(int(row["value"]))


def test_a_partition_that_is_read_as_a_stream_has_no_number(url: str, make: Make) -> None:
    topic = make(2)
    fill(topic, 0, 20)
    one = read(batch_reader(url, stream=f"{topic.name}/1"))
    assert {row["partition"] for row in one} == {0}
    both = read(batch_reader(url, subscribePattern=f"{topic.name}/.*"))
    assert len(both) == 20


def test_offsets_are_set_by_partition(url: str, make: Make) -> None:
    topic = make(3)
    fill(topic, 0, 60)
    every = read(batch_reader(url, topic=topic.name))
    sizes = {at: sum(row["partition"] == at for row in every) for at in range(3)}
    assert min(sizes.values()) > 2
    for starts in ({topic.name: {"0": 2, "1": -1}}, {f"{topic.name}/0": 2, f"{topic.name}/1": -1}):
        found = read(batch_reader(url, topic=topic.name, startingOffsets=starts))
        assert [sum(row["partition"] == at for row in found) for at in range(3)] == [
            *(sizes[0] - 2, 0, sizes[2])
        ]
    ends = {topic.name: {"0": 1, "2": -1}}
    found = read(batch_reader(url, topic=topic.name, endingOffsets=ends))
    assert len(found) == 1 + sizes[1] + sizes[2]
    assert read(batch_reader(url, topic=topic.name, startingOffsets="latest")) == []
    for option in ("startingOffsets", "endingOffsets"):
        with pytest.raises(SparkOptionError, match=f"there is no {topic.name}/7, because"):
            read(batch_reader(url, topic=topic.name, **{option: {topic.name: {"7": 1}}}))


def test_partitions_that_a_growth_adds_are_read_from_their_start(url: str, make: Make) -> None:
    topic = make(2)
    fill(topic, 0, 30)
    reader = stream_reader(url, topic=topic.name)
    start = reader.initialOffset()
    first = moved(reader, start)
    found = rows(reader, reader.partitions(start, first))
    assert placed(found) == {n: place_of(n, 2) for n in range(30)}
    topic.grow(12, keys_may_move=True)
    fill(topic, 30, 30)
    second = moved(reader, first)
    found = rows(reader, reader.partitions(first, second))
    assert placed(found) == {n: place_of(n, 12) for n in range(30, 60)}
    assert list(second) == sorted(f"{topic.name}/{at}" for at in range(12))
    assert moved(reader, second) == second
    # A query that was not running in the meantime reads the same.
    again = stream_reader(url, topic=topic.name)
    assert moved(again, first) == second
    assert len(rows(again, again.partitions(first, second))) == 30


def test_latest_is_the_end_when_the_query_starts_also_for_partitions_that_come_later(
    url: str, make: Make
) -> None:
    topic = make(2)
    fill(topic, 0, 20)
    reader = stream_reader(url, topic=topic.name, startingOffsets="latest")
    assert reader.initialOffset() == PIN
    start = moved(reader, dict(PIN))
    assert reader.partitions(dict(PIN), start) == []
    topic.grow(5, keys_may_move=True)
    fill(topic, 20, 20)
    end = moved(reader, start)
    found = rows(reader, reader.partitions(start, end))
    assert placed(found) == {n: place_of(n, 5) for n in range(20, 40)}


def test_a_limit_is_shared_by_the_partitions(url: str, make: Make) -> None:
    topic = make(3)
    fill(topic, 0, 60)
    reader = stream_reader(url, topic=topic.name, maxOffsetsPerTrigger=20)
    at, found, batches = reader.initialOffset(), [], 0
    while True:
        end = moved(reader, at, ReadMaxRows(20))
        if end == at:
            break
        found += rows(reader, reader.partitions(at, end))
        at, batches = end, batches + 1
    assert sorted(placed(found)) == list(range(60))
    assert batches >= 3


def test_a_topic_that_is_missing_deleted_or_made_anew_is_told(url: str, make: Make) -> None:
    topic = make(2)
    fill(topic, 0, 20)
    for missing in (stream_reader, batch_reader):
        reader = missing(url, topic=topic.name[:-1])
        with pytest.raises(TopicMissing) as caught:
            reader.initialOffset() if isinstance(reader, StreamReader) else reader.partitions()
        assert f"did you mean {topic.name}" in str(caught.value)
        create = f"`semel topics create {topic.name[:-1]} --partitions N`"
        assert create in str(caught.value)
        reader = missing(url, topic=f"{topic.name}/0")
        with pytest.raises(TopicMissing, match=f"use the option topic={topic.name}, or stream="):
            reader.initialOffset() if isinstance(reader, StreamReader) else reader.partitions()
    reader = stream_reader(url, topic=topic.name)
    start = moved(reader, reader.initialOffset())
    topic.delete()
    with pytest.raises(DataLossError, match=f"{topic.name}/0 was deleted while"):
        reader.latestOffset(start, ALL)
    careless = stream_reader(url, topic=topic.name, failOnDataLoss=False)
    assert moved(careless, start) == start
    topic.create(2, "application/json")
    fill(topic, 20, 20)
    with pytest.raises(DataLossError, match="was deleted and created again"):
        reader.latestOffset(start, ALL)
    found = rows(careless, careless.partitions(start, moved(careless, start)))
    assert sorted(placed(found)) == list(range(20, 40))


def test_a_topic_that_is_named_as_a_stream_is_told(
    url: str, make: Make, current: Current, tmp_path: Path
) -> None:
    topic = make(2)
    with pytest.raises(SparkOptionError, match="is a topic, not a stream: use the option 'topic'"):
        batch_reader(url, stream=topic.name).partitions()
    query = Query(current, url, topic.name, tmp_path, uuid4().hex)
    query.plan(0, 1)
    with pytest.raises(RowError, match="is a topic, not a stream: use the option 'topic'"):
        query.run(0, ["1"])


# ---- writing -------------------------------------------------------------------------------------


class TopicQuery(Query):
    """A query that writes to a topic. Its tasks get a pickled writer, as in Spark."""

    def __init__(
        self, current: Current, url: str, topic: str, checkpoint: Path, **options: str
    ) -> None:
        super().__init__(current, url, "unused", checkpoint, uuid4().hex, **options)
        del self.options["stream"]
        self.options["topic"] = topic
        self.planned: StreamWriter | None = None

    def begin(self, batch_id: int, end: Any) -> None:
        """Plan a batch: write the offset log, and pickle the writer."""
        self.plan(batch_id, end)
        writer = StreamWriter(parse_sink(self.options), KEYED, overwrite=False)
        self.planned = pickle.loads(pickle.dumps(writer))

    def writer(self) -> StreamWriter:
        if self.current.task is not None:
            assert self.planned is not None
            return self.planned
        return StreamWriter(parse_sink(self.options), KEYED, overwrite=False)

    def stage(self, batch_id: int, numbers: range, partition: int = 0) -> StagedTask:
        return self.write(batch_id, keyed(numbers), partition)


def keyed(numbers: range) -> Iterator[pa.RecordBatch]:
    yield keyed_batch(numbers)


def keyed_batch(numbers: range) -> pa.RecordBatch:
    keys = [key_of(number) for number in numbers]
    columns = {"key": keys, "value": [str(number) for number in numbers]}
    return pa.record_batch(columns, pa.schema([("key", pa.string()), ("value", pa.string())]))


def failing(numbers: range) -> Iterator[pa.RecordBatch]:
    yield from keyed(numbers)
    raise RuntimeError("the task is lost")


@pytest.fixture
def query(current: Current, url: str, make: Make, tmp_path: Path) -> TopicQuery:
    return TopicQuery(current, url, make(3).name, tmp_path / "checkpoint")


@pytest.fixture
def topic(client: Client, query: TopicQuery) -> Topic:
    return client.topic(query.options["topic"])


def expected(numbers: range, partitions: int) -> dict[int, list[int]]:
    """Return the numbers of each partition, in their order."""
    return {at: [n for n in numbers if place_of(n, partitions) == at] for at in range(partitions)}


def test_a_batch_is_seen_once_in_the_partitions_of_its_keys_whatever_attempts_fail(
    query: TopicQuery, client: Client, topic: Topic
) -> None:
    query.begin(0, 1)
    with pytest.raises(RuntimeError, match="the task is lost"):
        query.write(0, failing(range(20)))
    query.stage(0, range(20))  # its message is lost with the executor
    tasks = [query.stage(0, range(20, 40), 1), query.stage(0, range(20))]
    assert contents(client, topic) == {at: [] for at in range(3)}
    query.commit(0, *tasks)
    assert contents(client, topic) == expected(range(40), 3)
    assert topic.describe().keyed
    assert client.sink(query.query_id).info().open_transactions == 0
    (message,) = [m for m in client.stream(f"{topic.name}/0").read() if m.value == first(0)]
    assert message.key == key_of(message.value).encode()


def first(partition: int) -> int:
    return next(n for n in range(40) if place_of(n, 3) == partition)


def test_a_topic_grows_when_a_batch_is_committed_and_the_next_has_the_new_layout(
    query: TopicQuery, client: Client, topic: Topic
) -> None:
    query.begin(0, 1)
    tasks = [query.stage(0, range(20))]
    with pytest.raises(StreamInTransaction):
        topic.grow(7, keys_may_move=True, timeout=0.2)
    tasks.append(query.stage(0, range(20, 40), 1))
    query.commit(0, *tasks)
    topic.grow(7, keys_may_move=True)
    wanted = expected(range(40), 3)
    assert contents(client, topic) == {at: wanted.get(at, []) for at in range(7)}
    query.begin(0, 1)  # Spark has not recorded the commit, and runs the batch again
    query.commit(0, query.stage(0, range(40)))
    assert contents(client, topic) == {at: wanted.get(at, []) for at in range(7)}
    query.begin(1, 2)
    query.commit(1, query.stage(1, range(40, 80)))
    after = expected(range(40, 80), 7)
    assert contents(client, topic) == {at: wanted.get(at, []) + after[at] for at in range(7)}


def test_a_topic_that_grows_before_the_first_task_is_written_with_the_new_layout(
    query: TopicQuery, client: Client, topic: Topic
) -> None:
    query.begin(0, 1)
    assert query.write(0, iter([keyed_batch(range(0))])).token is None, "it has no rows"
    topic.grow(7, keys_may_move=True)
    query.commit(0, query.stage(0, range(20)), query.stage(0, range(20, 40), 1))
    assert contents(client, topic) == expected(range(40), 7)
    assert client.sink(query.query_id).info().open_transactions == 0


def test_a_commit_and_an_abort_do_not_look_at_the_topic(
    query: TopicQuery, client: Client, topic: Topic
) -> None:
    query.begin(0, 1)
    task = query.stage(0, range(5))
    with FaultProxy(query.options["url"]) as proxy:
        query.options["url"] = proxy.url
        query.commit(0, task)
        query.writer().abort([task], 0)
        assert proxy.counts["requests"] == 2
    topic.delete()
    query.writer().abort([task], 0)


@pytest.mark.parametrize("partitioner", ["crc32", "murmur2"])
def test_a_frame_is_written_to_a_topic_that_is_made_for_it(
    url: str, client: Client, current: Current, path: str, partitioner: str
) -> None:
    settings = {"url": url, "topic": path, "partitions": "4", "partitioner": partitioner}
    schema = StructType().add("key", StringType()).add("n", StringType())
    for start in (0, 20):
        writer = pickle.loads(
            pickle.dumps(BatchWriter(parse_sink(settings), schema, overwrite=False))
        )
        current.task = Task(0)
        numbers = range(start, start + 20)
        batch = pa.record_batch(
            {"key": [key_of(n) for n in numbers], "n": [str(n) for n in numbers]}
        )
        writer.commit([writer.write(iter([batch]))])
        settings["partitions"] = "9"  # it exists, and keeps its partitions
    info = client.topic(path).describe()
    assert (info.partition_count, info.partitioner) == (4, partitioner)
    assert info.content_type == "application/json"
    for at, found in contents(client, client.topic(path)).items():
        wanted = [n for n in range(40) if place_of(n, 4, partitioner) == at]
        assert found == [{"n": str(n)} for n in wanted]


def test_rows_without_a_key_are_distributed_and_leave_the_topic_free_to_grow(
    url: str, client: Client, current: Current, make: Make
) -> None:
    topic = make(3)
    for _ in range(2):
        options = parse_sink({"url": url, "topic": topic.name})
        writer = BatchWriter(options, VALUE, overwrite=False)
        current.task = Task(0)
        batch = pa.record_batch({"value": [str(n) for n in range(30)]})
        writer.commit([writer.write(iter([batch]))])
    found = contents(client, topic)
    assert all(values == values[: len(values) // 2] * 2 != [] for values in found.values())
    assert not topic.describe().keyed


def test_a_topic_that_is_missing_is_told_when_the_batch_is_planned(
    url: str, client: Client, current: Current, path: str, tmp_path: Path
) -> None:
    query = TopicQuery(current, url, path, tmp_path)
    with pytest.raises(PicklingError) as caught:
        query.begin(0, 1)
    assert f"there is no topic {path} at {url}" in str(caught.value)
    assert f"`semel topics create {path} --partitions N`" in str(caught.value)
    assert '.option("partitions", 8)' in str(caught.value)
    query.writer().abort([None], 0)
    options = parse_sink({"url": url, "topic": path, "createStream": "false"})
    with pytest.raises(TopicMissing) as missing:
        BatchWriter(options, KEYED, overwrite=False)
    assert ".option" not in str(missing.value)
    client.stream(f"{path}/1").create("application/json")
    query.options["partitions"] = "3"
    with pytest.raises(PicklingError, match=f"{path}/1"):
        query.begin(0, 1)


def test_a_partitioner_of_a_newer_server_is_told(
    query: TopicQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "HASHES", {"crc64": hash})
    with pytest.raises(PicklingError, match="has the partitioner 'crc32', which this version of"):
        query.begin(0, 1)


def test_a_server_that_is_not_there_is_told(current: Current, tmp_path: Path) -> None:
    query = TopicQuery(current, "http://127.0.0.1:9", "t", tmp_path, retryTimeout="100ms")
    with pytest.raises(PicklingError, match="cannot be reached"):
        query.begin(0, 1)


def test_the_writer_of_a_stream_asks_for_no_topic(current: Current, tmp_path: Path) -> None:
    query = Query(current, "http://127.0.0.1:9", "s", tmp_path, retryTimeout="100ms")
    assert json.dumps(pickle.loads(pickle.dumps(query.writer())).layout) == "null"
