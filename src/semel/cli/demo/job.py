"""The demo's Spark program: orders to windowed totals and to enriched orders, in two ways.

Run as `python -m semel.cli.demo.job JSON` by the demo, which kills it; it does not know that.
"""

import os
import signal
import sys
import threading
import time
from itertools import chain
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from semel.cli.demo.lanes import append_until_answered
from semel.cli.demo.plan import AISLES, WATERMARK_MS, WINDOW_MS
from semel.client.sync.client import Client

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_SCHEMA: Final = "order long, at long, item string, cents long"
_NAIVE_ROWS: Final = 500
_POLL_SECONDS: Final = 0.1


class Job(Struct, frozen=True):
    """What to run. `is_last`: up to what is there now, then end; else until killed."""

    url: str
    checkpoints: str
    rows_per_batch: int
    is_last: bool


def run(job: Job) -> None:
    """Run all four queries in one session."""
    import semel.spark

    spark = semel.spark.session(
        "semel demo",
        "local[2,4]",
        driver_extraJavaOptions="-XX:TieredStopAtLevel=1",  # starts in half the time
        sql_shuffle_partitions=2,
    )
    exact, naive = read(spark, job, "orders"), read(spark, job, "orders-naive")
    queries = [
        write_exactly_once(job, "totals", totals(exact)),
        write_exactly_once(job, "enriched", enriched(exact)),
        write_naively(job, "totals-naive", totals(naive)),
        write_naively(job, "enriched-naive", enriched(naive)),
    ]
    for query in queries:
        query.awaitTermination()


def read(spark: "SparkSession", job: Job, path: str) -> "DataFrame":
    """Read orders as they come."""
    return (
        spark.readStream.format("semel")
        .schema(_SCHEMA)
        .option("url", job.url)
        .option("stream", path)
        .option("maxOffsetsPerTrigger", job.rows_per_batch)
        .load()
    )


def enriched(orders: "DataFrame") -> "DataFrame":
    """Look up the aisle of each order's item."""
    from pyspark.sql import functions as f

    aisles = f.create_map(*map(f.lit, chain(*AISLES.items())))
    row = f.struct("order", "at", "item", aisles[f.col("item")].alias("aisle"), "cents")
    return orders.select(f.to_json(row).alias("value"))


def totals(orders: "DataFrame") -> "DataFrame":
    """Count and sum the orders of each minute; a total appears when its window closes."""
    from pyspark.sql import functions as f

    timed = orders.withColumn("time", f.timestamp_millis("at"))
    windows = (
        timed.withWatermark("time", f"{WATERMARK_MS} milliseconds")
        .groupBy(f.window("time", f"{WINDOW_MS} milliseconds"))
        .agg(f.count("*").alias("orders"), f.sum("cents").alias("cents"))
    )
    start = f.unix_millis("window.start").alias("start")
    return windows.select(f.to_json(f.struct(start, "orders", "cents")).alias("value"))


def write_exactly_once(job: Job, path: str, rows: "DataFrame") -> "StreamingQuery":
    """Let semel's sink write: nothing to take care of."""
    writer = rows.writeStream.format("semel").option("url", job.url).option("stream", path)
    return _start(job, path, writer.option("txnAppId", f"demo-{path}"))


def write_naively(job: Job, path: str, rows: "DataFrame") -> "StreamingQuery":
    """Append in foreachBatch and send again what is not answered, as is often done."""
    stream = Client(job.url).stream(path)

    def append(batch: "DataFrame", _batch_id: int) -> None:
        messages = [row.value.encode() for row in batch.collect()]
        for at in range(0, len(messages), _NAIVE_ROWS):
            append_until_answered(stream, messages[at : at + _NAIVE_ROWS])

    return _start(job, path, rows.writeStream.foreachBatch(append))


def _start(job: Job, path: str, writer: "DataStreamWriter") -> "StreamingQuery":
    checkpoint = os.path.join(job.checkpoints, path)
    writer = writer.queryName(path).option("checkpointLocation", checkpoint)
    query = (writer.trigger(availableNow=True) if job.is_last else writer).start()
    # Each query starts Python helpers, which Spark gives 10 seconds: not all of them at once.
    while query.isActive and query.status["message"].startswith("Initializing"):
        time.sleep(_POLL_SECONDS)
    return query


def _follow_parent() -> None:
    """End with the demo, however that ends; nobody writes to this pipe."""
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)  # the JVM, too; its workers end with it


def main() -> None:
    """Run the job given on the command line."""
    threading.Thread(target=_follow_parent, daemon=True).start()
    run(msgspec.json.decode(sys.argv[1], type=Job))
    # All is committed. Whoever started this ends the JVM with it, more quickly than Spark would.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
