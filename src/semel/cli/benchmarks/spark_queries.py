"""Queries of Spark, run to their end, and what their batches took. Only this imports Spark."""

from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from semel.cli.benchmarks.processes import cpu_seconds_below, cpu_seconds_of
from semel.cli.benchmarks.spark_nothing import Nothing
from semel.cli.benchmarks.spark_rows import SCHEMA
from semel.spark import session

_MASTER: Final = "local[2,4]"
_SEMEL: Final = "semel"
_NOOP: Final = "noop"
# They live as long as the session. What reads the offsets of a query lives as long as the query.
_WORKERS: Final = b"pyspark.daemon"


class Lab:
    """One session, and the queries that are run in it: each in one run up to what is there now."""

    def __init__(self, spark: SparkSession, url: str, folder: Path) -> None:
        self._spark = spark
        self._url = url
        self._folder = folder
        self._runs = 0
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        self._java = gateway.proc.pid

    @property
    def cpu_seconds(self) -> tuple[float, float]:
        """CPU time so far: that of the JVM, and that of its Python workers."""
        return cpu_seconds_of(self._java), cpu_seconds_below(self._java, _WORKERS)

    def stop(self) -> None:
        """End the session."""
        self._spark.stop()

    def text_to_noop(self, directory: str) -> list[float]:
        """Read lines with Spark's own source, and drop them."""
        return self._run(self._spark.readStream.text(directory), _NOOP)

    def read_to_noop(self, stream: str) -> list[float]:
        """Read messages as they are, and drop them."""
        return self._run(self._read(stream), _NOOP)

    def decode_to_noop(self, stream: str) -> list[float]:
        """Read messages as seven columns, and drop them."""
        return self._run(self._read(stream, SCHEMA), _NOOP)

    def copy(self, stream: str, rows_per_batch: int | None = None) -> list[float]:
        """Copy messages to a stream that is not there yet."""
        frame = self._read(stream, rows_per_batch=rows_per_batch).select("value")
        return self._run(
            frame, _SEMEL, url=self._url, stream=f"copy-{self._runs}", retryTimeout="60s"
        )

    def nothing(self, rows: int, batches: int) -> list[float]:
        """Run batches that do nothing, from a Python source to a Python sink."""
        reader = self._spark.readStream.format(Nothing.name())
        return self._run(reader.options(rows=rows, batches=batches).load(), Nothing.name())

    def _read(
        self, stream: str, schema: str | None = None, rows_per_batch: int | None = None
    ) -> DataFrame:
        reader = self._spark.readStream.format(_SEMEL).options(url=self._url, stream=stream)
        if rows_per_batch is not None:
            reader = reader.option("maxOffsetsPerTrigger", rows_per_batch)
        return (reader if schema is None else reader.schema(schema)).load()

    def _run(self, frame: DataFrame, sink: str, **options: str) -> list[float]:
        """Run a query; the seconds of each batch, as Spark tells them."""
        self._runs += 1
        writer = frame.writeStream.format(sink).options(**options)
        writer = writer.option("checkpointLocation", str(self._folder / f"run-{self._runs}"))
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return _batch_seconds(query)


def _batch_seconds(query: StreamingQuery) -> list[float]:
    found = [each for each in query.recentProgress if "addBatch" in each["durationMs"]]
    return [each["durationMs"]["triggerExecution"] / 1e3 for each in found]


def start(url: str, folder: Path) -> Lab:
    """Start Spark on two cores. Queries must be run by the thread that comes here."""
    spark = session("semel bench", _MASTER, sql_shuffle_partitions=2)
    spark.dataSource.register(Nothing)
    return Lab(spark, url, folder)
