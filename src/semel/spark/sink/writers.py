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

from semel.client.transport import random_id
from semel.spark.options import SinkOptions, SparkOptionError
from semel.spark.sink.columns import find_columns
from semel.spark.sink.commit import (
    UNKNOWN,
    Digests,
    abort_version,
    commit_version,
    find_checkpoint,
    read_digests,
    sink_of,
)
from semel.spark.sink.staging import TaskId, stage
from semel.spark.user_errors import USER_ERRORS

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
_CHECKPOINTS: Final = "spark.sql.streaming.checkpointLocation"


@dataclass(frozen=True)
class StagedTask(WriterCommitMessage):
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

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedTask:
        """Stage the rows of one task attempt; nothing is seen yet."""
        context = TaskContext.get()
        assert context is not None
        query_id = context.getLocalProperty(QUERY_ID)
        batch_id = context.getLocalProperty(BATCH_ID)
        if query_id is None or batch_id is None:
            raise RuntimeError("this Spark does not tell its tasks their query: use pyspark >= 4.2")
        place = TaskId(self.options.app_id or query_id, int(batch_id), context.partitionId())
        try:
            token = stage(self.options, self.columns, place, iterator)
        except USER_ERRORS as error:
            raise error.with_traceback(None) from None
        checkpoints = context.getLocalProperty(_CHECKPOINTS)
        return StagedTask(place.partition, token, query_id, place.version, checkpoints)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Make a batch visible, once: a replay is told what was done the first time."""
        staged = [message for message in messages if isinstance(message, StagedTask)]
        assert staged
        query_id = staged[0].query_id
        app = self.options.app_id or query_id
        tokens = tokens_of(staged)
        try:
            digests = self._digests(staged[0], batchId)
            result = commit_version(sink_of(self.options, app), query_id, batchId, tokens, digests)
        except USER_ERRORS as error:
            raise error.with_traceback(None) from None
        if result.duplicate:
            abort_version(
                self.options, app, tokens
            )  # of a replay; the server leaves what it committed

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Drop what was staged; never raises, and never undoes a commit."""
        staged = [message for message in messages if isinstance(message, StagedTask)]
        if not staged:
            return
        with suppress(Exception):  # Spark would show it in place of what went wrong
            app = self.options.app_id or staged[0].query_id
            abort_version(self.options, app, tokens_of(staged))

    def _digests(self, staged: StagedTask, batch_id: int) -> Digests:
        checkpoint = self.options.checkpoint
        if checkpoint is None and staged.checkpoints is not None:
            checkpoint = find_checkpoint(
                staged.checkpoints, self.options.query_name, staged.query_id
            )
        return UNKNOWN if checkpoint is None else read_digests(checkpoint, batch_id)


def tokens_of(staged: Iterable[StagedTask]) -> list[str]:
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
class StagedBatchTask(WriterCommitMessage):
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
        self.app = options.app_id or f"batch-{random_id()}"
        self.version = options.version or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedBatchTask:
        """Stage the rows of one task attempt; nothing is seen yet."""
        context = TaskContext.get()
        assert context is not None
        if self.options.app_id is None and context.getLocalProperty(BATCH_ID) is not None:
            raise SparkOptionError(_IN_FOREACH)
        query_id = context.getLocalProperty(QUERY_ID) or self.app
        place = TaskId(self.app, self.version, context.partitionId())
        try:
            token = stage(self.options, self.columns, place, iterator)
        except USER_ERRORS as error:
            raise error.with_traceback(None) from None
        return StagedBatchTask(place.partition, token, self.app, query_id)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make the rows visible, in the order of the partitions."""
        parts = _parts(messages)
        tokens = _tokens(parts)
        if not parts or (self.options.app_id is None and not tokens):
            return
        app, query_id = parts[0].app, parts[0].query_id
        sink = sink_of(self.options, app)
        try:
            result = commit_version(sink, query_id, self.version, tokens)
        except USER_ERRORS as error:
            raise error.with_traceback(None) from None
        if self.options.app_id is not None:
            if result.duplicate:
                abort_version(self.options, app, tokens)
            return
        with suppress(Exception):  # the rows are written; a name nobody uses again may stay
            sink.forget()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Drop what was staged; never raises, and never undoes a commit."""
        parts = _parts(messages)
        if not parts:
            return
        with suppress(Exception):  # Spark would show it in place of what went wrong
            abort_version(self.options, parts[0].app, _tokens(parts))


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[StagedBatchTask]:
    found = [message for message in messages if isinstance(message, StagedBatchTask)]
    return sorted(found, key=lambda part: part.partition)


def _tokens(parts: Sequence[StagedBatchTask]) -> list[str]:
    return [part.token for part in parts if part.token is not None]
