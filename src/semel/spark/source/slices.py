"""Splits a batch into offset ranges for tasks, and reads an offset range page by page."""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Final

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import astuple
from pyspark.sql.datasource import InputPartition

from semel.client.errors import OffsetTrimmed, StreamGone, StreamNotFound, Unavailable
from semel.client.reading import FramesPage, frames_page
from semel.model.offsets import parse_offset, print_offset
from semel.spark import errors
from semel.spark.options import SourceOptions, client_for
from semel.spark.source.columns import Columns
from semel.spark.source.frames import rows_of

# A batch is split into one task for each core of the machine that plans it. Because each task has
# an overhead of about 50 ms, there are fewer tasks if a task would get fewer than OFFSETS_MIN
# offsets. A task gets at most about OFFSETS_MAX offsets, so that repeating it is not expensive.
OFFSETS_MIN: Final = 50_000
OFFSETS_MAX: Final = 1_000_000


class Span(Struct, frozen=True):
    """The offsets from `begin` up to `end` in the stream with the incarnation `id`.

    If `is_open` is true, `begin` was the head of the stream when the batch was planned. If `begin`
    is trimmed before it is read, the trimmed messages are not reported as lost.
    """

    id: str
    begin: int
    end: int
    is_open: bool = False


class OffsetRange(Struct, frozen=True):
    """A span of offsets, and the path of its stream."""

    stream: str
    span: Span

    def __len__(self) -> int:
        return self.span.end - self.span.begin


class TaskInput(InputPartition):
    """The offset ranges that one task reads, in order."""

    def __init__(self, ranges: Sequence[OffsetRange]) -> None:
        super().__init__(tuple((part.stream, *astuple(part.span)) for part in ranges))
        self.ranges = tuple(ranges)

    def __repr__(self) -> str:
        listed = (f"{part.stream} {part.span.begin}-{part.span.end}" for part in self.ranges)
        return f"TaskInput({', '.join(listed)})"


def split_range(
    spans: Mapping[str, Span], min_partitions: int, cores: int | None = None
) -> list[TaskInput]:
    """Split `spans` into inputs for tasks. `spans` maps the path of each stream to its span.

    If there are enough offsets, the result has at least `min_partitions` inputs. `cores` is the
    number of cores that run tasks, or None for all cores of this machine.
    """
    total = sum(span.end - span.begin for span in spans.values())
    cores = cores or os.cpu_count() or 1
    task_count = max(min_partitions, min(total // OFFSETS_MIN, cores), total // OFFSETS_MAX)
    ranges: list[OffsetRange] = []
    for stream, span in sorted(spans.items()):
        length = span.end - span.begin
        if not length:
            continue
        # The count is rounded up, so that there are at least `task_count` ranges in total.
        count = min(length, -(-length * task_count // total))
        edges = [span.begin + length * number // count for number in range(count + 1)]
        for begin, end in pairwise(edges):
            is_open = span.is_open and begin == span.begin
            ranges.append(OffsetRange(stream, Span(span.id, begin, end, is_open)))
    return _packed(ranges, total // max(task_count, cores))


def _packed(ranges: list[OffsetRange], offsets_max: int) -> list[TaskInput]:
    """Combine small ranges into inputs of up to `offsets_max` offsets, to use fewer tasks.

    A range that is larger than `offsets_max` gets an input of its own.
    """
    inputs: list[list[OffsetRange]] = []
    budget = 0
    for part in ranges:
        budget -= len(part)
        if budget < 0:
            inputs.append([])
            budget = offsets_max - len(part)
        inputs[-1].append(part)
    return [TaskInput(members) for members in inputs]


# ---- reading -------------------------------------------------------------------------------------


_AHEAD: Final = 1  # pages to fetch in advance; more pages would only use more memory


def read_task(
    options: SourceOptions, columns: Columns, task: TaskInput
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a task, one range after the other.

    Raises DataLossError if messages were lost and `failOnDataLoss` is true. Raises
    ServerUnreachable if the server does not respond.
    """
    for part in task.ranges:
        yield from read_offset_range(options, columns, part)


def read_offset_range(
    options: SourceOptions, columns: Columns, part: OffsetRange
) -> Iterator[pa.RecordBatch]:
    """Yield the committed messages of a range in order, each message only once.

    Raises DataLossError if messages were lost and `failOnDataLoss` is true. Raises
    ServerUnreachable if the server does not respond.
    """
    # The next page is fetched while the current page is decoded.
    with ThreadPoolExecutor(_AHEAD, "semel-pages") as ahead:
        fetch = _Fetch(options, part)
        next_page = ahead.submit(fetch.page, part.span.begin)
        while True:
            page = next_page.result()
            if page is None:
                return
            is_last = page.next_offset >= part.span.end
            if not is_last:
                next_page = ahead.submit(fetch.page, page.next_offset)
            rows = rows_of(page.body, has_headers=columns.has_headers).before(part.span.end)
            if len(rows.offsets):
                yield columns.batch(rows, part.stream)
            if is_last:
                return


class _Fetch:
    """Fetches the pages of one offset range from the server."""

    def __init__(self, options: SourceOptions, part: OffsetRange) -> None:
        self._part = part
        self._is_loss_fatal = options.is_loss_fatal
        self._client = client_for(options)
        self._calls = self._client.stream(part.stream).calls

    def page(self, offset: int) -> FramesPage | None:
        """Return the page that starts at `offset`, or at the head if `offset` was trimmed.

        Return None if the rest of the range is lost. Raises DataLossError if messages were lost and
        `failOnDataLoss` is true. Raises ServerUnreachable if the server does not respond.
        """
        try:
            return self._page(offset)
        except errors.DataLossError:
            if self._is_loss_fatal:
                raise
            return None
        except Unavailable as error:
            raise errors.server_unreachable(error) from None

    def _page(self, offset: int) -> FramesPage | None:
        part, span = self._part, self._part.span
        try:
            page = self._client.run(frames_page(self._calls, print_offset(offset)))
        except OffsetTrimmed as error:
            head = parse_offset(error.head or "")
            assert head is not None
            if self._is_loss_fatal and not (span.is_open and offset == span.begin):
                raise errors.stream_trimmed(part.stream, offset, head) from None
            return self._page(head) if head < span.end else None
        except (StreamNotFound, StreamGone):
            raise errors.stream_deleted(part.stream) from None
        if page.incarnation != span.id:
            raise errors.stream_recreated(part.stream)
        if page.next_offset <= offset:
            raise errors.stream_truncated(part.stream, span.end, page.next_offset)
        return page
