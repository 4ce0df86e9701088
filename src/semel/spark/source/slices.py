"""Reading a slice: page after page, the next one fetched while this one is decoded."""

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
from semel.spark.client_cache import client_for
from semel.spark.options import SourceOptions
from semel.spark.source.columns import Columns
from semel.spark.source.frames import rows_of

# ---- slices --------------------------------------------------------------------------------------
# Cutting ranges of offsets into portions, one for each task.


# A task costs some 50 ms by itself. So a batch is cut for as many cores as the planner sees, if
# each gets enough; and a task never has so much that its failure is dear.
OFFSETS_MIN: Final = 50_000
OFFSETS_MAX: Final = 1_000_000


class Span(Struct, frozen=True):
    """Offsets of the stream of this incarnation, up to `end`.

    `is_open`: it begins with whatever is the first message, so that nothing before it is missing.
    """

    id: str
    begin: int
    end: int
    is_open: bool = False


class OffsetRange(Struct, frozen=True):
    """A piece of one stream."""

    stream: str
    span: Span

    def __len__(self) -> int:
        return self.span.end - self.span.begin


class TaskInput(InputPartition):
    """What one task reads, slice after slice."""

    def __init__(self, slices: Sequence[OffsetRange]) -> None:
        super().__init__(tuple((one.stream, *astuple(one.span)) for one in slices))
        self.slices = tuple(slices)

    def __repr__(self) -> str:
        return f"Portion({', '.join(map(_shown, self.slices))})"


def _shown(part: OffsetRange) -> str:
    return f"{part.stream} {part.span.begin}-{part.span.end}"


def split_range(
    spans: Mapping[str, Span], min_partitions: int, cores: int | None = None
) -> list[TaskInput]:
    """Cut spans into portions in order, at least `min_partitions` if there are as many offsets."""
    total = sum(span.end - span.begin for span in spans.values())
    cores = cores or os.cpu_count() or 1
    wanted = max(min_partitions, min(total // OFFSETS_MIN, cores), total // OFFSETS_MAX)
    slices: list[OffsetRange] = []
    for stream, span in sorted(spans.items()):
        length = span.end - span.begin
        if not length:
            continue
        # Rounded up, so that together they are not fewer than what was asked for.
        count = min(length, -(-length * wanted // total))
        edges = [span.begin + length * number // count for number in range(count + 1)]
        for begin, end in pairwise(edges):
            is_open = span.is_open and begin == span.begin
            slices.append(OffsetRange(stream, Span(span.id, begin, end, is_open)))
    return _packed(slices, total // max(wanted, cores))


def _packed(slices: list[OffsetRange], offsets_max: int) -> list[TaskInput]:
    """Put small slices together: a thousand streams with a message each are no thousand tasks."""
    portions: list[list[OffsetRange]] = []
    room = 0
    for one in slices:
        room -= len(one)
        if room < 0:
            portions.append([])
            room = offsets_max - len(one)
        portions[-1].append(one)
    return [TaskInput(portion) for portion in portions]


# ---- pages ---------------------------------------------------------------------------------------


_AHEAD: Final = 1  # pages; more only fill the memory


def read_task(
    options: SourceOptions, columns: Columns, portion: TaskInput
) -> Iterator[pa.RecordBatch]:
    """Read the slices of a task, one after another."""
    for part in portion.slices:
        yield from read_offset_range(options, columns, part)


def read_offset_range(
    options: SourceOptions, columns: Columns, part: OffsetRange
) -> Iterator[pa.RecordBatch]:
    """Read the committed messages of a slice, each once, in order; raises DataLossError."""
    with ThreadPoolExecutor(_AHEAD, "semel-pages") as ahead:
        fetch = _Fetch(options, part)
        coming = ahead.submit(fetch.page, part.span.begin)
        while True:
            page = coming.result()
            if page is None:
                return
            is_last = page.next_offset >= part.span.end
            if not is_last:
                coming = ahead.submit(fetch.page, page.next_offset)
            rows = rows_of(page.body, has_headers=columns.has_headers).before(part.span.end)
            if len(rows.offsets):
                yield columns.batch(rows, part.stream)
            if is_last:
                return


class _Fetch:
    """Gets the pages of one slice, and tells what is lost."""

    def __init__(self, options: SourceOptions, part: OffsetRange) -> None:
        self._part = part
        self._is_loss_fatal = options.is_loss_fatal
        self._client = client_for(options.url, options.token, options.retry_seconds)
        self._calls = self._client.stream(part.stream).calls

    def page(self, offset: int) -> FramesPage | None:
        """Get the page at an offset; None if the rest is lost, and that is all right."""
        try:
            page = self._page(offset)
        except errors.DataLossError:
            if self._is_loss_fatal:
                raise
            return None
        except Unavailable as error:
            raise errors.server_unreachable(error) from None
        return page

    def _page(self, offset: int) -> FramesPage | None:
        part, span = self._part, self._part.span
        try:
            page = self._client.run(frames_page(self._calls, print_offset(offset)))
        except OffsetTrimmed as error:
            head = parse_offset(error.head or "")
            assert head is not None
            is_fine = not self._is_loss_fatal or (span.is_open and offset == span.begin)
            if not is_fine:
                raise errors.stream_trimmed(part.stream, offset, head) from None
            return self._page(head) if head < span.end else None
        except (StreamNotFound, StreamGone):
            raise errors.stream_deleted(part.stream) from None
        if page.incarnation != span.id:
            raise errors.stream_recreated(part.stream)
        if page.next_offset <= offset:
            raise errors.stream_truncated(part.stream, span.end, page.next_offset)
        return page
