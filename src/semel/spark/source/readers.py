"""The streaming source: `spark.readStream.format("semel")`."""

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

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
from semel.spark.errors import StreamMissing, stream_deleted
from semel.spark.options import SourceOptions, SparkOptionError
from semel.spark.source.catalog import StreamCatalog, StreamEnd
from semel.spark.source.columns import columns_for
from semel.spark.source.offsets import (
    LATEST,
    LATEST_NUMBER,
    PIN,
    StreamPosition,
    from_document,
    is_pin,
    to_document,
)
from semel.spark.source.slices import Span, TaskInput, read_task, split_range
from semel.spark.user_errors import hide_traceback, hide_traceback_of_rows

# With nothing to do Spark asks about 80 times a second. Waiting here makes it about once.
WAIT_SECONDS: Final = 1.0
_PAUSE_SECONDS_MIN: Final = 0.01
_PAUSE_SECONDS_MAX: Final = 0.1


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads streams batch after batch, each message once, as long as Spark keeps the offsets.

    Spark makes one for planning, which lives as long as the query, and sends copies to the tasks,
    which only `read`.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if options.ends is not None:
            raise SparkOptionError(
                "endingOffsets has no meaning in a stream: remove it, or use spark.read"
            )
        self._options = options
        self._columns = columns_for(options, schema)
        self._look = StreamCatalog(options)
        self._target: dict[str, StreamEnd] | None = None
        self._seen: dict[str, StreamEnd] = {}
        # Where streams begin that the query has not stood in before.
        self._firsts: dict[tuple[str, str], int] = {}

    # ---- planning --------------------------------------------------------------------------------

    @hide_traceback
    def initialOffset(self) -> dict[str, Any]:
        """Say where the query begins; a pin if that is the end, which moves."""
        ends = self._look.ends()
        self._look.require(ends)
        options = self._options
        if options.starting_timestamp_ms is None and options.starts.has_latest(ends):
            return dict(PIN)
        return to_document(self._look.starts(ends))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Say how much a batch may read, unless the trigger says otherwise."""
        count = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if count is None else ReadMaxRows(count)

    @hide_traceback
    def prepareForTriggerAvailableNow(self) -> None:
        """Note where the streams end now: the run ends there."""
        self._target = self._seen = self._look.ends()

    @hide_traceback
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Say where the next batch ends: `start` itself if there is nothing, after a while."""
        if is_pin(start):
            return to_document(self._look.starts(self._ends({})))
        positions = from_document(start)
        found = self._found(positions)
        if isinstance(limit, ReadMaxRows):
            begins = {
                stream: self._begin(stream, position, positions).begin
                for stream, position in found.items()
            }
            found = limited(begins, found, limit.max_rows)
        return start if found == positions else to_document(found)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Say where the streams ended when last looked at, to tell how far behind it is."""
        ends = {stream: StreamPosition(end.id, end.stable) for stream, end in self._seen.items()}
        return to_document(ends) if ends else None

    @hide_traceback
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Cut the batch into what each task reads."""
        if is_pin(start):
            return []
        positions = from_document(start)
        spans = {
            stream: self._begin(stream, position, positions)
            for stream, position in from_document(end).items()
        }
        return list(split_range(spans, self._options.min_partitions))

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is to be done: the offsets are in Spark's checkpoint, and only there."""

    def stop(self) -> None:
        """Nothing is held."""

    # ---- tasks -----------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read what one task reads."""
        if not isinstance(partition, TaskInput):
            return iter(())  # Spark runs one empty task for an empty batch
        return hide_traceback_of_rows(read_task(self._options, self._columns, partition))

    # ---- looking ---------------------------------------------------------------------------------

    def _found(self, positions: Mapping[str, StreamPosition]) -> dict[str, StreamPosition]:
        """Look where the streams end, for a while if there is nothing new.

        A stream that the query no longer names keeps its place, should it ever come back.
        """
        left = {stream: at for stream, at in positions.items() if not self._look.reads(stream)}
        read = {stream: at for stream, at in positions.items() if stream not in left}
        deadline = time.monotonic() + WAIT_SECONDS
        pause = _PAUSE_SECONDS_MIN
        while True:
            ends = self._ends(read)
            found = left | next_positions(read, ends, is_loss_fatal=self._options.is_loss_fatal)
            is_over = self._target is not None or time.monotonic() >= deadline
            if found != positions or is_over:
                return found
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_SECONDS_MAX)

    def _ends(self, positions: Mapping[str, StreamPosition]) -> dict[str, StreamEnd]:
        """Look where the streams end, or ended when the run was begun."""
        if self._target is None:
            self._seen = self._look.ends()
        ends = self._seen if self._target is None else self._target
        self._look.require(ends, positions)
        return ends

    def _begin(
        self, stream: str, end: StreamPosition, positions: Mapping[str, StreamPosition]
    ) -> Span:
        """Find where a batch begins in a stream that it goes up to `end`."""
        known = positions.get(stream)
        if known is not None and known.id == end.id:
            return Span(end.id, known.next, end.next)
        place = (stream, end.id)
        if place not in self._firsts:
            try:
                self._firsts[place] = self._look.first(stream)
            except StreamMissing:  # it was there when the batch was planned
                if self._options.is_loss_fatal:
                    raise stream_deleted(stream) from None
                return Span(end.id, end.next, end.next)
        return Span(end.id, min(self._firsts[place], end.next), end.next, is_open=True)


