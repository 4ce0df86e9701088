"""One attempt of one task: its rows in a staged transaction, sealed, and seen by nobody yet."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from semel.client.errors import (
    BadRequest,
    ClientError,
    Indeterminate,
    StreamNotFound,
    TooLarge,
    Unavailable,
)
from semel.client.sync.client import Client
from semel.client.sync.sink import SinkTask
from semel.client.transport import CLIENT_DEFAULT, Timeout
from semel.model.limits import (
    BATCH_MESSAGES_MAX,
    BODY_BYTES_MAX,
    KIB,
    MESSAGE_KEY_BYTES_MAX,
    MIB,
    TXN_STREAMS_MAX,
)
from semel.model.media import is_json
from semel.spark.client_cache import client_for
from semel.spark.errors import FIRST_SECONDS, server_unreachable
from semel.spark.options import SinkOptions, SparkOptionError
from semel.spark.sink.columns import SinkColumns
from semel.spark.sink.rows import (
    RowError,
    StreamRows,
    compact,
    join_buffers,
    json_objects,
    lengths_of,
    nulls_as_json,
)

# ---- routing -------------------------------------------------------------------------------------
# Where rows go: the batches of one partition, split by stream.


# Tells the media type of a stream; ValueError if no stream can have that path.
TypeOf = Callable[[str], str]


class RowSplitter:
    """Splits the batches of one partition by stream, and counts its rows."""

    def __init__(
        self, columns: SinkColumns, stream: str | None, type_of: TypeOf, partition: int
    ) -> None:
        self._columns = columns
        self._stream = stream
        self._type_of = type_of
        self._partition = partition
        self._seen = 0

    def split(self, batch: pa.RecordBatch) -> Iterator[StreamRows]:
        """Give the rows of a batch, one piece for each stream."""
        numbers = np.arange(self._seen, self._seen + batch.num_rows)
        self._seen += batch.num_rows
        if not batch.num_rows:
            return
        try:
            values = self._values(batch)
        except ValueError as error:
            raise self._wrong(numbers[0], f"or behind it: {error}") from None
        whole = StreamRows("", "", values, numbers, *self._beside(batch))
        if self._columns.stream is None:
            assert self._stream is not None
            yield self._targeted(whole, self._stream)
            return
        for path, places in self._routes(batch.column(self._columns.stream), numbers):
            found = whole if places is None else whole.take(places)
            yield self._targeted(found, path)

    def _values(self, batch: pa.RecordBatch) -> pa.Array:
        if self._columns.value is not None:
            return compact(batch.column(self._columns.value))
        places = [place for place, _ in self._columns.named]
        names = [name for _, name in self._columns.named]
        return json_objects(names, [batch.column(place) for place in places])

    def _beside(self, batch: pa.RecordBatch) -> Iterator[pa.Array | None]:
        columns = self._columns
        key, headers, time = columns.key, columns.headers, columns.timestamp
        yield None if key is None else compact(batch.column(key))
        yield None if headers is None else batch.column(headers)
        yield None if time is None else batch.column(time)

    def _routes(self, column: pa.Array, numbers: Any) -> Iterator[tuple[str, Any]]:
        if column.null_count:
            at = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise self._wrong(
                numbers[at], 'stream is null; name one, or add .option("stream", "...")'
            )
        coded = column.dictionary_encode()
        paths = coded.dictionary.to_pylist()
        if len(paths) == 1:
            yield paths[0], None
            return
        codes = coded.indices.to_numpy()
        order = np.argsort(codes, kind="stable")  # rows of one stream stay in their order
        bounds = np.searchsorted(codes[order], np.arange(len(paths) + 1))
        for code, path in enumerate(paths):
            yield path, order[bounds[code] : bounds[code + 1]]

    def _targeted(self, rows: StreamRows, path: str) -> StreamRows:
        try:
            content_type = self._type_of(path)
        except ValueError as error:
            raise self._wrong(rows.numbers[0], f"stream is {path!r}: {error}") from None
        values = rows.values
        if is_json(content_type):
            values = nulls_as_json(values)
        elif self._columns.value is None:
            raise self._wrong(
                rows.numbers[0],
                f"{path} is {content_type}, and rows without a column value are JSON",
            )
        elif values.null_count:
            at = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
            raise self._wrong(rows.numbers[at], f"value is null, which {content_type} cannot say")
        return self._checked(
            StreamRows(
                path, content_type, values, rows.numbers, rows.keys, rows.headers, rows.times
            )
        )

    def _checked(self, rows: StreamRows) -> StreamRows:
        lengths = lengths_of(rows.values)
        if not lengths.all():
            at = int(np.argmin(lengths))
            wanted = "not JSON" if is_json(rows.content_type) else "not a message"
            raise self._wrong(rows.numbers[at], f"value is empty, which is {wanted}")
        if rows.keys is not None:
            keys = pc.fill_null(pc.binary_length(rows.keys), 0).to_numpy(zero_copy_only=False)
            if len(keys) and keys.max() > MESSAGE_KEY_BYTES_MAX:
                at = int(np.argmax(keys))
                raise self._wrong(
                    rows.numbers[at],
                    f"key has {keys[at]} bytes, and may have {MESSAGE_KEY_BYTES_MAX}",
                )
        return rows

    def _wrong(self, number: int, what: str) -> RowError:
        return RowError(self._partition, int(number), what)


# ---- staging -------------------------------------------------------------------------------------


_UNDER_WAY_MAX: Final = 2  # chunks that are being sent or wait for it, while the next is made
_ABORT_SECONDS_MAX: Final = 5.0


class TaskId(Struct, frozen=True):
    """Which task of which version it is."""

    app: str
    version: int
    partition: int


def stage(
    options: SinkOptions, columns: SinkColumns, place: TaskId, batches: Iterable[pa.RecordBatch]
) -> str | None:
    """Stage all rows and seal them; the token for the commit, or None if there were no rows."""
    client = client_for(options.url, options.token, options.retry_seconds)
    task = client.sink(place.app).task(place.version, place.partition)
    targets = Targets(client, options, is_first=place.version == 0)
    splitter = RowSplitter(columns, options.stream, targets.type_of, place.partition)
    try:
        Sender(task, place.partition).send_all(_chunks(splitter, batches))
        return task.prepare() if task.calls.chunks else None
    except (Indeterminate, Unavailable) as error:
        raise server_unreachable(error) from None
    except BaseException:
        # What stays is dropped by the next commit of the sink, or after a day.
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
    """The streams a task writes to: asked for once, and made if they are not there."""

    def __init__(self, client: Client, options: SinkOptions, *, is_first: bool) -> None:
        self._client = client
        self._options = options
        self._types: dict[str, str] = {}
        self._patience: Timeout = CLIENT_DEFAULT
        if is_first:
            self._patience = min(options.retry_seconds, FIRST_SECONDS)

    def type_of(self, path: str) -> str:
        """Give a stream's media type; ValueError if no stream can have that path."""
        found = self._types.get(path)
        if found is None:
            if len(self._types) == TXN_STREAMS_MAX:
                raise SparkOptionError(
                    f"a task can write to {TXN_STREAMS_MAX:,} streams, and this is one more: spread"
                    ' the rows with .repartition(n, "stream")'
                )
            found = self._types[path] = self._ask(path)
        return found

    def _ask(self, path: str) -> str:
        stream = self._client.stream(path)
        patience, self._patience = self._patience, CLIENT_DEFAULT
        with suppress(StreamNotFound):
            return stream.head(timeout=patience).content_type
        if not self._options.is_creating:
            raise SparkOptionError("there is no such stream: create it, or drop createStream=false")
        stream.create(self._options.content_type, exist_ok=True)
        return stream.calls.content_type or self._options.content_type


