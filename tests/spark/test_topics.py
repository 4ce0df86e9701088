"""Topics in Spark: one as the source and one as the sink, for behavior that only a query shows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from semel import Client
from semel.client.sync.topic import Topic
from semel.model.partitioners import partition_of
from semel.spark import commit_batch
from tests.spark.queries import failure, finish, forget_commit, values


@pytest.fixture
def source(client: Client) -> Topic:
    return client.topic(f"t/in-{uuid4().hex}").create(3, "application/json")


@pytest.fixture
def target(client: Client) -> Topic:
    return client.topic(f"t/out-{uuid4().hex}").create(2, "application/json", partitioner="murmur2")


def key_of(number: int) -> str:
    return f"customer-{number % 17}"


def fill(topic: Topic, numbers: range) -> None:
    topic.append_many(list(numbers), keys=[key_of(number) for number in numbers])


def place_of(number: int, partitions: int, partitioner: str) -> int:
    return partition_of(partitioner, key_of(number).encode(), partitions)


def contents(client: Client, topic: Topic) -> list[list[Any]]:
    return [values(client, entry.stream) for entry in topic.describe().partitions]


class FailOnce:
    """Fails the first attempt of one task after half its rows."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            yield batch.slice(0, batch.num_rows // 2)
            if context.attemptNumber() == 0 and context.partitionId() == 0:
                raise RuntimeError("lost on purpose")
            yield batch.slice(batch.num_rows // 2)


def copy(spark: SparkSession, source: Topic, target: Topic, checkpoint: Path) -> DataStreamWriter:
    url = source.client.url
    frame = spark.readStream.format("semel").options(url=url, topic=source.name).load()
    rows = frame.selectExpr("key", "value").mapInArrow(FailOnce(), "key binary, value binary")
    return (
        rows.writeStream.format("semel")
        .options(url=url, topic=target.name)
        .option("checkpointLocation", str(checkpoint))
    )


def test_both_topics_grow_between_batches_that_are_tried_again(
    spark: SparkSession, client: Client, source: Topic, target: Topic, tmp_path: Path
) -> None:
    fill(source, range(60))
    finish(copy(spark, source, target, tmp_path))
    before = contents(client, target)
    assert [sorted(part) for part in before] == expected(range(60), 2)
    forget_commit(tmp_path, 0)  # Spark was killed between the two commits
    source.grow(5, keys_may_move=True)
    target.grow(4, keys_may_move=True)
    fill(source, range(60, 120))
    finish(copy(spark, source, target, tmp_path))
    found = contents(client, target)
    assert found[:2] == [part + found[at][len(part) :] for at, part in enumerate(before)]
    added = [part[len(before[at]) if at < 2 else 0 :] for at, part in enumerate(found)]
    assert [sorted(part) for part in added] == expected(range(60, 120), 4)


def expected(numbers: range, partitions: int) -> list[list[int]]:
    places = range(partitions)
    return [[n for n in numbers if place_of(n, partitions, "murmur2") == at] for at in places]


def test_a_topic_is_read_as_a_batch_with_the_partition_and_the_order_of_each_key(
    spark: SparkSession, source: Topic
) -> None:
    fill(source, range(200))
    options = {"url": source.client.url, "topic": source.name, "minPartitions": "5"}
    frame = spark.read.format("semel").options(**options).load()
    rows = frame.selectExpr(
        "int(string(value)) n", "partition", "stream", "string(key) k"
    ).collect()
    assert {row.n: (row.partition, row.k) for row in rows} == {
        n: (place_of(n, 3, "crc32"), key_of(n)) for n in range(200)
    }
    assert all(row.stream == f"{source.name}/{row.partition}" for row in rows)
    for key in {row.k for row in rows}:
        own = [row.n for row in rows if row.k == key]
        assert own == sorted(own)


def test_a_batch_of_foreach_batch_is_written_to_a_stream_and_a_topic_in_one_commit(
    spark: SparkSession, client: Client, source: Topic, target: Topic, tmp_path: Path
) -> None:
    url = source.client.url
    fill(source, range(30))
    totals = f"totals-{uuid4().hex}"
    fails = [True]

    def write(frame: DataFrame, batch_id: int) -> None:
        rows = frame.selectExpr("key", "value")
        sums = frame.selectExpr("sum(int(string(value))) as total")
        commit_batch(batch_id, {totals: sums}, topics={target.name: rows}, url=url, app=totals)
        if fails.pop():
            raise RuntimeError("killed after the commit")

    reader = spark.readStream.format("semel").options(url=url, topic=source.name)
    writer = reader.load().writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", str(tmp_path))
    assert "killed after the commit" in failure(lambda: finish(writer))
    fails.append(False)
    finish(writer)
    assert values(client, totals) == [{"total": sum(range(30))}]
    assert [sorted(part) for part in contents(client, target)] == expected(range(30), 2)


def test_a_topic_that_is_missing_is_named_by_both_ends(
    spark: SparkSession, source: Topic, target: Topic, tmp_path: Path
) -> None:
    target.delete()
    with pytest.raises(StreamingQueryException, match=f"there is no topic {target.name}"):
        finish(copy(spark, source, target, tmp_path / "a"))
    source.delete()
    with pytest.raises(StreamingQueryException, match=f"there is no topic {source.name}"):
        finish(copy(spark, source, target, tmp_path / "b"))
