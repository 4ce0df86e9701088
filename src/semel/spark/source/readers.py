"""The readers of `spark.readStream.format("semel")` and `spark.read.format("semel")`."""

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from semel.spark import errors
from semel.spark.errors import (
    StreamMissing,
    hide_traceback,
    hide_traceback_of_rows,
    stream_deleted,
)
from semel.spark.offsets import LATEST, LATEST_NUMBER
from semel.spark.options import SourceOptions, SparkOptionError
from semel.spark.source.catalog import StreamCatalog, StreamEnd, StreamPosition
from semel.spark.source.columns import columns_for
from semel.spark.source.slices import Span, TaskInput, read_task, split_range

# If there are no new messages, Spark calls latestOffset about 80 times per second. latestOffset
# waits this long for new messages, so that it is called only about once per second.
WAIT_SECONDS: Final = 1.0
_PAUSE_SECONDS_MIN: Final = 0.01
_PAUSE_SECONDS_MAX: Final = 0.1


class _TaskReader:
    """Base class of StreamReader and BatchReader. Its method `read` runs in the tasks."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._columns = columns_for(options, schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages in the offset ranges of one task, as Arrow batches."""
        if not isinstance(partition, TaskInput):
            return iter(())  # if there is nothing to read, Spark still runs one task
        return hide_traceback_of_rows(read_task(self._options, self._columns, partition))


