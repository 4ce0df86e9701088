"""The Spark driver of the torture test, a separate program that reads a `Job` from its input.

One query reads the stream `in` and writes every row twice, in one batch: to `ordered/*` by a plan
without a shuffle, and to `mixed/*` after a shuffle that distributes the rows differently in each
attempt. Tasks fail at random after half of their rows.
"""

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec
import pyarrow as pa
from msgspec import Struct
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.functions import concat, expr, lit, rand
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from semel import Client
from semel.client.values import CommitResult
from semel.spark import session
from semel.spark.data_source import SemelDataSource
from semel.spark.options import parse_sink
from semel.spark.sink import staging, writers
from semel.spark.sink.commit import commit_staged
from semel.spark.sink.staging import Chunker

TARGETS: Final = 3
CHUNK_BYTES: Final = 2_048  # small, so that a task has several chunks
FAILURES_MAX: Final = 2  # of a task; the fourth failure would end the query
# Options for a JVM that starts quickly, because it runs only for a short time.
QUICK: Final = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)


class Job(Struct, frozen=True):
    """The settings of one driver. `fail` is the probability that an attempt of a task fails."""

    url: str
    home: str
    rows_per_batch: int
    slices: int
    shuffled: int
    fail: float
    is_last: bool = False
    is_naive: bool = False


def note(home: str, name: str) -> None:
    """Count an event in a file, so that the count survives a kill."""
    with Path(home, name).open("a") as notes:
        notes.write(".")


class TorturedSource(SemelDataSource):
    """The format of semel with the sink of this test."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> "TorturedWriter":
        return TorturedWriter(parse_sink(self.options), schema, overwrite)


class TorturedWriter(writers.StreamWriter):
    """The sink of semel with small chunks, which also counts replays."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> writers.StagedTask:
        """Stage the rows in many chunks."""
        vars(staging)["Chunker"] = partial(Chunker, CHUNK_BYTES)
        return super().write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Commit, and count the responses that report a duplicate."""
        home = str(Path(str(self.options.checkpoint).removeprefix("file:")).parent)
        vars(writers)["commit_staged"] = partial(_commit, home)
        super().commit(messages, batchId)


def _commit(home: str, *arguments: Any) -> CommitResult:
    result = commit_staged(*arguments)
    if result.duplicate:
        note(home, "replays")
    return result


def fragile(job: Job, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield all batches, or yield half of them and raise an error."""
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() >= FAILURES_MAX or Random().random() >= job.fail:
        yield from batches
        return
    whole = list(batches)
    yield from whole[: len(whole) // 2]
    note(job.home, "failures")
    raise RuntimeError("this attempt was to fail")


def rows_of(spark: SparkSession, job: Job) -> DataFrame:
    """Return every row of the source twice, with both target streams."""
    source = spark.readStream.format("semel").option("url", job.url).option("stream", "in")
    limits = {"maxOffsetsPerTrigger": job.rows_per_batch, "minPartitions": job.slices}
    rows = source.options(**limits).load().selectExpr("cast(value as string) value")
    target = expr(f"cast(get_json_object(value, '$.n') % {TARGETS} as int)")
    mixed = rows.withColumn("place", rand()).repartition(job.shuffled, "place").drop("place")
    ways = [
        way.select(concat(lit(f"{name}/"), target).alias("stream"), "value")
        for name, way in (("ordered", rows), ("mixed", mixed))
    ]
    return (
        ways[0].unionAll(ways[1]).mapInArrow(partial(fragile, job), "stream string, value string")
    )


def append_plainly(job: Job, rows: DataFrame, _batch_id: int) -> None:
    """Append without a sink. This mutant writes a batch again with each replay."""
    found: dict[str, list[Any]] = {}
    for row in rows.collect():
        found.setdefault(row.stream, []).append(msgspec.json.decode(row.value))
    with Client(job.url) as client:
        for path, values in sorted(found.items()):
            client.stream(path).create("application/json", exist_ok=True).append_many(values)


def start(spark: SparkSession, job: Job) -> StreamingQuery:
    writer = rows_of(spark, job).writeStream.option("checkpointLocation", f"{job.home}/checkpoint")
    if job.is_last:
        writer = writer.trigger(availableNow=True)
    if job.is_naive:
        return writer.foreachBatch(partial(append_plainly, job)).start()
    return writer.format("semel").option("url", job.url).start()


def main() -> None:
    """Start Spark, read a `Job`, and run the query until it ends or the process is killed."""
    spark = session(
        "torture",
        "local[2,4]",
        driver_extraJavaOptions=QUICK,
        sql_execution_arrow_maxRecordsPerBatch=8,
    )
    spark.dataSource.register(TorturedSource)
    job = msgspec.json.decode(sys.stdin.readline(), type=Job)
    start(spark, job).awaitTermination()
    spark.stop()
