"""Reading pinned ranges, in a task or on the driver: committed messages, of that incarnation."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise

import pyarrow as pa
from msgspec import Struct
from pyspark.sql.types import (
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from semel.client.values import Message
from semel.pipeline.delivery import Range
from semel.pipeline.evaluate import InputMessage
from semel.spark.options import SourceOptions, parse_source
from semel.spark.source.columns import Columns, columns_for, source_schema
from semel.spark.source.slices import OffsetRange, Span, read_range

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


def read_parts(url: str, wanted: Range, *, is_open: bool = False) -> Iterator[pa.RecordBatch]:
    """Read a range page by page, with the columns of the source; raises DataLossError.

    A range from 0 on, or an open one, begins with whatever is the first message that is kept.
    """
    if wanted.start >= wanted.to:
        return iter(())
    options, columns = _reading(url, wanted.stream)
    span = Span(wanted.incarnation, wanted.start, wanted.to, is_open=is_open or wanted.start == 0)
    return read_range(options, columns, OffsetRange(wanted.stream, span))


def input_messages(binding: str, page: pa.RecordBatch, stream: str) -> list[InputMessage]:
    """Name the messages of a page."""
    values, offsets = page.column("value").to_pylist(), page.column("offset").to_pylist()
    return [
        InputMessage(binding, stream, offset, raw)
        for offset, raw in zip(offsets, values, strict=True)
    ]


def as_frame(page: pa.RecordBatch) -> pa.RecordBatch:
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


# ---- spark parts ---------------------------------------------------------------------------------
# The ranges of a step, cut into what each task takes: in the order of the outputs. Pure.


class InputPart(Struct, frozen=True):
    """What one task takes, by binding: of a join a range of every input, else of one.

    `is_open`: its step begins where the stream does, so that what is trimmed is not missing.
    """

    ranges: Mapping[str, Range]
    is_open: bool = False


def split_parts(
    inputs: Mapping[str, str], ranges: Sequence[Range], tasks: int, messages_min: int
) -> list[InputPart]:
    """Cut ranges for that many tasks, each with so many offsets at least if there is a choice.

    They stand in the order of the bindings, then of offsets.
    """
    by_stream = {one.stream: one for one in ranges}
    total = sum(one.to - one.start for one in ranges)
    wanted = max(min(tasks, total // messages_min), 1)
    parts = []
    for binding, path in inputs.items():
        one = by_stream[path]
        length = one.to - one.start
        count = min(length, -(-length * wanted // max(total, 1)))
        for start, to in pairwise(_edges(length, count)):
            piece = one._replace(start=one.start + start, to=one.start + to)
            parts.append(InputPart({binding: piece}, is_open=one.start == 0))
    return parts


def split_join_parts(
    inputs: Mapping[str, str],
    ranges: Sequence[Range],
    messages: Mapping[str, Sequence[Message]],
    tasks: int,
    messages_min: int,
) -> list[InputPart]:
    """Cut a join so that a task has the same messages of every input, counted from the first.

    Offsets may have holes, so only the messages themselves tell where to cut.
    """
    by_stream = {one.stream: one for one in ranges}
    (length,) = {len(found) for found in messages.values()}
    count = min(max(min(tasks, length // messages_min), 1), length)
    parts = []
    for first, end in pairwise(_edges(length, count)):
        found = {}
        for binding, path in inputs.items():
            one, places = by_stream[path], [message.ordinal for message in messages[binding]]
            start = places[first] if first else one.start
            to = places[end] if end < length else one.to
            assert isinstance(start, int)
            assert isinstance(to, int)
            found[binding] = one._replace(start=start, to=to)
        parts.append(InputPart(found))
    return parts


def _edges(length: int, count: int) -> list[int]:
    return [length * number // count for number in range(count + 1)] if count else []