class StreamReader(_TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of `readStream`. It reads each message once if the Spark checkpoint is kept.

    One instance plans all batches of the query. Each task has a copy, and calls only `read`.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if options.ends is not None:
            raise SparkOptionError(
                "endingOffsets cannot be used in a streaming read: remove it, or use spark.read"
            )
        super().__init__(options, schema)
        self._catalog = StreamCatalog(options)
        self._last_ends: dict[str, StreamEnd] = {}
        self._is_end_fixed = False  # true for an availableNow query
        # Maps (path, incarnation) to the stream's first offset, if the query has no position there.
        self._firsts: dict[tuple[str, str], int] = {}

    # ---- planning --------------------------------------------------------------------------------

    @hide_traceback
    def initialOffset(self) -> dict[str, Any]:
        """Return the offset at which the query starts.

        If the query starts at the end of a stream, return the placeholder PIN. The first batch is
        then empty. Its end is the actual start of the query, and Spark stores it in the checkpoint.
        """
        ends = self._catalog.ends()
        self._catalog.require(ends)
        options = self._options
        if options.starting_timestamp_ms is None and options.starts.has_latest(ends):
            return dict(PIN)
        return to_document(self._catalog.starts(ends))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the maximum size of a batch, for a trigger that sets no limit of its own."""
        count = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if count is None else ReadMaxRows(count)

    @hide_traceback
    def prepareForTriggerAvailableNow(self) -> None:
        """Remember the current ends of the streams. An availableNow query stops at these ends."""
        self._last_ends = self._catalog.ends()
        self._is_end_fixed = True

    @hide_traceback
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the batch that begins at `start`.

        If `start` is PIN, return the actual start of the query. If there are no new messages, wait
        for a short time. Return `start` if no messages arrive.
        """
        if is_pin(start):
            return to_document(self._catalog.starts(self._ends({})))
        positions = from_document(start)
        ends = self._wait_for_ends(positions)
        if isinstance(limit, ReadMaxRows):
            begins = {
                stream: self._span(stream, position, positions).begin
                for stream, position in ends.items()
            }
            ends = limit_positions(begins, ends, limit.max_rows)
        return start if ends == positions else to_document(ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the last known ends of the streams. Spark uses them to calculate the lag."""
        ends = {
            stream: StreamPosition(end.id, end.stable) for stream, end in self._last_ends.items()
        }
        return to_document(ends) if ends else None

    @hide_traceback
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the inputs of the tasks that together read the batch from `start` to `end`."""
        if is_pin(start):
            return []
        positions = from_document(start)
        spans = {
            stream: self._span(stream, position, positions)
            for stream, position in from_document(end).items()
        }
        return list(split_range(spans, self._options.min_partitions))

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing, because offsets are stored only in the Spark checkpoint."""

    def stop(self) -> None:
        """Do nothing, because there are no resources to release."""

    # ---- positions -------------------------------------------------------------------------------

    def _wait_for_ends(self, positions: Mapping[str, StreamPosition]) -> dict[str, StreamPosition]:
        """Return the position of each stream at the end of the next batch.

        If there are no new messages, wait for a short time. A stream that the options no longer
        name keeps its position, because a later run can name it again.
        """
        kept = {stream: at for stream, at in positions.items() if not self._catalog.reads(stream)}
        read = {stream: at for stream, at in positions.items() if stream not in kept}
        deadline = time.monotonic() + WAIT_SECONDS
        pause = _PAUSE_SECONDS_MIN
        while True:
            ends = self._ends(read)
            latest = kept | next_positions(read, ends, is_loss_fatal=self._options.is_loss_fatal)
            is_over = self._is_end_fixed or time.monotonic() >= deadline
            if latest != positions or is_over:
                return latest
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_SECONDS_MAX)

    def _ends(self, positions: Mapping[str, StreamPosition]) -> dict[str, StreamEnd]:
        """Return the current ends of the streams.

        In an availableNow query, return the ends as they were when the run started. Raises
        StreamMissing if the options name a stream that does not exist and is not in `positions`.
        """
        if not self._is_end_fixed:
            self._last_ends = self._catalog.ends()
        self._catalog.require(self._last_ends, positions)
        return self._last_ends

    def _span(
        self, stream: str, end: StreamPosition, positions: Mapping[str, StreamPosition]
    ) -> Span:
        """Return the offsets of `stream` that belong to a batch.

        The batch ends at `end`. It begins at the stream's position in `positions`, or at the head
        of the stream if the stream is new. Raises DataLossError if a new stream was deleted after
        the batch was planned and `failOnDataLoss` is true.
        """
        position = positions.get(stream)
        if position is not None and position.id == end.id:
            return Span(end.id, position.next, end.next)
        key = (stream, end.id)
        if key not in self._firsts:
            try:
                self._firsts[key] = self._catalog.first(stream)
            except StreamMissing:  # the stream existed when the batch was planned
                if self._options.is_loss_fatal:
                    raise stream_deleted(stream) from None
                return Span(end.id, end.next, end.next)
        return Span(end.id, min(self._firsts[key], end.next), end.next, is_open=True)


# ---- offsets in the Spark checkpoint -------------------------------------------------------------
# A source offset is `{"orders": {"id": "<incarnation>", "next": 5000}}`. Its keys are always
# sorted, because Spark compares offsets as text.
#
# `{"pin": "latest"}` means the ends of the streams at the time when the query is first planned. The
# first batch of such a query is empty, but it stores the actual offsets in Spark's offset log. If
# the query crashes before its first real batch, it still starts at the same offsets afterwards.


PIN: Final = {"pin": "latest"}


def to_document(positions: Mapping[str, StreamPosition]) -> dict[str, Any]:
    """Return positions as a Spark offset.

    The keys are sorted, because Spark compares offsets as text.
    """
    return {
        stream: {"id": position.id, "next": position.next}
        for stream, position in sorted(positions.items())
    }


def is_pin(document: Mapping[str, Any]) -> bool:
    """Return True if the offset is PIN, the placeholder for the ends of the streams.

    In PIN, the key "pin" has a string. If a stream has the path "pin", the key has an object.
    """
    return document.get("pin") == PIN["pin"]


def from_document(document: Mapping[str, Any]) -> dict[str, StreamPosition]:
    """Parse an offset from the Spark checkpoint.

    Raises ValueError if the offset was not written by this source.
    """
    try:
        return {
            stream: StreamPosition(str(entry["id"]), int(entry["next"]))
            for stream, entry in document.items()
        }
    except (TypeError, KeyError, ValueError):
        raise ValueError(
            "the checkpoint belongs to a different source: it contains"
            f" {json.dumps(document)[:200]}, not a semel offset. Use a new checkpointLocation"
        ) from None


# ---- the end of a batch --------------------------------------------------------------------------


def next_positions(
    positions: Mapping[str, StreamPosition], ends: Mapping[str, StreamEnd], *, is_loss_fatal: bool
) -> dict[str, StreamPosition]:
    """Return the position of each stream at the end of the next batch.

    The batch starts at `positions`. It ends at the stable offsets, but never before its start.
    Raises DataLossError if messages were lost and `is_loss_fatal` is true. If `is_loss_fatal` is
    false:

    - A deleted stream (not in `ends`) keeps its position.
    - A truncated stream (the tail is now before the position) keeps its position.
    - A recreated stream (its id has changed) is read from its head.
    """
    latest: dict[str, StreamPosition] = {}
    for stream, position in positions.items():
        if stream not in ends:
            if is_loss_fatal:
                raise errors.stream_deleted(stream)
            latest[stream] = position
    for stream, end in ends.items():
        current = positions.get(stream)
        if current is not None and current.id == end.id:
            if current.next > end.tail and is_loss_fatal:
                raise errors.stream_truncated(stream, current.next, end.tail)
            latest[stream] = StreamPosition(end.id, max(current.next, end.stable))
            continue
        if current is not None and is_loss_fatal:
            raise errors.stream_recreated(stream)
        latest[stream] = StreamPosition(end.id, end.stable)
    return latest


def limit_positions(
    begins: Mapping[str, int], ends: Mapping[str, StreamPosition], count: int
) -> dict[str, StreamPosition]:
    """Return `ends`, reduced so that the batch has about `count` offsets.

    Each stream gets a share in proportion to its lag: at least one offset, unless the lag is 0.
    """
    lags = {stream: ends[stream].next - begin for stream, begin in begins.items()}
    total = sum(lags.values())
    if total <= count:
        return dict(ends)
    limited = dict(ends)
    for stream, lag in lags.items():
        if lag:
            share = max(1, lag * count // total)
            limited[stream] = StreamPosition(ends[stream].id, begins[stream] + share)
    return limited


# ---- batch reads ---------------------------------------------------------------------------------


class BatchReader(_TaskReader, DataSourceReader):
    """The reader of `spark.read`. It plans the read once: one range of offsets for each stream."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if options.max_offsets_per_trigger is not None:
            raise SparkOptionError(
                "maxOffsetsPerTrigger cannot be used in a batch read: remove it, or set"
                " endingOffsets instead"
            )
        super().__init__(options, schema)

    @hide_traceback
    def partitions(self) -> list[InputPartition]:
        """Return one input for each task. Together, the tasks read the range of each stream."""
        catalog = StreamCatalog(self._options)
        ends = catalog.ends()
        catalog.require(ends)
        if self._options.ends is not None:
            catalog.require_partitions("endingOffsets", self._options.ends, ends)
        spans = {}
        for stream, begin in catalog.starts(ends).items():
            end = self._end(stream, ends[stream])
            spans[stream] = Span(begin.id, min(begin.next, end), end)
        return list(split_range(spans, self._options.min_partitions))

    def _end(self, stream: str, end: StreamEnd) -> int:
        limit = (self._options.ends or LATEST).of(stream)
        if limit == LATEST_NUMBER:
            return end.stable
        if limit > end.stable:
            raise SparkOptionError(
                f"endingOffsets: the offset {limit} for {stream} is after the stable offset"
                f" {end.stable}: use a smaller offset, or -1 (latest)"
            )
        return limit


# ---- wrong options -------------------------------------------------------------------------------


class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader that is used if the options are wrong. Its methods raise `error`.

    The error is not raised when the reader is created, because Spark would then wrap the error and
    hide its message.
    """

    def __init__(self, error: SparkOptionError) -> None:
        self._error = error

    def _refuse(self, *_arguments: Any, **_options: Any) -> NoReturn:
        raise self._error.with_traceback(None)

    initialOffset = latestOffset = getDefaultReadLimit = prepareForTriggerAvailableNow = _refuse
    read = _refuse

    def stop(self) -> None:
        """Do nothing. An error raised here would hide the original error."""
