"""Reading a slice: page after page, the next one fetched while this one is decoded."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pyarrow as pa

from semel.client.errors import OffsetTrimmed, StreamGone, StreamNotFound, Unavailable
from semel.client.frames_reading import FramesPage, frames_page
from semel.model.offsets import parse_offset, print_offset
from semel.spark import troubles
from semel.spark.columns import Columns
from semel.spark.doors import client_for
from semel.spark.frames_arrow import rows_of
from semel.spark.options import SourceOptions
from semel.spark.slices import Portion, Slice

_AHEAD: Final = 1  # pages; more only fill the memory


def read_portion(
    options: SourceOptions, columns: Columns, portion: Portion
) -> Iterator[pa.RecordBatch]:
    """Read the slices of a task, one after another."""
    for part in portion.slices:
        yield from read_slice(options, columns, part)


def read_slice(options: SourceOptions, columns: Columns, part: Slice) -> Iterator[pa.RecordBatch]:
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

    def __init__(self, options: SourceOptions, part: Slice) -> None:
        self._part = part
        self._is_loss_fatal = options.is_loss_fatal
        self._client = client_for(options.url, options.token, options.retry_seconds)
        self._calls = self._client.stream(part.stream).calls

    def page(self, offset: int) -> FramesPage | None:
        """Get the page at an offset; None if the rest is lost, and that is all right."""
        try:
            page = self._page(offset)
        except troubles.DataLossError:
            if self._is_loss_fatal:
                raise
            return None
        except Unavailable as error:
            raise troubles.away(error) from None
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
                raise troubles.trimmed(part.stream, offset, head) from None
            return self._page(head) if head < span.end else None
        except (StreamNotFound, StreamGone):
            raise troubles.deleted(part.stream) from None
        if page.incarnation != span.id:
            raise troubles.recreated(part.stream)
        if page.next_offset <= offset:
            raise troubles.shrunk(part.stream, span.end, page.next_offset)
        return page
