"""The streaming writer and the batch writer.

Each task stages its rows. The driver then commits the rows of all tasks together, and only once.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pickle import PicklingError
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from semel.client.transport import random_id
from semel.client.values import CommitResult
from semel.spark.errors import USER_ERRORS, hide_traceback
from semel.spark.options import SinkOptions, SparkOptionError, parse_sink
from semel.spark.sink.columns import SinkColumns, find_columns
from semel.spark.sink.commit import (
    UNKNOWN,
    Digests,
    abort_staged,
    commit_staged,
    find_checkpoint,
    read_digests,
    sink_of,
)
from semel.spark.sink.staging import TaskId, stage
from semel.spark.sink.topics import TopicLayout, read_layout

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
_CHECKPOINTS: Final = "spark.sql.streaming.checkpointLocation"


@dataclass(frozen=True)
class StagedTask(WriterCommitMessage):
    """The message that a task sends to the driver when it has staged its rows."""

    partition: int
    token: str | None  # None if the task had no rows
    app: str
    query_id: str  # outside a streaming query, this is the same as `app`
    checkpoints: str | None = None  # the configured directory for all Spark checkpoints


@hide_traceback
def stage_task(
    options: SinkOptions,
    columns: SinkColumns,
    app: str,
    version: int,
    batches: Iterator[pa.RecordBatch],
    layout: TopicLayout | None = None,
) -> StagedTask:
    """Stage the rows of the running task attempt. The rows are not visible until the commit."""
    context = _task_context()
    partition = context.partitionId()
    return StagedTask(
        partition,
        stage(options, columns, TaskId(app, version, partition), batches, layout),
        app,
        context.getLocalProperty(QUERY_ID) or app,
        context.getLocalProperty(_CHECKPOINTS),
    )


def staged_tasks(messages: Sequence[WriterCommitMessage | None]) -> list[StagedTask]:
    """Return the messages of the tasks that succeeded. For a failed task, Spark passes None."""
    return [message for message in messages if isinstance(message, StagedTask)]


def tokens_of(tasks: Iterable[StagedTask | Row]) -> list[str]:
    """Return the tokens of the tasks, sorted by partition. A task without rows has no token."""
    ordered = sorted(tasks, key=lambda task: int(task.partition))
    return [task.token for task in ordered if task.token is not None]


def _task_context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of a streaming query. Spark uses one instance to plan and a second to commit.

    Spark pickles the first instance when it plans a batch, and sends it to the tasks. That is when
    the layout of a topic is read. An instance that commits or aborts has no layout.
    """

    layout: TopicLayout | None = None

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise SparkOptionError(
                "a stream cannot be overwritten, so complete mode is not possible: use"
                ' outputMode("append") with a watermark, or foreachBatch with commit_batch'
            )
        if options.version is not None:
            raise SparkOptionError(
                "txnVersion is only for batch writes, because a streaming query numbers its own"
                " batches: remove txnVersion"
            )
        self.options = options
        self.columns = find_columns(schema, options.stream, options.topic)

    def __getstate__(self) -> dict[str, Any]:
        """Return what the tasks of a batch need. Raises PicklingError if the topic cannot be read.

        Spark reports an error of this class, and replaces any other error in this method.
        """
        if self.layout is None:
            try:
                self.layout = read_layout(self.options)
            except USER_ERRORS as error:
                raise PicklingError(str(error)) from None
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedTask:
        """Stage the rows of one task attempt. The rows are not visible until the commit."""
        context = _task_context()
        query_id = context.getLocalProperty(QUERY_ID)
        batch_id = context.getLocalProperty(BATCH_ID)
        if query_id is None or batch_id is None:
            raise RuntimeError(
                "this version of Spark does not pass the query id to tasks: use pyspark >= 4.2"
            )
        app = self.options.app_id or query_id
        return stage_task(self.options, self.columns, app, int(batch_id), iterator, self.layout)

    @hide_traceback
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Commit a batch. Its rows become visible. Repeating the commit changes nothing."""
        tasks = staged_tasks(messages)
        assert tasks
        app, query_id, tokens = tasks[0].app, tasks[0].query_id, tokens_of(tasks)
        digests = self._digests(tasks[0], batchId)
        commit_staged(self.options, app, query_id, batchId, tokens, digests)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Abort the transactions of the tasks. Never raises, and never undoes a commit."""
        _abort(self.options, messages)

    def _digests(self, task: StagedTask, batch_id: int) -> Digests:
        checkpoint = self.options.checkpoint
        if checkpoint is None and task.checkpoints is not None:
            checkpoint = find_checkpoint(task.checkpoints, self.options.query_name, task.query_id)
        return UNKNOWN if checkpoint is None else read_digests(checkpoint, batch_id)


