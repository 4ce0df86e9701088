"""The environment of a sink without a JVM: task contexts, a checkpoint and a reader."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StringType, StructType

from semel import Client
from semel.spark.options import parse_sink
from semel.spark.sink.writers import BATCH_ID, QUERY_ID, StagedTask, StreamWriter

VALUE = StructType().add("value", StringType())


class Task:
    """A replacement for Spark's context of one task."""

    def __init__(self, partition: int = 0, properties: Mapping[str, str] | None = None) -> None:
        self._partition = partition
        self._properties = dict(properties or {})

    def partitionId(self) -> int:
        return self._partition

    def getLocalProperty(self, name: str) -> str | None:
        return self._properties.get(name)


class Current:
    """Replaces `TaskContext.get`."""

    task: Task | None = None

    def __call__(self) -> Task | None:
        return self.task


def install(monkeypatch: Any) -> Current:
    """Replace `TaskContext.get`, so that tests can set the current task."""
    current = Current()
    monkeypatch.setattr(TaskContext, "get", current)
    return current


def batches(values: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    """Yield rows with one column in the form in which Spark passes them."""
    rows = list(values)
    if rows:
        yield pa.record_batch({"value": pa.array(rows, pa.string())})


class Query:
    """A streaming query whose batches the test runs. Every call uses a new writer."""

    def __init__(
        self,
        current: Current,
        url: str,
        stream: str,
        checkpoint: Path | None,
        query_id: str = "query-1",
        **options: str,
    ) -> None:
        self.current = current
        self.query_id = query_id
        self.checkpoint = checkpoint
        self.options = {"url": url, "stream": stream, **options}
        if checkpoint is not None:
            self.options["checkpointlocation"] = str(checkpoint)
            (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)

    def writer(self) -> StreamWriter:
        return StreamWriter(parse_sink(self.options), VALUE, overwrite=False)

    def plan(self, batch_id: int, end: Any) -> None:
        """Write the offset log, as Spark does before it runs a batch."""
        assert self.checkpoint is not None
        text = f'v1\n{{"batchTimestampMs":{batch_id}}}\n{{"end":{end}}}'
        (self.checkpoint / "offsets" / str(batch_id)).write_text(text)

    def write(
        self, batch_id: int, rows: Iterator[pa.RecordBatch], partition: int = 0
    ) -> StagedTask:
        """Run one attempt of one task."""
        facts = {QUERY_ID: self.query_id, BATCH_ID: str(batch_id)}
        self.current.task = Task(partition, facts)
        try:
            return self.writer().write(rows)
        finally:
            self.current.task = None

    def commit(self, batch_id: int, *messages: StagedTask) -> None:
        self.writer().commit(list(messages), batch_id)

    def run(self, batch_id: int, *partitions: list[Any], end: Any = None) -> list[StagedTask]:
        """Run all tasks of a batch and commit it."""
        if self.checkpoint is not None:
            self.plan(batch_id, partitions if end is None else end)
        messages = [
            self.write(batch_id, batches(rows), partition)
            for partition, rows in enumerate(partitions)
        ]
        self.commit(batch_id, *messages)
        return messages


def values(client: Client, path: str) -> list[Any]:
    """Return the committed values of a stream, or an empty list if there is no stream."""
    stream = client.stream(path)
    return [message.value for message in stream.read()] if stream.exists() else []
