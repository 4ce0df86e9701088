"""Reading pinned ranges, in a task or on the driver: committed messages, of that incarnation."""

from collections.abc import Iterator
from functools import cache

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from semel.pipeline.delivery import Range
from semel.pipeline.evaluate import Seen
from semel.spark.columns import Columns, columns_for, source_schema
from semel.spark.options import SourceOptions, parse_source
from semel.spark.pages import read_slice
from semel.spark.slices import Slice, Span

# The columns of a DataFrame that a function is given. All streams of a graph hold JSON.
FRAME = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", StringType()),
        StructField("stream", StringType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
    ]
)
FRAME_NAMES = tuple(FRAME.names)


def pages(url: str, wanted: Range, *, is_open: bool = False) -> Iterator[pa.RecordBatch]:
    """Read a range page by page, with the columns of the source; raises DataLossError.

    A range from 0 on, or an open one, begins with whatever is the first message that is kept.
    """
    if wanted.start >= wanted.to:
        return iter(())
    options, columns = _reading(url, wanted.stream)
    span = Span(wanted.incarnation, wanted.start, wanted.to, is_open=is_open or wanted.start == 0)
    return read_slice(options, columns, Slice(wanted.stream, span))


def seen(binding: str, page: pa.RecordBatch, stream: str) -> list[Seen]:
    """Name the messages of a page."""
    values, offsets = page.column("value").to_pylist(), page.column("offset").to_pylist()
    return [Seen(binding, stream, offset, raw) for offset, raw in zip(offsets, values, strict=True)]


def framed(page: pa.RecordBatch) -> pa.RecordBatch:
    """Give a page the columns of a function's DataFrame."""
    columns = [
        page.column(name).cast(pa.string()) if name == "value" else page.column(name)
        for name in FRAME_NAMES
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(FRAME_NAMES))


@cache
def _reading(url: str, stream: str) -> tuple[SourceOptions, Columns]:
    options = parse_source({"url": url, "stream": stream})
    return options, columns_for(options, source_schema(options))
