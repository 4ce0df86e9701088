"""Reading the messages of a step's ranges, and splitting the ranges into parts for tasks."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, Final

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

from semel.client.computed import FieldValue
from semel.client.credentials import Secret, TokenFile
from semel.client.errors import OffsetTrimmed, StreamGone, StreamNotFound
from semel.client.reading import PageReader
from semel.client.stream_calls import StreamCalls
from semel.client.values import Message, ordinal_of
from semel.model.offsets import print_offset
from semel.pipeline.error_stream import RETRIES, InputMessage, call_again
from semel.pipeline.values import Range
from semel.spark.options import SourceOptions, client_for, parse_sink, parse_source
from semel.spark.source.columns import Columns, columns_for, source_schema
from semel.spark.source.slices import OffsetRange, Span, read_offset_range

# The columns of the DataFrame that a function gets. `value` is a string, because all streams of a
# graph contain JSON.
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
_TIME: Final = pa.timestamp("us", tz="UTC")


class ServerAccess(Struct, frozen=True):
    """The server that tasks send requests to, and the token that they send."""

    url: str
    token: Secret | TokenFile | None

    @property
    def options(self) -> dict[str, str]:
        """The options of the Spark source and sink.

        An empty token means that SEMEL_TOKEN is not read: the driver has already done that.
        """
        if isinstance(self.token, TokenFile):
            return {"url": self.url, "tokenFile": self.token.path}
        return {"url": self.url, "token": self.token or Secret()}


def access_of(url: str, token: FieldValue | None) -> ServerAccess:
    """Return the access of tasks. Runner has refused a token that is another function."""
    assert token is None or isinstance(token, str | TokenFile)
    return ServerAccess(url, Secret(token) if isinstance(token, str) else token)


def read_parts(
    server: ServerAccess, part: Range, *, is_open: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield pages of the committed messages of a range, with the columns of the Spark source.

    Raises DataLossError if messages of the range are missing. However, if `is_open` is True or the
    range starts at 0, the first messages of the range can be missing without an error.
    """
    if part.start >= part.to:
        return iter(())
    options, columns = _source(server, part.stream)
    span = Span(part.incarnation, part.start, part.to, is_open=is_open or part.start == 0)
    return read_offset_range(options, columns, OffsetRange(part.stream, span))


def input_messages(binding: str, page: pa.RecordBatch, part: Range) -> list[InputMessage]:
    """Return the rows of a page, which is of `part`, as messages of the input `binding`."""
    times = page.column("timestamp").cast(pa.int64()).to_pylist()
    headers = _column(page, "headers")
    return [
        InputMessage(
            binding,
            part.stream,
            offset,
            raw,
            incarnation=part.incarnation,
            key=key,
            headers=() if pairs is None else [(pair["key"], pair["value"]) for pair in pairs],
            time_ms=time_us // 1000,
        )
        for offset, raw, key, pairs, time_us in zip(
            page.column("offset").to_pylist(),
            page.column("value").to_pylist(),
            _column(page, "key"),
            headers,
            times,
            strict=True,
        )
    ]


def _column(page: pa.RecordBatch, name: str) -> Sequence[Any]:
    """Return the values of a column that is often null."""
    column = page.column(name)
    return [None] * len(column) if column.null_count == len(column) else column.to_pylist()


def retried_frame(
    page: pa.RecordBatch, part: Range, inputs: Mapping[str, str], binding: str
) -> pa.RecordBatch:
    """Return the dead letters in a page of the retry stream as rows of the input `binding`.

    The rows have the columns that a function sees in its input DataFrame. The stream and the offset
    are those of the message that failed.
    """
    messages = [
        each
        for message in input_messages(RETRIES, page, part)
        for each in call_again(inputs, message)
        if each.binding == binding
    ]
    columns = [
        pa.array([each.key for each in messages], pa.binary()),
        pa.array([each.raw for each in messages], pa.binary()).cast(pa.string()),
        pa.array([each.stream for each in messages], pa.string()),
        pa.array([each.offset for each in messages], pa.int64()),
        pa.array([(each.time_ms or 0) * 1000 for each in messages], pa.int64()).view(_TIME),
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(FRAME_NAMES))


class Originals:
    """Reads single messages again, by the streams and offsets in rows of a DataFrame."""

    def __init__(self, server: ServerAccess) -> None:
        self._client = client_for(parse_sink(server.options))
        self._pages: dict[str, dict[int, InputMessage]] = {}  # the last page of each stream

    def read(self, stream: str, offset: int) -> InputMessage | None:
        """Return the message at an offset of a stream, or None if it does not exist any more."""
        page = self._pages.get(stream, {})
        if offset not in page:
            page = self._pages[stream] = self._read(stream, offset)
        return page.get(offset)

    def _read(self, stream: str, offset: int) -> dict[int, InputMessage]:
        """Return the messages from an offset on, as far as one response has them."""
        try:
            reader = PageReader(
                StreamCalls(self._client.site, stream), print_offset(offset), is_live=False
            )
            page = self._client.run(reader.next_page())
        except (OffsetTrimmed, StreamGone, StreamNotFound, ValueError):
            return {}
        return {
            ordinal_of(message.ordinal): InputMessage(
                "",
                stream,
                ordinal_of(message.ordinal),
                message.raw,
                incarnation=reader.incarnation,
                key=message.key,
                headers=message.headers,
                time_ms=message.written_ms if message.time_ms is None else message.time_ms,
            )
            for message in page or ()
        }


def as_frame(page: pa.RecordBatch) -> pa.RecordBatch:
    """Return the page with the columns that a function sees in its input DataFrame."""
    columns = [
        page.column(name).cast(pa.string()) if name == "value" else page.column(name)
        for name in FRAME_NAMES
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(FRAME_NAMES))


@cache
def _source(server: ServerAccess, stream: str) -> tuple[SourceOptions, Columns]:
    options = parse_source({**server.options, "stream": stream, "includeHeaders": "true"})
    return options, columns_for(options, source_schema(options))


# ---- parts ---------------------------------------------------------------------------------------
# A part is the input of one task. The outputs of a step are stored in the order of its parts. The
# functions below do no I/O.


class InputPart(Struct, frozen=True):
    """The input of one task.

    `ranges` maps bindings to ranges. A part from `split_join_parts` has a range of every input. A
    part from `split_parts` has a range of one input. If `is_open` is True, the first messages of
    the range can be missing, because they were trimmed.
    """

    ranges: Mapping[str, Range]
    is_open: bool = False


def split_parts(
    inputs: Mapping[str, str], ranges: Sequence[Range], tasks: int, messages_min: int
) -> list[InputPart]:
    """Split ranges into about `tasks` parts, or into fewer parts if the ranges are short.

    Each part is a range of one input, with at least about `messages_min` offsets. With several
    inputs, there can be a few more parts than `tasks`.

    The parts have the order of `inputs`. The parts of one input are sorted by offset.
    """
    by_stream = {r.stream: r for r in ranges if r.stream in inputs.values()}
    total = sum(r.to - r.start for r in by_stream.values())
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
    """Split the ranges of a join into at most `tasks` parts.

    A part that has the i-th message of one input also has the i-th message of every other input.
    Each part has at least `messages_min` messages of each input, unless there is only one part.
    """
    # The offsets can have gaps. So the ranges are split at offsets of messages.
    by_stream = {r.stream: r for r in ranges}
    (length,) = {len(messages[binding]) for binding in inputs}
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
