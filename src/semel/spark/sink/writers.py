"""The streaming sink: tasks stage, the driver commits each batch once."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from semel.client.transport import fresh_id
from semel.spark.options import SinkOptions, SparkOptionError
from semel.spark.sink.columns import find_columns
from semel.spark.sink.commit import (
    UNKNOWN,
    Digests,
    commit,
    drop,
    find_checkpoint,
    read_digests,
    sink_of,
)
from semel.spark.sink.staging import Place, stage
from semel.spark.user_errors import TOLD

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
_CHECKPOINTS: Final = "spark.sql.streaming.checkpointLocation"


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What a task tells the driver. `token` is None if it had no rows.

    `checkpoints` is where a setting puts the checkpoints of all queries, if one does.
    """

    partition: int
    token: str | None
    query_id: str
    version: int
    checkpoints: str | None = None


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a query. Spark makes one to plan, and another one to commit."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise SparkOptionError(
                "a stream cannot be overwritten, so complete mode is not possible: use"
                ' outputMode("append") with a watermark, or foreachBatch with commit_batch'
            )
        if options.version is not None:
            raise SparkOptionError(
                "txnVersion is for batch writes: a query counts its batches itself; drop it"
            )
        self.options = options
        self.columns = find_columns(schema, options.stream)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of one task attempt; nothing is seen yet."""
        context = TaskContext.get()
        assert context is not None
        query_id = context.getLocalProperty(QUERY_ID)
        batch_id = context.getLocalProperty(BATCH_ID)
        if query_id is None or batch_id is None:
            raise RuntimeError("this Spark does not tell its tasks their query: use pyspark >= 4.2")
        place = Place(self.options.app_id or query_id, int(batch_id), context.partitionId())
        try:
            token = stage(self.options, self.columns, place, iterator)
        except TOLD as error:
            raise error.with_traceback(None) from None
        checkpoints = context.getLocalProperty(_CHECKPOINTS)
        return Staged(place.partition, token, query_id, place.version, checkpoints)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Make a batch visible, once: a replay is told what was done the first time."""
        staged = [message for message in messages if isinstance(message, Staged)]
        assert staged
        query_id = staged[0].query_id
        app = self.options.app_id or query_id
        tokens = tokens_of(staged)
        try:
            digests = self._digests(staged[0], batchId)
            result = commit(sink_of(self.options, app), query_id, batchId, tokens, digests)
        except TOLD as error:
            raise error.with_traceback(None) from None
        if result.duplicate:
            drop(self.options, app, tokens)  # of a replay; the server leaves what it committed

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Drop what was staged; never raises, and never undoes a commit."""
        staged = [message for message in messages if isinstance(message, Staged)]
        if not staged:
            return
        with suppress(Exception):  # Spark would show it in place of what went wrong
            app = self.options.app_id or staged[0].query_id
            drop(self.options, app, tokens_of(staged))

    def _digests(self, staged: Staged, batch_id: int) -> Digests:
        checkpoint = self.options.checkpoint
        if checkpoint is None and staged.checkpoints is not None:
            checkpoint = find_checkpoint(
                staged.checkpoints, self.options.query_name, staged.query_id
            )
        return UNKNOWN if checkpoint is None else read_digests(checkpoint, batch_id)


def tokens_of(staged: Iterable[Staged]) -> list[str]:
    """Give the tokens in the order of the partitions."""
    ordered = sorted(staged, key=lambda message: message.partition)
    return [message.token for message in ordered if message.token is not None]


# ---- batch writer --------------------------------------------------------------------------------
# The batch sink: all rows of a frame become visible at once, or none.


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
