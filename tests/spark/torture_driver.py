"""The driver that is tortured, a program of its own: a `Life` on its input tells it what to do.

One query reads the stream `in` and writes every row twice, in one batch: to `ordered/*` by a plan
without a shuffle, and to `mixed/*` behind one that deals the rows out anew with each attempt. Tasks
fail by chance when half of their rows are handed on.
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
CHUNK_BYTES: Final = 2_048  # so that a task has several
FAILURES_MAX: Final = 2  # of a task: the query gives up at the fourth
# A JVM that starts quickly; it never lives long.
QUICK: Final = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)


class Life(Struct, frozen=True):
    """What one driver does. `fail` is how likely an attempt of a task fails."""

    url: str
    home: str
    rows_per_batch: int
    slices: int
    shuffled: int
    fail: float
    is_last: bool = False
    is_naive: bool = False


def note(home: str, name: str) -> None:
    """Count something, in a way that survives whatever comes next."""
    with Path(home, name).open("a") as notes:
        notes.write(".")


class TorturedSource(SemelDataSource):
    """The format as it is, but for small chunks, and its replays counted."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> "TorturedWriter":
        """Give the sink."""
        return TorturedWriter(parse_sink(self.options), schema, overwrite)


class TorturedWriter(writers.StreamWriter):
    """The sink as it is, but for small chunks, and its replays counted."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> writers.StagedTask:
        """Stage in many chunks."""
        vars(staging)["Chunker"] = partial(Chunker, CHUNK_BYTES)
        return super().write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Count the answers that say it was done before."""
        home = str(Path(str(self.options.checkpoint).removeprefix("file:")).parent)
        vars(writers)["commit_staged"] = partial(_commit, home)
        super().commit(messages, batchId)


def _commit(home: str, *arguments: Any) -> CommitResult:
    result = commit_staged(*arguments)
    if result.duplicate:
        note(home, "replays")
    return result


def fragile(life: Life, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Hand on all rows, or half of them and an error."""
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() >= FAILURES_MAX or Random().random() >= life.fail:
        yield from batches
        return
    whole = list(batches)
    yield from whole[: len(whole) // 2]
    note(life.home, "failures")
    raise RuntimeError("this attempt was to fail")


def rows_of(spark: SparkSession, life: Life) -> DataFrame:
    """Read, and send every row both ways."""
    source = spark.readStream.format("semel").option("url", life.url).option("stream", "in")
    limits = {"maxOffsetsPerTrigger": life.rows_per_batch, "minPartitions": life.slices}
    rows = source.options(**limits).load().selectExpr("cast(value as string) value")
    target = expr(f"cast(get_json_object(value, '$.n') % {TARGETS} as int)")
    mixed = rows.withColumn("place", rand()).repartition(life.shuffled, "place").drop("place")
    ways = [
        way.select(concat(lit(f"{name}/"), target).alias("stream"), "value")
        for name, way in (("ordered", rows), ("mixed", mixed))
    ]
    return (
        ways[0].unionAll(ways[1]).mapInArrow(partial(fragile, life), "stream string, value string")
    )


def append_plainly(life: Life, rows: DataFrame, _batch_id: int) -> None:
    """Do as one would without a sink: the mutant, which writes a batch again with each replay."""
    found: dict[str, list[Any]] = {}
    for row in rows.collect():
        found.setdefault(row.stream, []).append(msgspec.json.decode(row.value))
    with Client(life.url) as client:
        for path, values in sorted(found.items()):
            client.stream(path).create("application/json", exist_ok=True).append_many(values)


def start(spark: SparkSession, life: Life) -> StreamingQuery:
    """Start the query."""
    writer = rows_of(spark, life).writeStream.option(
        "checkpointLocation", f"{life.home}/checkpoint"
    )
    if life.is_last:
        writer = writer.trigger(availableNow=True)
    if life.is_naive:
        return writer.foreachBatch(partial(append_plainly, life)).start()
    return writer.format("semel").option("url", life.url).start()


def main() -> None:
    """Get ready, be told what to do, and run until the end of what is there, or until killed."""
    spark = session(
        "torture",
        "local[2,4]",
        driver_extraJavaOptions=QUICK,
        sql_execution_arrow_maxRecordsPerBatch=8,
    )
    spark.dataSource.register(TorturedSource)
    life = msgspec.json.decode(sys.stdin.readline(), type=Life)
    start(spark, life).awaitTermination()
    spark.stop()
