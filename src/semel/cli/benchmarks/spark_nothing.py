"""A source and a sink for Spark that do nothing: what a batch costs by itself."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

_VALUE: Final = b"x" * 200


class Nothing(DataSource):
    """Makes rows up, `rows` in each of `batches`, and drops what is written."""

    @classmethod
    def name(cls) -> str:
        """Say what stands in `.format(...)`."""
        return "semel-nothing"

    def schema(self) -> str:
        """Name the only column."""
        return "value binary"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Make rows up."""
        del schema
        return _Reader(int(self.options["rows"]), int(self.options["batches"]))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Drop rows."""
        del schema, overwrite
        return _Writer()


class _Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, rows: int, batches: int) -> None:
        self._rows = rows
        self._batches = batches

    def initialOffset(self) -> dict[str, Any]:
        return {"batch": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        """The end is known."""

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
        """Nothing was written."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing was written."""
