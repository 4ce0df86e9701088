"""The work of one task attempt: stage the rows in a transaction, then prepare the transaction."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from semel.client.errors import (
    BadRequest,
    ClientError,
    Indeterminate,
    IsTopic,
    StreamNotFound,
    TooLarge,
    Unavailable,
)
from semel.client.sync.client import Client
from semel.client.sync.transaction import SinkTask
from semel.client.transport import CLIENT_DEFAULT, Timeout
from semel.model.limits import (
    BATCH_MESSAGES_MAX,
    BODY_BYTES_MAX,
    KIB,
    MESSAGE_KEY_BYTES_MAX,
    MIB,
    TXN_STREAMS_MAX,
)
from semel.model.messages import is_json
from semel.spark.errors import FIRST_SECONDS, RowError, server_unreachable
from semel.spark.options import SinkOptions, SparkOptionError, client_for
from semel.spark.sink.columns import SinkColumns
from semel.spark.sink.rows import (
    StreamRows,
    compact,
    concatenate,
    json_objects,
    lengths_of,
    nulls_as_json,
)
from semel.spark.sink.topics import TopicLayout

# ---- routing -------------------------------------------------------------------------------------


# Returns the content type of a stream. Raises ValueError if the task cannot write to that stream.
TypeOf = Callable[[str], str]


class RowSplitter:
    """Splits the rows of one task into groups, one for each stream.

    The stream is `target` if it is a path. If `target` is the layout of a topic, the key of a row
    selects the partition, and with that the stream. If `target` is None, a column names the stream.

    It also numbers the rows of the task, so that errors can name a row.
    """

    def __init__(
        self,
        columns: SinkColumns,
        target: TopicLayout | str | None,
        type_of: TypeOf,
        partition: int,
    ) -> None:
        self._columns = columns
        self._target = target
        self._type_of = type_of
        self._partition = partition
        self._row_count = 0

    def split(self, batch: pa.RecordBatch) -> Iterator[StreamRows]:
        """Yield the rows of a batch, one StreamRows for each stream.

        Raises RowError if a row cannot be written.
        """
        numbers = np.arange(self._row_count, self._row_count + batch.num_rows)
        self._row_count += batch.num_rows
        if not batch.num_rows:
            return
        try:
            values = self._values(batch)
        except ValueError as error:
            raise self._wrong(numbers[0], f"this or a later row is invalid: {error}") from None
        whole = StreamRows("", "", values, numbers, *self._extras(batch))
        for path, indices in self._routes(batch, whole):
            yield self._targeted(whole if indices is None else whole.take(indices), path)

    def _values(self, batch: pa.RecordBatch) -> pa.Array:
        if self._columns.value is not None:
            return compact(batch.column(self._columns.value))
        indices, names = zip(*self._columns.named, strict=True)
        return json_objects(names, [batch.column(index) for index in indices])

    def _extras(self, batch: pa.RecordBatch) -> Iterator[pa.Array | None]:
        columns = self._columns
        key, headers, time = columns.key, columns.headers, columns.timestamp
        yield None if key is None else compact(batch.column(key))
        yield None if headers is None else batch.column(headers)
        yield None if time is None else batch.column(time)

    def _routes(self, batch: pa.RecordBatch, rows: StreamRows) -> Iterator[tuple[str, Any]]:
        """Yield the path of each stream with the indices of its rows. None means all rows."""
        if isinstance(self._target, str):
            yield self._target, None
        elif self._target is not None:
            partitions = self._target.partitions_of(rows.keys, rows.values)
            for partition, indices in _grouped(partitions):
                yield self._target.path(partition), indices
        else:
            assert self._columns.stream is not None
            yield from self._named(batch.column(self._columns.stream), rows.numbers)

    def _named(self, column: pa.Array, numbers: Any) -> Iterator[tuple[str, Any]]:
        if column.null_count:
            at = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise self._wrong(
                numbers[at], "the column 'stream' is null: set it, or add .option('stream', '...')"
            )
        coded = column.dictionary_encode()
        paths = coded.dictionary.to_pylist()
        if len(paths) == 1:
            yield paths[0], None
            return
        for code, indices in _grouped(coded.indices.to_numpy()):
            yield paths[code], indices

    def _targeted(self, rows: StreamRows, path: str) -> StreamRows:
        try:
            content_type = self._type_of(path)
        except ValueError as error:
            raise self._wrong(rows.numbers[0], f"cannot write to {path!r}: {error}") from None
        values = rows.values
        if is_json(content_type):
            values = nulls_as_json(values)
        elif self._columns.value is None:
            raise self._wrong(
                rows.numbers[0],
                f"the content type of {path} is {content_type}, but rows without a column"
                " 'value' are written as JSON: add this column, or write to a JSON stream",
            )
        elif values.null_count:
            at = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
            raise self._wrong(
                rows.numbers[at],
                f"the column 'value' is null, which {content_type} cannot represent",
            )
        return self._checked(replace(rows, path=path, content_type=content_type, values=values))

    def _checked(self, rows: StreamRows) -> StreamRows:
        lengths = lengths_of(rows.values)
        if not lengths.all():
            at = int(np.argmin(lengths))
            what = "not valid JSON" if is_json(rows.content_type) else "not a valid message"
            raise self._wrong(rows.numbers[at], f"the column 'value' is empty, which is {what}")
        if rows.keys is not None:
            keys = pc.fill_null(pc.binary_length(rows.keys), 0).to_numpy(zero_copy_only=False)
            if len(keys) and keys.max() > MESSAGE_KEY_BYTES_MAX:
                at = int(np.argmax(keys))
                raise self._wrong(
                    rows.numbers[at],
                    f"the key has {keys[at]} bytes; the maximum is {MESSAGE_KEY_BYTES_MAX}",
                )
        return rows

    def _wrong(self, number: int, what: str) -> RowError:
        return RowError(self._partition, int(number), what)


def _grouped(codes: Any) -> Iterator[tuple[int, Any]]:
    """Yield each code with the indices at which it occurs, in order."""
    order = np.argsort(codes, kind="stable")
    found, starts = np.unique(codes[order], return_index=True)
    for code, indices in zip(found, np.split(order, starts[1:]), strict=True):
        yield int(code), indices


# ---- staging -------------------------------------------------------------------------------------


_IN_FLIGHT_MAX: Final = 2  # chunks that are being sent or are queued while the next is made
_ABORT_SECONDS_MAX: Final = 5.0


class TaskId(Struct, frozen=True):
    """The identity of a task: the name of its sink, the version to commit, and its partition."""

    app: str
    version: int
    partition: int


def stage(
    options: SinkOptions,
    columns: SinkColumns,
    id: TaskId,
    batches: Iterable[pa.RecordBatch],
    layout: TopicLayout | None = None,
) -> str | None:
    """Stage all rows in a transaction, prepare the transaction, and return its token.

    `layout` is that of the topic, if the options name one. Return None if there are no rows. Raises
    RowError if a row cannot be written. Raises ServerUnreachable if the server does not respond.

    The transaction names the topic when it begins. From then on, the topic does not grow, so the
    layout is read again: all tasks with rows use the same one until their batch is committed.
    Otherwise, keys could be out of order for the members of groups.
    """
    assert (layout is None) == (options.topic is None)
    client = client_for(options)
    task = client.sink(id.app).task(id.version, id.partition)

    def splitter() -> RowSplitter:
        current = layout
        if layout is not None:
            task.begin(streams=[layout.topic])
            current = layout.read_again(client)
        targets = Targets(client, options, current, is_first=id.version == 0)
        return RowSplitter(columns, current or options.stream, targets.type_of, id.partition)

    try:
        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return None
        Sender(task, id.partition).send_all(_chunks(splitter(), chain([first], filled)))
        return task.prepare()
    except (Indeterminate, Unavailable) as error:
        raise server_unreachable(error) from None
    except BaseException:
        # If the abort fails, the transaction does not stay forever. The sink's next commit drops
        # its chunks, or the server aborts it after a day without changes.
        with suppress(ClientError):
            task.abort(timeout=min(options.retry_seconds, _ABORT_SECONDS_MAX))
        raise


def _chunks(splitter: RowSplitter, batches: Iterable[pa.RecordBatch]) -> Iterator[StreamRows]:
    chunker = Chunker()
    for batch in batches:
        for rows in splitter.split(batch):
            yield from chunker.add(rows)
    yield from chunker.rest()


class Targets:
    """Looks up the content type of each stream that a task writes to. Creates missing streams."""

    def __init__(
        self, client: Client, options: SinkOptions, layout: TopicLayout | None, *, is_first: bool
    ) -> None:
        self._client = client
        self._options = options
        self._layout = layout
        self._types: dict[str, str] = {}
        self._first_timeout: Timeout = CLIENT_DEFAULT
        if is_first:
            self._first_timeout = min(options.retry_seconds, FIRST_SECONDS)

    def type_of(self, path: str) -> str:
        """Return the content type of a stream. Create the stream if it does not exist.

        The streams of a topic exist, and have its content type.

        Raises ValueError if the path is not valid. Raises SparkOptionError (a ValueError) if the
        options forbid creating the stream, or if the task writes to too many streams.
        """
        if self._layout is not None:
            return self._layout.content_type
        if path not in self._types:
            if len(self._types) == TXN_STREAMS_MAX:
                raise SparkOptionError(
                    f"a task can write to at most {TXN_STREAMS_MAX:,} streams; distribute the rows"
                    ' with .repartition(n, "stream")'
                )
            self._types[path] = self._find_or_create(path)
        return self._types[path]

    def _find_or_create(self, path: str) -> str:
        stream = self._client.stream(path)
        timeout, self._first_timeout = self._first_timeout, CLIENT_DEFAULT
        try:
            return stream.head(timeout=timeout).content_type
        except IsTopic:
            raise SparkOptionError("it is a topic, not a stream: use the option 'topic'") from None
        except StreamNotFound:
            pass
        if not self._options.is_creating:
            raise SparkOptionError(
                "the stream does not exist; create it, or remove the option createStream=false"
            )
        stream.create(self._options.content_type, exist_ok=True)
        return stream.calls.content_type or self._options.content_type


class Sender:
    """Sends chunks in order, on its own thread, while the caller makes the next chunks."""

    def __init__(self, task: SinkTask, partition: int) -> None:
        self._task = task
        self._partition = partition
        self._bytes_max = BODY_BYTES_MAX
        self._is_over = False

    def send_all(self, chunks: Iterable[StreamRows]) -> None:
        """Send all chunks. Raises the error of the first chunk that fails."""
        in_flight: deque[Future[None]] = deque()
        with ThreadPoolExecutor(1, "semel-spark-sender") as pool:
            try:
                for rows in chunks:
                    in_flight.append(pool.submit(self._send, rows))
                    if len(in_flight) > _IN_FLIGHT_MAX:
                        in_flight.popleft().result()
                while in_flight:
                    in_flight.popleft().result()
            except BaseException:
                # Send no later chunk. It would get the number of the chunk that is missing.
                self._is_over = True
                raise

    def _send(self, rows: StreamRows) -> None:
        if self._is_over:
            return
        try:
            self._send_in_parts(rows)
        except BaseException:
            self._is_over = True
            raise

    def _send_in_parts(self, rows: StreamRows) -> None:
        """Send rows as one chunk. If the chunk is too large for the server, send it in two halves.

        Each half can be halved again. Raises RowError if a single row is too large.
        """
        body = rows.body()
        if len(body) <= self._bytes_max and self._is_accepted(rows, body):
            return
        if len(rows) == 1:
            raise RowError(
                self._partition,
                int(rows.numbers[0]),
                f"the message, with its key and headers, has {len(body):,} bytes and is too large"
                " for the server: make the message smaller",
            )
        middle = len(rows) // 2
        self._send_in_parts(rows.part(0, middle))
        self._send_in_parts(rows.part(middle, len(rows)))

    def _is_accepted(self, rows: StreamRows, body: bytes) -> bool:
        self._task.begin()
        try:
            self._task.append_batch(rows.path, body, len(rows))
        except TooLarge:
            self._bytes_max = len(body) - 1  # this server accepts only smaller bodies
            return False
        except BadRequest as error:
            raise self._row_error(rows, error) from None
        return True

    def _row_error(self, rows: StreamRows, error: BadRequest) -> RowError:
        """Return the error for a chunk that the server refused.

        The error names the invalid row. If no invalid row is found, it names the chunk's first row.
        """
        invalid = rows.first_invalid()
        if invalid is None:
            return RowError(
                self._partition, int(rows.numbers[0]), f"this or a later row is invalid: {error}"
            )
        row, what = invalid
        return RowError(self._partition, row, f"the stream {rows.path} refuses this row: {what}")


# ---- chunks --------------------------------------------------------------------------------------


HELD_BYTES_MAX: Final = 16 * MIB  # the maximum size of all rows that are not yet in a chunk
_OVERHEAD_BYTES: Final = 1 * KIB  # a body's header, its content type, the start of its extras


class _PendingRows(Struct):
    """Rows of one stream that are not yet in a chunk."""

    parts: list[StreamRows] = []
    count: int = 0
    size: int = 0

    def add(self, rows: StreamRows, size: int) -> None:
        self.parts.append(rows)
        self.count += len(rows)
        self.size += size


class Chunker:
    """Combines rows of the same stream, in order, into chunks that each fit into one request."""

    def __init__(self, bytes_max: int = BODY_BYTES_MAX) -> None:
        self._budget = bytes_max - _OVERHEAD_BYTES
        self._pending: dict[str, _PendingRows] = {}
        self._held = 0

    def add(self, rows: StreamRows) -> Iterator[StreamRows]:
        """Add rows of one stream. Yield the chunks that are now full.

        If the remaining rows of all streams have more than HELD_BYTES_MAX bytes, yield them too.
        """
        size = int(rows.sizes().sum())
        pending = self._pending.setdefault(rows.path, _PendingRows())
        pending.add(rows, size)
        self._held += size
        if pending.count >= BATCH_MESSAGES_MAX or pending.size >= self._budget:
            yield from self._chunks(rows.path, is_last=False)
        if self._held > HELD_BYTES_MAX:
            yield from self.rest()

    def rest(self) -> Iterator[StreamRows]:
        """Yield all remaining rows as chunks."""
        for path in list(self._pending):
            yield from self._chunks(path, is_last=True)

    def _chunks(self, path: str, *, is_last: bool) -> Iterator[StreamRows]:
        pending = self._pending.pop(path)
        self._held -= pending.size
        rows = concatenate(pending.parts)
        ends = np.cumsum(rows.sizes())
        start, before = 0, 0
        while start < len(rows):
            end = int(np.searchsorted(ends, before + self._budget, side="right"))
            end = min(max(end, start + 1), start + BATCH_MESSAGES_MAX, len(rows))
            if end == len(rows) and not is_last and end - start < BATCH_MESSAGES_MAX:
                break
            yield rows.part(start, end)
            start, before = end, int(ends[end - 1])
        if start < len(rows):
            size = int(ends[-1]) - before
            self._pending.setdefault(path, _PendingRows()).add(rows.part(start, len(rows)), size)
            self._held += size
