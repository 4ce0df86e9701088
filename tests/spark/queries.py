"""Queries over streams of a server that are run, crashed on purpose and run again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from semel import Client

Change = Callable[[DataFrame], DataFrame]


def same(frame: DataFrame) -> DataFrame:
    return frame.select("value")


class Copy:
    """A query that copies one stream to another, with a few messages in each batch."""

    def __init__(
        self, spark: SparkSession, url: str, source: str, target: str, checkpoint: Path
    ) -> None:
        self.spark = spark
        self.url = url
        self.source = source
        self.target = target
        self.checkpoint = checkpoint
        self.options: dict[str, str] = {}
        self.per_batch = 1_000_000
        self.change: Change = same
        self.mode = "append"

    def frame(self) -> DataFrame:
        reader = self.spark.readStream.format("semel").option("url", self.url)
        return reader.options(stream=self.source, maxOffsetsPerTrigger=self.per_batch).load()

    def writer(self) -> DataStreamWriter:
        writer = self.change(self.frame()).writeStream.outputMode(self.mode)
        settings = {"url": self.url, "stream": self.target, **self.options}
        return (
            writer.format("semel")
            .option("checkpointLocation", str(self.checkpoint))
            .options(**settings)
        )

    def run(self) -> None:
        """Run until all current messages of the source are read."""
        finish(self.writer())

    def fail(self) -> str:
        """Run the query, which must fail; return the text of its error."""
        return failure(self.run)

    def forget_commit(self, batch_id: int) -> None:
        """Simulate a crash after the commit of the sink and before the commit of Spark."""
        forget_commit(self.checkpoint, batch_id)


def finish(writer: DataStreamWriter) -> None:
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


def failure(run: Callable[[], object]) -> str:
    try:
        run()
    except StreamingQueryException as error:
        return str(error)
    raise AssertionError("the query did not fail")


def forget_commit(checkpoint: Path, batch_id: int) -> None:
    (checkpoint / "commits" / str(batch_id)).unlink()
    (checkpoint / "commits" / f".{batch_id}.crc").unlink(missing_ok=True)


def fill(client: Client, path: str, start: int, end: int) -> None:
    """Append numbers to a stream, which is created if it does not exist."""
    stream = client.stream(path).create("application/json", exist_ok=True)
    stream.append_many(list(range(start, end)))


def values(client: Client, path: str) -> list[Any]:
    stream = client.stream(path)
    return [message.value for message in stream.read()] if stream.exists() else []