def _abort(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    tasks = staged_tasks(messages)
    if tasks:
        with suppress(Exception):  # otherwise Spark would report this error, not the original one
            abort_staged(options, tasks[0].app, tokens_of(tasks))


# ---- batch writes --------------------------------------------------------------------------------


_IN_FOREACH: Final = (
    "this write in foreachBatch is refused, because Spark can repeat a batch, and its rows would"
    " then be stored twice. Use semel.spark.commit_batch. Or set two options: txnVersion to the"
    " batch id, and txnAppId to a name that no other write uses"
)


class BatchWriter(DataSourceArrowWriter):
    """The writer of `df.write`. The rows become visible together, or not at all.

    With `txnAppId` and `txnVersion`, the rows are stored only once, even if the write is repeated.
    """

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise SparkOptionError(
                'a stream cannot be overwritten: use mode("append"), or write to a new stream'
            )
        if (options.app_id is None) != (options.version is None):
            raise SparkOptionError("txnAppId and txnVersion must be used together: set both")
        self.options = options
        self.columns = find_columns(schema, options.stream, options.topic)
        self.layout = read_layout(options)
        self.app = options.app_id or f"batch-{random_id()}"
        self.version = options.version or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedTask:
        """Stage the rows of one task attempt. The rows are not visible until the commit."""
        context = _task_context()
        if self.options.app_id is None and context.getLocalProperty(BATCH_ID) is not None:
            raise SparkOptionError(_IN_FOREACH)
        return stage_task(self.options, self.columns, self.app, self.version, iterator, self.layout)

    @hide_traceback
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the rows, in the order of their partitions. The rows become visible."""
        tasks = staged_tasks(messages)
        tokens = tokens_of(tasks)
        if not tasks or (self.options.app_id is None and not tokens):
            return
        app, query_id = tasks[0].app, tasks[0].query_id
        commit_staged(self.options, app, query_id, self.version, tokens)
        if self.options.app_id is None:
            with suppress(Exception):  # the rows are committed, and an unused sink does no harm
                sink_of(self.options, app).forget()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort the transactions of the tasks. Never raises, and never undoes a commit."""
        _abort(self.options, messages)


# ---- foreachBatch --------------------------------------------------------------------------------
# Each DataFrame is staged by its own Spark job. One commit then makes all of them visible.


_RUN_ID: Final = "spark.jobGroup.id"  # in a query's thread; has a new value after each start
# The columns of the rows that the staging job returns, one row for each task.
_STAGED: Final = pa.schema([("partition", pa.int32()), ("token", pa.string())])
_STAGED_DDL: Final = "partition int, token string"
_OF_TOPICS: Final = frozenset({"partitions", "partitioner"})

# Maps a query's run and a sink to the last batch that was committed.
_committed: Final[dict[tuple[str, str], int]] = {}


def commit_batch(
    batch_id: int,
    frames: Mapping[str, DataFrame],
    *,
    url: str,
    app: str | None = None,
    topics: Mapping[str, DataFrame] | None = None,
    **options: str,
) -> CommitResult:
    """Write several DataFrames to streams and topics in one commit, and return its result.

    Call this function in foreachBatch, with the `batch_id` that Spark passes. `frames` maps the
    path of each stream to the DataFrame to write. `topics` does the same for topics. `frames` can
    be empty if `topics` is not.

    If Spark runs a batch again, its rows are not written again. This function then returns the
    result of the first commit, with `duplicate` set.

    `app` is the name of the sink. The default is the id of the query. Two calls in the same batch
    need different names.

    `options` are sink options, such as `token`. If you set `checkpointLocation` to the location of
    the query's Spark checkpoint, the server can detect that this checkpoint was copied or restored.
    """
    writes = _writes(frames, topics or {}, {"url": url, **options})
    query_id, run_id = _query_of(writes[0][0].sparkSession)
    name = app or query_id
    if name is None:
        raise SparkOptionError(
            "outside foreachBatch and in Spark Connect, the sink has no default name:"
            " add the argument 'app'"
        )
    _require_first(run_id, name, batch_id)
    first = writes[0][1]
    digests = UNKNOWN if first.checkpoint is None else read_digests(first.checkpoint, batch_id)
    tokens: list[str] = []
    try:
        for frame, parsed in writes:
            tokens += _stage(frame, parsed, name, batch_id)
        result = commit_staged(first, name, query_id or name, batch_id, tokens, digests)
    except BaseException:
        abort_staged(first, name, tokens)
        raise
    if run_id is not None:
        _committed[run_id, name] = batch_id
    return result


def _writes(
    frames: Mapping[str, DataFrame], topics: Mapping[str, DataFrame], options: Mapping[str, str]
) -> list[tuple[DataFrame, SinkOptions]]:
    """Return each DataFrame with the options to write it. Raises an error if there is none."""
    if not frames and not topics:
        raise ValueError("the argument 'frames' is empty: pass at least one DataFrame")
    of_streams = options
    if topics:
        of_streams = {name: options[name] for name in options if name.lower() not in _OF_TOPICS}
    writes = [
        *((frame, parse_sink({**of_streams, "stream": path})) for path, frame in frames.items()),
        *((frame, parse_sink({**options, "topic": topic})) for topic, frame in topics.items()),
    ]
    for frame, parsed in writes:
        if frame.isStreaming:
            raise SparkOptionError(
                f"the DataFrame for {parsed.stream or parsed.topic} is a streaming DataFrame: call"
                " commit_batch in foreachBatch, with the DataFrame of the batch"
            )
    return writes


def _query_of(spark: SparkSession) -> tuple[str | None, str | None]:
    """Return the id of this thread's query and the id of the query's current run.

    Both ids are None in Spark Connect and outside a query.
    """
    try:
        context = spark.sparkContext
    except Exception:  # noqa: BLE001 - Connect raises its own class, and it can be missing here
        return None, None
    query_id = context.getLocalProperty(QUERY_ID)
    return query_id, None if query_id is None else context.getLocalProperty(_RUN_ID)


def _require_first(run_id: str | None, app: str, batch_id: int) -> None:
    """Raise SparkOptionError if this is the second call with the same sink in one batch.

    The server would treat the second call as a duplicate, and its rows would be lost.
    """
    if run_id is not None and _committed.get((run_id, app)) == batch_id:
        raise SparkOptionError(
            f"commit_batch was called twice for batch {batch_id}: pass all DataFrames in one call,"
            " or use a different app= in each call"
        )


def _stage(frame: DataFrame, options: SinkOptions, app: str, version: int) -> list[str]:
    columns = find_columns(frame.schema, options.stream, options.topic)
    layout = read_layout(options)

    def stage_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stage the rows of a task. Yield one row with the task's partition and token.

        Yield nothing if the task had no rows.
        """
        task = stage_task(options, columns, app, version, batches, layout)
        if task.token is not None:
            yield pa.record_batch([[task.partition], [task.token]], schema=_STAGED)

    return tokens_of(frame.mapInArrow(stage_rows, _STAGED_DDL).collect())
