"""The source in Spark. Tests that need no JVM are in tests/unit/spark."""

import json
import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

from semel import Client, local
from semel.client.sync.stream import Stream

TYPED = "id long, total double, at timestamp, _offset long, _corrupt_record string"


@pytest.fixture
def orders(client: Client) -> Stream:
    """An unused JSON stream."""
    return client.stream(f"orders-{uuid4().hex}").create("application/json")


def fill(orders: Stream, first: int, count: int) -> None:
    orders.append_many(
        [{"id": number, "total": number / 2} for number in range(first, first + count)]
    )


def stream_of(spark: SparkSession, orders: Stream, **options: Any) -> DataStreamReader:
    url = orders.client.url
    reader = spark.readStream.format("semel").option("url", url).option("stream", orders.path)
    return reader.options(**{"retryTimeout": "30s", **options})


class Seen:
    """Runs a query and keeps the rows of each batch."""

    def __init__(self, frame: DataFrame, checkpoint: Path) -> None:
        self._frame = frame
        self._checkpoint = checkpoint
        self.batches: list[list[Any]] = []

    def run(self) -> StreamingQuery:
        """Run until all current messages are read."""
        writer = self._frame.writeStream.foreachBatch(self._keep)
        query = writer.option("checkpointLocation", str(self._checkpoint)).trigger(
            availableNow=True
        )
        started = query.start()
        assert started.awaitTermination(240)
        return started

    def _keep(self, frame: DataFrame, _: int) -> None:
        self.batches.append(sorted(row[0] for row in frame.collect()))


def test_available_now_with_a_limit_runs_several_batches_and_goes_on_from_its_checkpoint(
    spark: SparkSession, orders: Stream, tmp_path: Path
) -> None:
    fill(orders, 0, 10)
    frame = stream_of(spark, orders, maxOffsetsPerTrigger=4, minPartitions=2)
    seen = Seen(frame.load().selectExpr("offset"), tmp_path)
    query = seen.run()
    assert seen.batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    progress = query.lastProgress
    assert progress is not None
    end = {orders.path: {"id": orders.head().incarnation, "next": 10}}
    assert json.loads(progress["sources"][0]["endOffset"]) == end
    assert json.loads(progress["sources"][0]["latestOffset"]) == end
    fill(orders, 10, 3)
    seen.run()
    assert seen.batches[3:] == [[10, 11, 12]]


def test_latest_does_not_move_when_the_first_batch_is_run_again(
    spark: SparkSession, orders: Stream, tmp_path: Path
) -> None:
    fill(orders, 0, 5)
    frame = stream_of(spark, orders, startingOffsets="latest").load().selectExpr("offset")
    Seen(frame, tmp_path).run()
    # The state after a crash between the offset log and the commit of batch 0.
    shutil.rmtree(tmp_path / "commits")
    fill(orders, 5, 2)
    seen = Seen(frame, tmp_path)
    seen.run()
    assert [batch for batch in seen.batches if batch] == [[5, 6]]


def test_a_schema_is_decoded_in_the_worker_and_bad_records_do_no_harm(
    spark: SparkSession, orders: Stream
) -> None:
    orders.append_many(
        [
            {"id": 1, "total": 2.5, "at": "2024-05-06T07:08:09Z"},
            {"id": "one"},
            [1, 2],
            None,
            {"id": 4, "more": True},
        ]
    )
    query = (
        stream_of(spark, orders)
        .schema(TYPED)
        .load()
        .writeStream.format("memory")
        .queryName("decoded")
        .start()
    )
    query.processAllAvailable()
    query.stop()
    rows = spark.sql("select *, unix_seconds(at) s from decoded order by _offset").collect()
    assert [(row.id, row.total, row.s, row._corrupt_record) for row in rows] == [
        (1, 2.5, 1714979289, None),
        (None, None, None, '{"id":"one"}'),
        (None, None, None, "[1,2]"),
        (None, None, None, "null"),
        (4, None, None, None),
    ]


