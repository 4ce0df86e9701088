"""foreachBatch, exactly once: many frames to many streams, staged by one job each, one commit."""

from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa
from msgspec import Struct
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from semel.client.txn_values import CommitResult
from semel.spark.options import SinkOptions, SparkOptionError, parse_sink
from semel.spark.sink.columns import SinkColumns, find_columns
from semel.spark.sink.commit import UNKNOWN, abort_version, commit_version, read_digests, sink_of
from semel.spark.sink.staging import TaskId, stage
from semel.spark.sink.writers import QUERY_ID
from semel.spark.user_errors import USER_ERRORS

_RUN_ID: Final = "spark.jobGroup.id"  # of a query's thread: new with each start
_STAGED: Final = pa.schema([("partition", pa.int32()), ("token", pa.string())])
_STAGED_DDL: Final = "partition int, token string"

# The last batch each run of a query has committed, by run and sink.
_committed: Final[dict[tuple[str, str], int]] = {}


def commit_batch(
    batch_id: int,
    frames: Mapping[str, DataFrame],
    *,
    url: str,
    app: str | None = None,
    **options: str,
) -> CommitResult:
    """Write frames to streams, by path: all of them at once, and once for each batch.

    For foreachBatch, which gives `batch_id`. `app` names the sink, by default the query's id; two
    calls in one batch need two names. A batch that is run again is told what was done the first
    time (`duplicate`). `options` are those of the sink: `token`, `createStream`, `contentType`,
    `retryTimeout`; with `checkpointLocation`, that of the query, a checkpoint that was copied or
    restored is recognised, too.
    """
    if not frames:
        raise ValueError("there is nothing to write: frames is empty")
    parsed = {path: parse_sink({"url": url, "stream": path, **options}) for path in frames}
    for path, frame in frames.items():
        if frame.isStreaming:
            raise SparkOptionError(f"the frame of {path} is a stream: use it in foreachBatch")
    query_id, run_id = _query_of(next(iter(frames.values())).sparkSession)
    name = app or query_id
    if name is None:
        raise SparkOptionError(
            "outside foreachBatch, and in Spark Connect, nothing names the writer: add app="
        )
    _require_first(run_id, name, batch_id)
    first = next(iter(parsed.values()))
    digests = UNKNOWN
    if first.checkpoint is not None:
        digests = read_digests(first.checkpoint, batch_id)
    tokens: list[str] = []
    try:
        for path, frame in frames.items():
            tokens += _stage(frame, parsed[path], name, batch_id)
        result = commit_version(sink_of(first, name), query_id or name, batch_id, tokens, digests)
    except BaseException:
        abort_version(first, name, tokens)
        raise
    if result.duplicate:
        abort_version(first, name, tokens)
    if run_id is not None:
        _committed[run_id, name] = batch_id
    return result


def _query_of(spark: SparkSession) -> tuple[str | None, str | None]:
    """Ask which query this thread works for, and which run of it; Connect does not tell."""
    try:
        context = spark.sparkContext
    except Exception:  # noqa: BLE001 - Connect raises its own, which may not be installed
        return None, None
    query_id = context.getLocalProperty(QUERY_ID)
    return query_id, None if query_id is None else context.getLocalProperty(_RUN_ID)


def _require_first(run_id: str | None, app: str, batch_id: int) -> None:
    """Refuse a second call in a batch: it would be taken for a replay of the first, and lost."""
    if run_id is not None and _committed.get((run_id, app)) == batch_id:
        raise SparkOptionError(
            f"commit_batch was called twice for batch {batch_id}: put all frames into one call, or"
            " give each call its own app="
        )


class _Stage(Struct, frozen=True):
    """Stages the rows of a task; one row comes out, with the token."""

    options: SinkOptions
    columns: SinkColumns
    app: str
    version: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        place = TaskId(self.app, self.version, context.partitionId())
        try:
            token = stage(self.options, self.columns, place, batches)
        except USER_ERRORS as error:
            raise error.with_traceback(None) from None
        if token is not None:
            yield pa.record_batch([[place.partition], [token]], schema=_STAGED)


def _stage(frame: DataFrame, options: SinkOptions, app: str, version: int) -> list[str]:
    columns = find_columns(frame.schema, options.stream)
    staged = frame.mapInArrow(_Stage(options, columns, app, version), _STAGED_DDL).collect()
    return [row.token for row in sorted(staged, key=lambda row: int(row.partition))]
