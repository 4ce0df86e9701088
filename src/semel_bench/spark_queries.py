"""The queries that the benchmark `spark` runs.

This is the only benchmark module that imports Spark at its top level. Spark's Python workers also
import this module, because it defines `EmptySource`. Importing semel at the top level would add
time to every batch, so only `start` imports it.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

_SCHEMA: Final = (
    "id long, customer string, amount double, currency string, is_paid boolean,"
    " placed_at timestamp, note string"
)
_SEMEL: Final = "semel"
_NOOP: Final = "noop"
_EMPTY: Final = "semel-empty"
_VALUE: Final = b"x" * 200


class SparkQueries:
    """A Spark session and the queries that run in it.

    Each query processes the rows that are stored when it starts. It returns the duration of each
    batch in seconds, as Spark reports it.
    """

    def __init__(self, spark: SparkSession, url: str, folder: Path) -> None:
        self._spark = spark
        self._url = url
        self._folder = folder
        self._runs = 0
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        self.java_pid: int = gateway.proc.pid

    def stop(self) -> None:
        """Stop the Spark session."""
        self._spark.stop()

    def text_to_noop(self, directory: str) -> list[float]:
        """Read the lines of text files with Spark's own text source, and drop them."""
        return self._run(self._spark.readStream.text(directory), _NOOP)

    def read_to_noop(self, stream: str) -> list[float]:
        """Read the messages of a stream without decoding them, and drop them."""
        return self._run(self._read(stream), _NOOP)

    def decode_to_noop(self, stream: str) -> list[float]:
        """Read the messages of a stream, decode each into seven columns, and drop them."""
        return self._run(self._read(stream, _SCHEMA), _NOOP)

    def copy(self, stream: str, rows_per_batch: int | None = None) -> list[float]:
        """Copy the messages of a stream to a new stream."""
        frame = self._read(stream, rows_per_batch=rows_per_batch).select("value")
        target = f"copy-{self._runs}"
        return self._run(frame, _SEMEL, url=self._url, stream=target, retryTimeout="60s")

    def empty(self, rows: int, batches: int) -> list[float]:
        """Run `batches` batches of `rows` constant rows, which are dropped. semel is not used."""
        reader = self._spark.readStream.format(_EMPTY)
        return self._run(reader.options(rows=rows, batches=batches).load(), _EMPTY)

    def _read(
        self, stream: str, schema: str | None = None, rows_per_batch: int | None = None
    ) -> DataFrame:
        reader = self._spark.readStream.format(_SEMEL).options(url=self._url, stream=stream)
        if rows_per_batch is not None:
            reader = reader.option("maxOffsetsPerTrigger", rows_per_batch)
        return (reader if schema is None else reader.schema(schema)).load()

    def _run(self, frame: DataFrame, sink: str, **options: str) -> list[float]:
        self._runs += 1
        writer = frame.writeStream.format(sink).options(**options)
        writer = writer.option("checkpointLocation", str(self._folder / f"run-{self._runs}"))
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
        durations = [each["durationMs"] for each in query.recentProgress]
        return [each["triggerExecution"] / 1e3 for each in durations if "addBatch" in each]


def start(url: str, folder: Path) -> SparkQueries:
    """Start Spark on two cores and return its queries.

    The queries can be run only in the thread that called this function.
    """
    from semel.spark import session

    spark = session("semel bench", "local[2,4]", sql_shuffle_partitions=2)
    spark.dataSource.register(EmptySource)
    return SparkQueries(spark, url, folder)


# ---- a source and a sink that do no work, to measure the cost of an empty batch ------------------


class EmptySource(DataSource):
    """A source of constant rows, and a sink that drops all rows.

    The option `batches` is the number of batches, and `rows` is the number of rows in each batch.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name under which `.format(...)` finds this source."""
        return _EMPTY

    def schema(self) -> str:
        """Return the schema: one column of bytes."""
        return "value binary"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader. It generates the rows."""
        del schema
        return _Reader(int(self.options["rows"]), int(self.options["batches"]))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the writer. It drops all rows."""
        del schema, overwrite
        return _Writer()


class _Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, rows: int, batches: int) -> None:
        self._rows = rows
        self._batches = batches

    def initialOffset(self) -> dict[str, Any]:
        return {"batch": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        """Do nothing, because the number of batches is fixed."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        del limit
        return {"batch": min(start["batch"] + 1, self._batches)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        del start, end
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        del partition
        values = pa.array([_VALUE] * self._rows, pa.binary())
        yield pa.RecordBatch.from_arrays([values], names=["value"])


class _Writer(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing, because nothing was written."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing, because nothing was written."""