def test_a_batch_reads_every_column_and_every_type(spark: SparkSession, orders: Stream) -> None:
    record = {
        "a": True,
        "b": 7,
        "c": 1.5,
        "d": "2024-05-06",
        "e": 12.34,
        "f": [1, 2],
        "g": {"x": 1, "y": [{"z": "q"}]},
        "h": {"k": 5},
    }
    orders.append(record, key="k", headers={"trace": b"1"})
    options = {"url": orders.client.url, "stream": orders.path}
    plain = spark.read.format("semel").options(**options).option("includeHeaders", "true").load()
    (row,) = plain.collect()
    assert (bytes(row.key), json.loads(bytes(row.value)), row.stream) == (b"k", record, orders.path)
    assert (row.partition, row.offset) == (0, 0)
    assert [(pair.key, bytes(pair.value)) for pair in row.headers] == [("trace", b"1")]
    ddl = (
        "a boolean, b int, c float, d date, e decimal(10,2), f array<long>,"
        " g struct<x: short, y: array<struct<z: string>>>, h map<string, int>"
    )
    typed = spark.read.format("semel").options(**options).schema(ddl).load()
    (found,) = typed.selectExpr("to_json(struct(*)) j").collect()
    assert json.loads(found.j) == record


# ---- bad input: one line for the user ------------------------------------------------------------


def failure(frame_of: Any) -> str:
    """Read a batch, which must fail; return the text of the exception."""
    with pytest.raises(PySparkException) as caught:
        frame_of().collect()
    return str(caught.value)


def test_bad_input_of_a_batch_is_told_with_its_cure(spark: SparkSession, orders: Stream) -> None:
    fill(orders, 0, 6)
    url = orders.client.url

    def read(schema: str | None = None, **options: Any) -> Any:
        reader = spark.read.format("semel").option("url", url).options(**options)
        return (reader if schema is None else reader.schema(schema)).load

    assert "did you mean startingOffsets?" in failure(read(stream=orders.path, startOffsets="1"))
    nowhere = failure(read(url="http://127.0.0.1:9", stream=orders.path, retryTimeout="200ms"))
    assert "http://127.0.0.1:9 cannot be reached" in nowhere
    assert "correct the option 'url'" in nowhere
    assert f"did you mean {orders.path}" in failure(read(stream=orders.path[:-1]))
    assert "cannot be decoded from JSON as binary" in failure(read("a binary", stream=orders.path))
    orders.trim(before="0000000000000000_0000000000000004")
    trimmed = failure(read(stream=orders.path, startingOffsets=json.dumps({orders.path: 1})))
    assert "offsets 1 to 3 were trimmed before the query read them" in trimmed
    assert "failOnDataLoss" in trimmed


def test_bad_input_of_a_stream_is_told_with_its_cure(
    spark: SparkSession, orders: Stream, tmp_path: Path
) -> None:
    fill(orders, 0, 3)
    frame = stream_of(spark, orders).load().selectExpr("offset")
    Seen(frame, tmp_path / "a").run()
    orders.delete()
    orders.create("application/json")
    with pytest.raises(PySparkException) as caught:
        Seen(frame, tmp_path / "a").run()
    assert f"{orders.path} was deleted and created again" in str(caught.value)
    orders.delete()
    with pytest.raises(PySparkException) as caught:
        Seen(frame, tmp_path / "b").run()
    assert f"there is no stream {orders.path}" in str(caught.value)
    with pytest.raises(PySparkException) as caught:
        stream_of(spark, orders, endingOffsets="latest").load().writeStream.format("noop").start(
            checkpointLocation=str(tmp_path / "c")
        ).awaitTermination(60)
    assert "endingOffsets cannot be used in a streaming read" in str(caught.value)


def test_a_query_goes_on_after_a_restart_and_says_so_when_the_server_stays_away(
    spark: SparkSession, tmp_path: Path
) -> None:
    with local() as server:
        orders = server.stream("orders").create("application/json")
        fill(orders, 0, 3)
        frame = stream_of(spark, orders, retryTimeout="12s").load().selectExpr("offset")
        writer = frame.writeStream.format("memory").queryName("restarted")
        query = writer.option("checkpointLocation", str(tmp_path)).start()
        query.processAllAvailable()
        server.kill()
        server.restart()
        fill(orders, 3, 2)
        query.processAllAvailable()
        assert sorted(row[0] for row in spark.table("restarted").collect()) == [0, 1, 2, 3, 4]
        server.kill()
        with pytest.raises(PySparkException) as caught:
            query.awaitTermination(120)
    assert f"{server.url} cannot be reached" in str(caught.value)
    assert "start the server (`semel serve`) or correct the option 'url'" in str(caught.value)
