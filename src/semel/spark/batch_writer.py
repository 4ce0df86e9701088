"""The batch sink: all rows of a frame become visible at once, or none."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from semel.client.chance import fresh_id
from semel.spark.decisions import commit, drop, sink_of
from semel.spark.options import SinkOptions, SparkOptionError
from semel.spark.sink_columns import find_columns
from semel.spark.staging import Place, stage
from semel.spark.stream_writer import BATCH_ID, QUERY_ID
from semel.spark.telling import TOLD

_IN_FOREACH: Final = (
    "Spark runs a batch again after a failure: so that foreachBatch writes nothing twice, add"
    ' .option("txnAppId", "totals").option("txnVersion", batch_id), one txnAppId for each write;'
    " or use semel.spark.commit_batch"
)


@dataclass(frozen=True)
class StagedPart(WriterCommitMessage):
    """What a task tells the driver. `token` is None if it had no rows."""

    partition: int
    token: str | None
    app: str
    query_id: str


class BatchWriter(DataSourceArrowWriter):
    """Writes a frame. With `txnAppId` and `txnVersion` it is written once, however often run."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise SparkOptionError(
                'a stream cannot be overwritten: use mode("append"), and another stream for a'
                " fresh start"
            )
        if (options.app_id is None) != (options.version is None):
            raise SparkOptionError("txnAppId and txnVersion belong together: add the other one")
        self.options = options
        self.columns = find_columns(schema, options.stream)
        self.app = options.app_id or f"batch-{fresh_id()}"
        self.version = options.version or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedPart:
        """Stage the rows of one task attempt; nothing is seen yet."""
        context = TaskContext.get()
        assert context is not None
        if self.options.app_id is None and context.getLocalProperty(BATCH_ID) is not None:
            raise SparkOptionError(_IN_FOREACH)
        query_id = context.getLocalProperty(QUERY_ID) or self.app
        place = Place(self.app, self.version, context.partitionId())
        try:
            token = stage(self.options, self.columns, place, iterator)
        except TOLD as error:
            raise error.with_traceback(None) from None
        return StagedPart(place.partition, token, self.app, query_id)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make the rows visible, in the order of the partitions."""
        parts = _parts(messages)
        tokens = _tokens(parts)
        if not parts or (self.options.app_id is None and not tokens):
            return
        app, query_id = parts[0].app, parts[0].query_id
        sink = sink_of(self.options, app)
        try:
            result = commit(sink, query_id, self.version, tokens)
        except TOLD as error:
            raise error.with_traceback(None) from None
        if self.options.app_id is not None:
            if result.duplicate:
                drop(self.options, app, tokens)
            return
        with suppress(Exception):  # the rows are written; a name nobody uses again may stay
            sink.forget()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Drop what was staged; never raises, and never undoes a commit."""
        parts = _parts(messages)
        if not parts:
            return
        with suppress(Exception):  # Spark would show it in place of what went wrong
            drop(self.options, parts[0].app, _tokens(parts))


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[StagedPart]:
    found = [message for message in messages if isinstance(message, StagedPart)]
    return sorted(found, key=lambda part: part.partition)


def _tokens(parts: Sequence[StagedPart]) -> list[str]:
    return [part.token for part in parts if part.token is not None]
