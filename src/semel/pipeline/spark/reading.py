"""Reading the ranges of a step, in tasks or on the driver, and splitting them for tasks."""

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
from semel.pipeline.evaluate import InputMessage
from semel.pipeline.values import Range
from semel.spark.options import SourceOptions, parse_source
from semel.spark.source.columns import Columns, columns_for, source_schema
from semel.spark.source.slices import OffsetRange, Span, read_offset_range

# The columns of the DataFrame that a function gets. All streams of a graph are JSON streams, so
# `value` is a string.
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


def read_parts(url: str, part: Range, *, is_open: bool = False) -> Iterator[pa.RecordBatch]:
    """Yield the committed messages of a range page by page, with the columns of the Spark source.

    Raises DataLossError if messages are missing. If the range starts at 0 or `is_open`, it starts
    with the first message that is kept, and trimmed messages are not missing.
    """
    if part.start >= part.to:
        return iter(())
    options, columns = _source(url, part.stream)
    span = Span(part.incarnation, part.start, part.to, is_open=is_open or part.start == 0)
    return read_offset_range(options, columns, OffsetRange(part.stream, span))


def input_messages(binding: str, page: pa.RecordBatch, stream: str) -> list[InputMessage]:
    """Return the rows of a page as messages of one input."""
    values, offsets = page.column("value").to_pylist(), page.column("offset").to_pylist()
    return [
        InputMessage(binding, stream, offset, raw)
        for offset, raw in zip(offsets, values, strict=True)
    ]


def as_frame(page: pa.RecordBatch) -> pa.RecordBatch:
    """Return a page with the columns of `FRAME`."""
    columns = [
        page.column(name).cast(pa.string()) if name == "value" else page.column(name)
        for name in FRAME_NAMES
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(FRAME_NAMES))


@cache
def _source(url: str, stream: str) -> tuple[SourceOptions, Columns]:
    options = parse_source({"url": url, "stream": stream})
    return options, columns_for(options, source_schema(options))


# ---- parts ---------------------------------------------------------------------------------------
# A part is the input of one task. The outputs of a step are in the order of its parts. Pure.


class InputPart(Struct, frozen=True):
    """The input of one task, by binding: a range of every input for a join, otherwise of one input.

    `is_open` is true if the step starts at the head of the stream. Then trimmed messages are not
    missing.
    """

    ranges: Mapping[str, Range]
    is_open: bool = False


def split_parts(
    inputs: Mapping[str, str], ranges: Sequence[Range], tasks: int, messages_min: int
) -> list[InputPart]:
    """Split ranges into about `tasks` parts, or fewer, of about `messages_min` offsets or more.

    A part has a range of one input, so several inputs can lead to a few more parts than `tasks`.
    The parts are in the order of the bindings, and for each binding in the order of the offsets.
    """
    by_stream = {r.stream: r for r in ranges}
    total = sum(r.to - r.start for r in ranges)
    part_count = max(min(tasks, total // messages_min), 1)
    parts = []
    for binding, path in inputs.items():
        whole = by_stream[path]
        length = whole.to - whole.start
        count = min(length, -(-length * part_count // max(total, 1)))
        for start, to in pairwise(_edges(length, count)):
            part = whole._replace(start=whole.start + start, to=whole.start + to)
            parts.append(InputPart({binding: part}, is_open=whole.start == 0))
    return parts


def split_join_parts(
    inputs: Mapping[str, str],
    ranges: Sequence[Range],
    messages: Mapping[str, Sequence[Message]],
    tasks: int,
    messages_min: int,
) -> list[InputPart]:
    """Split the ranges of a join into at most `tasks` parts of `messages_min` messages or more.

    If a part has the i-th message of one input, it has the i-th message of every input. Offsets can
    have gaps, so the ranges are split at the offsets of the messages.
    """
    by_stream = {r.stream: r for r in ranges}
    (length,) = {len(batch) for batch in messages.values()}
    count = min(max(min(tasks, length // messages_min), 1), length)
    parts = []
    for first, end in pairwise(_edges(length, count)):
        by_binding = {}
        for binding, path in inputs.items():
            whole, ordinals = by_stream[path], [message.ordinal for message in messages[binding]]
            start = ordinals[first] if first else whole.start
            to = ordinals[end] if end < length else whole.to
            assert isinstance(start, int)
            assert isinstance(to, int)
            by_binding[binding] = whole._replace(start=start, to=to)
        parts.append(InputPart(by_binding))
    return parts


def _edges(length: int, count: int) -> list[int]:
    return [length * number // count for number in range(count + 1)] if count else []
