"""foreachBatch, exactly once: DataFrames to streams, staged by one job each, in one commit."""

from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession

from semel.client.values import CommitResult
from semel.spark.options import SinkOptions, SparkOptionError, parse_sink
from semel.spark.sink.columns import SinkColumns, find_columns
from semel.spark.sink.commit import UNKNOWN, abort_staged, commit_staged, read_digests, sink_of
from semel.spark.sink.writers import QUERY_ID, stage_task, tokens_of

_RUN_ID: Final = "spark.jobGroup.id"  # of a query's thread: new with each start
# A StagedTask as a row: the partition and the token.
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
    """Write DataFrames to streams, by path: all of them at once, and once per batch.

    For foreachBatch, which passes `batch_id`. `app` names the sink, by default the query's id; two
    calls in one batch need two names. A batch that is run again returns the result of the first
    time, with `duplicate`. `options` are those of the sink: `token`, `createStream`, `contentType`,
    `retryTimeout`; with `checkpointLocation`, that of the query, a checkpoint that was copied or
    restored is recognised, too.
    """
    if not frames:
        raise ValueError("nothing to write: frames is empty")
    parsed = {path: parse_sink({"url": url, "stream": path, **options}) for path in frames}
    for path, frame in frames.items():
        if frame.isStreaming:
            raise SparkOptionError(
                f"the DataFrame for {path} is a stream: call commit_batch in foreachBatch"
            )
    query_id, run_id = _query_of(next(iter(frames.values())).sparkSession)
    name = app or query_id
    if name is None:
        raise SparkOptionError(
            "outside foreachBatch, and in Spark Connect, the query's id is unknown: add app="
        )
    _require_first(run_id, name, batch_id)
    first = next(iter(parsed.values()))
    digests = UNKNOWN if first.checkpoint is None else read_digests(first.checkpoint, batch_id)
    tokens: list[str] = []
    try:
        for path, frame in frames.items():
            tokens += _stage(frame, parsed[path], name, batch_id)
        result = commit_staged(sink_of(first, name), query_id or name, batch_id, tokens, digests)
    except BaseException:
        abort_staged(first, name, tokens)
        raise
    if result.duplicate:
        abort_staged(first, name, tokens)
    if run_id is not None:
        _committed[run_id, name] = batch_id
    return result


def _query_of(spark: SparkSession) -> tuple[str | None, str | None]:
    """Return the query of this thread and its run; Spark Connect does not provide them."""
    try:
        context = spark.sparkContext
    except Exception:  # noqa: BLE001 - Connect raises its own, which may not be installed
        return None, None
    query_id = context.getLocalProperty(QUERY_ID)
    return query_id, None if query_id is None else context.getLocalProperty(_RUN_ID)


def _require_first(run_id: str | None, app: str, batch_id: int) -> None:
    """Refuse a second call in a batch: it would be recognised as a duplicate and be lost."""
    if run_id is not None and _committed.get((run_id, app)) == batch_id:
        raise SparkOptionError(
            f"commit_batch was called twice for batch {batch_id}: pass all DataFrames in one call,"
            " or use a different app= in each call"
        )


class _Stage(Struct, frozen=True):
    """Stages the rows of a task; yields one row with the token, or none without rows."""

    options: SinkOptions
    columns: SinkColumns
    app: str
    version: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = stage_task(self.options, self.columns, self.app, self.version, batches)
        if task.token is not None:
            yield pa.record_batch([[task.partition], [task.token]], schema=_STAGED)


def _stage(frame: DataFrame, options: SinkOptions, app: str, version: int) -> list[str]:
    columns = find_columns(frame.schema, options.stream)
    task = _Stage(options, columns, app, version)
    return tokens_of(frame.mapInArrow(task, _STAGED_DDL).collect())
