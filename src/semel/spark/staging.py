"""One attempt of one task: its rows in a staged transaction, sealed, and seen by nobody yet."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import pyarrow as pa
from msgspec import Struct

from semel.client.client import Client
from semel.client.errors import (
    BadRequest,
    ClientError,
    Indeterminate,
    StreamNotFound,
    TooLarge,
    Unavailable,
)
from semel.client.sink import SinkTask
from semel.model.limits import BODY_BYTES_MAX, TXN_STREAMS_MAX
from semel.spark.chunks import Chunker
from semel.spark.doors import client_for
from semel.spark.options import SinkOptions, SparkOptionError
from semel.spark.routing import RowSplitter
from semel.spark.rows import RowError, Rows
from semel.spark.sink_columns import SinkColumns
from semel.spark.troubles import FIRST_SECONDS, away

_UNDER_WAY_MAX: Final = 2  # chunks that are being sent or wait for it, while the next is made
_ABORT_SECONDS_MAX: Final = 5.0


class Place(Struct, frozen=True):
    """Which task of which version it is."""

    app: str
    version: int
    partition: int


def stage(
    options: SinkOptions, columns: SinkColumns, place: Place, batches: Iterable[pa.RecordBatch]
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
        raise away(error) from None
    except BaseException:
        # What stays is dropped by the next commit of the sink, or after a day.
        with suppress(ClientError):
            task.abort(timeout=min(options.retry_seconds, _ABORT_SECONDS_MAX))
        raise


def _chunks(splitter: RowSplitter, batches: Iterable[pa.RecordBatch]) -> Iterator[Rows]:
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
        self._patience = min(options.retry_seconds, FIRST_SECONDS) if is_first else None

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
        patience, self._patience = self._patience, None
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

    def send_all(self, chunks: Iterable[Rows]) -> None:
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

    def _send(self, rows: Rows) -> None:
        if self._is_over:
            return
        try:
            self._send_in_parts(rows)
        except BaseException:
            self._is_over = True
            raise

    def _send_in_parts(self, rows: Rows) -> None:
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

    def _is_taken(self, rows: Rows, body: bytes) -> bool:
        self._task.begin()
        try:
            self._task.append_batch(rows.path, body, len(rows))
        except TooLarge:
            self._bytes_max = len(body) - 1  # this server takes less than others
            return False
        except BadRequest as error:
            raise self._named(rows, error) from None
        return True

    def _named(self, rows: Rows, error: BadRequest) -> Exception:
        """Find the row a refusal is about."""
        fault = rows.fault()
        if fault is None:
            return RowError(self._partition, int(rows.numbers[0]), f"or behind it: {error}")
        row, what = fault
        return RowError(self._partition, row, f"{rows.path} does not take it: {what}")