class Sender:
    """Sends chunks one after the other, while the next ones are made."""

    def __init__(self, task: SinkTask, partition: int) -> None:
        self._task = task
        self._partition = partition
        self._bytes_max = BODY_BYTES_MAX
        self._is_over = False

    def send_all(self, chunks: Iterable[StreamRows]) -> None:
        """Send them in order; raises what went wrong with the first that failed."""
        under_way: deque[Future[None]] = deque()
        with ThreadPoolExecutor(1, "semel-spark-sender") as pool:
            try:
                for rows in chunks:
                    under_way.append(pool.submit(self._send, rows))
                    if len(under_way) > _UNDER_WAY_MAX:
                        under_way.popleft().result()
                while under_way:
                    under_way.popleft().result()
            except BaseException:
                self._is_over = True  # a chunk behind one that is missing would take its number
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
        """Send rows, in two halves if they are too large for the server."""
        body = rows.body()
        if len(body) <= self._bytes_max and self._is_taken(rows, body):
            return
        if len(rows) == 1:
            what = f"a message of {len(body):,} bytes, with all it carries, is too large"
            raise RowError(
                self._partition, int(rows.numbers[0]), f"{what} for the server: make it smaller"
            )
        middle = len(rows) // 2
        self._send_in_parts(rows.cut(0, middle))
        self._send_in_parts(rows.cut(middle, len(rows)))

    def _is_taken(self, rows: StreamRows, body: bytes) -> bool:
        self._task.begin()
        try:
            self._task.append_batch(rows.path, body, len(rows))
        except TooLarge:
            self._bytes_max = len(body) - 1  # this server takes less than others
            return False
        except BadRequest as error:
            raise self._named(rows, error) from None
        return True

    def _named(self, rows: StreamRows, error: BadRequest) -> Exception:
        """Find the row a refusal is about."""
        fault = rows.fault()
        if fault is None:
            return RowError(self._partition, int(rows.numbers[0]), f"or behind it: {error}")
        row, what = fault
        return RowError(self._partition, row, f"{rows.path} does not take it: {what}")


