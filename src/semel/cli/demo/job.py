"""The demo's Spark program. It turns orders into enriched orders and totals per window.

The program writes its results twice: with semel's sink, and with plain appends. The demo runs
`python -m semel.cli.demo.job JSON`, and later kills this process.
"""

import os
import signal
import sys
import threading
import time
from itertools import chain
from typing import TYPE_CHECKING, Final

import msgspec

from semel.cli.demo.lanes import append_with_plain_retries
from semel.cli.demo.plan import AISLES, WATERMARK_MS, WINDOW_MS, Job
from semel.client.sync.client import Client

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_SCHEMA: Final = "order long, at long, item string, cents long"
_NAIVE_ROWS: Final = 500
_POLL_SECONDS: Final = 0.1


def run_job(job: Job) -> None:
    """Write enriched orders and totals, once with semel's sink and once with plain retries."""
    import semel.spark

    spark = semel.spark.session(
        "semel demo",
        "local[2,4]",
        driver_extraJavaOptions="-XX:TieredStopAtLevel=1",  # halves the startup time
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
    return (
        spark.readStream.format("semel")
        .schema(_SCHEMA)
        .option("url", job.url)
        .option("stream", path)
        .option("maxOffsetsPerTrigger", job.rows_per_batch)
        .load()
    )


def enriched(orders: "DataFrame") -> "DataFrame":
    """Add to each order the aisle of its item."""
    from pyspark.sql import functions as f

    aisles = f.create_map(*map(f.lit, chain(*AISLES.items())))
    row = f.struct("order", "at", "item", aisles[f.col("item")].alias("aisle"), "cents")
    return orders.select(f.to_json(row).alias("value"))


def totals(orders: "DataFrame") -> "DataFrame":
    """Count the orders per minute and add up their prices. Spark writes only closed windows."""
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
    """Write the rows with semel's sink. The sink commits each Spark batch exactly once."""
    writer = rows.writeStream.format("semel").option("url", job.url).option("stream", path)
    return _start(job, path, writer.option("txnAppId", f"demo-{path}"))


def write_naively(job: Job, path: str, rows: "DataFrame") -> "StreamingQuery":
    """Append the rows in `foreachBatch` with plain retries, as many applications do."""
    stream = Client(job.url, retry_appends=False).stream(path)

    def append(batch: "DataFrame", _batch_id: int) -> None:
        messages = [row.value.encode() for row in batch.collect()]
        for at in range(0, len(messages), _NAIVE_ROWS):
            append_with_plain_retries(stream, messages[at : at + _NAIVE_ROWS])

    return _start(job, path, rows.writeStream.foreachBatch(append))


def _start(job: Job, path: str, writer: "DataStreamWriter") -> "StreamingQuery":
    checkpoint = os.path.join(job.checkpoints, path)
    writer = writer.queryName(path).option("checkpointLocation", checkpoint)
    query = (writer.trigger(availableNow=True) if job.is_last else writer).start()
    # Start one query at a time: Spark waits only 10 seconds for the Python workers of a query.
    while query.isActive and query.status["message"].startswith("Initializing"):
        time.sleep(_POLL_SECONDS)
    return query


def _follow_parent() -> None:
    """Wait until the demo ends, then kill this process group.

    Standard input is a pipe from the demo. The pipe is closed when the demo ends.
    """
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)  # kills the JVM too; the JVM's workers end when the JVM ends


if __name__ == "__main__":
    threading.Thread(target=_follow_parent, daemon=True).start()
    run_job(msgspec.json.decode(sys.argv[1], type=Job))
    # Everything is committed. The demo then kills the JVM. This is faster than stopping Spark.
    sys.stderr.flush()
    os._exit(0)