# ---- progress ------------------------------------------------------------------------------------
# How far a batch goes: from where the query stands to where its streams end. Pure.


def next_positions(
    positions: Mapping[str, StreamPosition], ends: Mapping[str, StreamEnd], *, is_loss_fatal: bool
) -> dict[str, StreamPosition]:
    """Find where the streams end now, never before where the query stands; raises DataLossError.

    A stream that is not among the ends is gone. A new incarnation is only gone to if nothing is to
    be said about what is lost.
    """
    found: dict[str, StreamPosition] = {}
    for stream, position in positions.items():
        if stream not in ends:
            if is_loss_fatal:
                raise errors.stream_deleted(stream)
            found[stream] = position
    for stream, end in ends.items():
        known = positions.get(stream)
        if known is not None and known.id == end.id:
            if known.next > end.tail and is_loss_fatal:
                raise errors.stream_truncated(stream, known.next, end.tail)
            found[stream] = StreamPosition(end.id, max(known.next, end.stable))
            continue
        if known is not None and is_loss_fatal:
            raise errors.stream_recreated(stream)
        found[stream] = StreamPosition(end.id, end.stable)
    return found


def limited(
    begins: Mapping[str, int], found: Mapping[str, StreamPosition], count: int
) -> dict[str, StreamPosition]:
    """Take about `count` offsets, of each stream in proportion to what it has; 1 at the least."""
    lags = {stream: found[stream].next - begin for stream, begin in begins.items()}
    total = sum(lags.values())
    if total <= count:
        return dict(found)
    nearer = dict(found)
    for stream, lag in lags.items():
        if lag:
            share = max(1, lag * count // total)
            nearer[stream] = StreamPosition(found[stream].id, begins[stream] + share)
    return nearer


# ---- batch reader --------------------------------------------------------------------------------
# The batch source: `spark.read.format("semel")`.


class BatchReader(DataSourceReader):
    """Reads a range of each stream once. The range is fixed when the read is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if options.max_offsets_per_trigger is not None:
            raise SparkOptionError(
                "maxOffsetsPerTrigger has no meaning in a batch: remove it, or set endingOffsets"
            )
        self._options = options
        self._columns = columns_for(options, schema)

    @hide_traceback
    def partitions(self) -> list[InputPartition]:
        """Find the ranges, and cut them into what each task reads."""
        look = StreamCatalog(self._options)
        ends = look.ends()
        look.require(ends)
        spans = {}
        for stream, begin in look.starts(ends).items():
            end = self._end(stream, ends[stream])
            spans[stream] = Span(begin.id, min(begin.next, end), end)
        return list(split_range(spans, self._options.min_partitions))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read what one task reads."""
        if not isinstance(partition, TaskInput):
            return iter(())  # Spark runs one empty task for an empty read
        return hide_traceback_of_rows(read_task(self._options, self._columns, partition))

    def _end(self, stream: str, end: StreamEnd) -> int:
        wanted = (self._options.ends or LATEST).of(stream)
        if wanted == LATEST_NUMBER:
            return end.stable
        if wanted > end.stable:
            raise SparkOptionError(
                f"endingOffsets: {stream} is to be read up to {wanted} and only"
                f" {end.stable} is there and decided: write a smaller offset, or latest"
            )
        return wanted