# ---- chunks --------------------------------------------------------------------------------------
# Rows gathered into chunks as large as the server takes.


HELD_BYTES_MAX: Final = 16 * MIB  # of rows that wait for more of their stream, all together
_BESIDE_BYTES: Final = 1 * KIB  # the head of a body, the media type, the columns of its extras


class _PendingRows:
    """Rows of one stream that wait for more."""

    def __init__(self) -> None:
        self.pieces: list[StreamRows] = []
        self.count = 0
        self.size = 0

    def add(self, rows: StreamRows, size: int) -> None:
        self.pieces.append(rows)
        self.count += len(rows)
        self.size += size


class Chunker:
    """Gathers the rows of each stream, in their order."""

    def __init__(self, bytes_max: int = BODY_BYTES_MAX) -> None:
        self._budget = bytes_max - _BESIDE_BYTES
        self._piles: dict[str, _PendingRows] = {}
        self._held = 0

    def add(self, rows: StreamRows) -> Iterator[StreamRows]:
        """Take rows, and give the chunks that are full."""
        size = int(rows.sizes().sum())
        pile = self._piles.setdefault(rows.path, _PendingRows())
        pile.add(rows, size)
        self._held += size
        if pile.count >= BATCH_MESSAGES_MAX or pile.size >= self._budget:
            yield from self._cut(rows.path, is_last=False)
        if self._held > HELD_BYTES_MAX:
            yield from self.rest()

    def rest(self) -> Iterator[StreamRows]:
        """Give what is left."""
        for path in list(self._piles):
            yield from self._cut(path, is_last=True)

    def _cut(self, path: str, *, is_last: bool) -> Iterator[StreamRows]:
        pile = self._piles.pop(path)
        self._held -= pile.size
        rows = join_buffers(pile.pieces)
        ends = np.cumsum(rows.sizes())
        start, before = 0, 0
        while start < len(rows):
            end = int(np.searchsorted(ends, before + self._budget, side="right"))
            end = min(max(end, start + 1), start + BATCH_MESSAGES_MAX, len(rows))
            if end == len(rows) and not is_last and end - start < BATCH_MESSAGES_MAX:
                break
            yield rows.cut(start, end)
            start, before = end, int(ends[end - 1])
        if start < len(rows):
            size = int(ends[-1]) - before
            self._piles.setdefault(path, _PendingRows()).add(rows.cut(start, len(rows)), size)
            self._held += size
