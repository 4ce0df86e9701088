"""The client for programs that wait: `Client`, and what a stream of it can do."""

import ssl
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack
from weakref import WeakSet

from semel.client import server_calls
from semel.client.errors import ClientError
from semel.client.flows import Flow
from semel.client.group import MessageCommitter
from semel.client.group_calls import GroupCursor, GroupReader, refuse_events
from semel.client.producer.opening import ProducerOptions, open_producer
from semel.client.producer.threads import Producer
from semel.client.reading import PageReader
from semel.client.requests import AppendHeaders, CreateHeaders
from semel.client.sse import live_reader
from semel.client.stream_calls import ServerConfig, StreamCalls
from semel.client.sync_driver import Stop, SyncDriver
from semel.client.transacting import Transacting
from semel.client.transport import transport_to
from semel.client.txn_values import READ_COMMITTED
from semel.client.values import (
    START,
    Headers,
    Key,
    Message,
    ProducerState,
    Receipt,
    Registration,
    StreamEntry,
    StreamInfo,
    extras_of,
    join_messages,
)
from semel.model.media import DEFAULT_MEDIA_TYPE

T = TypeVar("T")
TIMEOUT_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 5.0


class Client(Transacting):
    """A server. Safe to use from many threads; connections are kept and reused.

    Every call ends within `timeout` seconds, with a result or a SemelError that says whether
    anything was applied. `retries`: how often a call is tried again where that is safe; None: as
    often as the time allows. `tls`: an ssl.SSLContext, or a file of certificates to trust.
    `gzip`: ask for compressed answers, which pays over slow networks only.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = TIMEOUT_SECONDS,
        connect_timeout: float = CONNECT_SECONDS,
        retries: int | None = None,
        tls: ssl.SSLContext | str | None = None,
        gzip: bool = False,
    ) -> None:
        self.transport = transport_to(
            url,
            token=token,
            headers=headers,
            timeout=timeout,
            connect_timeout=connect_timeout,
            tls=tls,
        )
        site = ServerConfig(self.transport.address, retries, gzip)
        super().__init__(site, SyncDriver(self.transport), timeout)
        self._producers: WeakSet[Producer] = WeakSet()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        with suppress(ClientError):  # what is raised is not masked
            self.close()

    def __repr__(self) -> str:
        return f"Client({self.transport.address.url!r})"

    def close(self, timeout: float | None = None) -> None:
        """Wait until the producers have stored what they took, and close them and the connections.

        All of it ends within `timeout`, or that of the client; what a producer has not stored by
        then is given up, and Indeterminate is raised. Calls after this raise ClientClosed.
        """
        with self._lock:
            producers, self._producers = list(self._producers), WeakSet()
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        with ExitStack() as stack:
            stack.callback(self.driver.close)
            for producer in producers:
                stack.callback(producer.close_by, deadline)

    def keep(self, producer: Producer) -> Producer:
        """Take note of a producer, to close it with the client."""
        with self._lock:
            self._producers.add(producer)
        return producer

    def stream(self, path: str) -> "Stream":
        """Name a stream; nothing is sent. ValueError if no stream can have that path."""
        return Stream(self, path)

    def streams(
        self, prefix: str = "", *, after: str | None = None, timeout: float | None = None
    ) -> Iterator[StreamEntry]:
        """List the streams whose paths begin so, in order of their paths."""
        while True:
            page = self.run(server_calls.list_streams(self.site, prefix, after), timeout)
            yield from page.streams
            if page.next is None:
                return
            after = page.next

    def health(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Ask how the server is."""
        return self.run(server_calls.health(self.site), timeout)

    def register_producer(
        self, id: str | None = None, *, timeout: float | None = None
    ) -> Registration:
        """Get an id of a producer, or the next epoch of one, which fences off the older ones."""
        return self.run(server_calls.register_producer(self.site, id), timeout)


class Stream:
    """A stream of a server, by its path."""

    def __init__(self, client: Client, path: str) -> None:
        self.client = client
        self.path = path
        self.calls = StreamCalls(client.site, path)

    def __repr__(self) -> str:
        return f"Stream({self.path!r})"

    # ---- the stream as a whole -------------------------------------------------------------------

    def create(
        self,
        content_type: str = DEFAULT_MEDIA_TYPE,
        *,
        exist_ok: bool = False,
        ttl: int | timedelta | None = None,
        expires_at: datetime | None = None,
        closed: bool = False,
        body: Any = None,
        timeout: float | None = None,
    ) -> Self:
        """Make the stream, with `body` as its first message if there is one.

        Raises StreamExists if it is there already, unless `exist_ok`, and ConfigConflict if it is
        there with another configuration. `ttl`: seconds without a use after which it is deleted.
        """
        configuration = CreateHeaders(content_type, ttl, expires_at, closed)
        self._run(self.calls.create(configuration, body, exist_ok=exist_ok), timeout)
        return self

    def fork(
        self,
        path: str,
        *,
        offset: str | None = None,
        sub_offset: int | None = None,
        exist_ok: bool = False,
        ttl: int | timedelta | None = None,
        expires_at: datetime | None = None,
        closed: bool = False,
        timeout: float | None = None,
    ) -> "Stream":
        """Make a stream that begins as a copy of this one, up to `offset` or all of it."""
        fork = Stream(self.client, path)
        configuration = CreateHeaders(None, ttl, expires_at, closed, self.path, offset, sub_offset)
        self._run(fork.calls.create(configuration, exist_ok=exist_ok), timeout)
        return fork

    def head(self, *, timeout: float | None = None) -> StreamInfo:
        """Look at the stream; StreamNotFound if it is not there."""
        return self._run(self.calls.head(), timeout)

    def exists(self, *, timeout: float | None = None) -> bool:
        """Tell whether the stream is there."""
        return self._run(self.calls.exists(), timeout)

    def delete(self, *, timeout: float | None = None) -> None:
        """Delete the stream; its data stays for its forks."""
        self._run(self.calls.delete(), timeout)

    def trim(self, before: str, *, timeout: float | None = None) -> None:
        """Give up the messages before an offset. Only semel can."""
        self._run(self.calls.trim(before), timeout)

    # ---- writing ---------------------------------------------------------------------------------

    def append(
        self,
        value: Any,
        *,
        key: Key = None,
        headers: Headers = None,
        timestamp: datetime | None = None,
        seq: str | None = None,
        if_match: str | None = None,
        idempotency_key: str | None = None,
        close: bool = False,
        timeout: float | None = None,
    ) -> Receipt:
        """Append one message; it is durable when this returns.

        In a JSON stream the value is encoded, and bytes are taken for JSON that is ready; in any
        other it must be bytes, or str where the stream holds text.

        With an `idempotency_key` it is stored once, however often it is sent, and so it is sent
        again when an answer is lost. Without, a lost answer is Indeterminate. `if_match`: only if
        the stream ends at this offset. `seq`: only if greater than the last one. `close`: and
        nothing after it. `key`, `headers` and `timestamp` are stored with the message.
        """
        return self.append_many(
            [value],
            keys=None if key is None else [key],
            headers=None if headers is None else [headers],
            timestamps=None if timestamp is None else [timestamp],
            seq=seq,
            if_match=if_match,
            idempotency_key=idempotency_key,
            close=close,
            timeout=timeout,
        )

    def append_many(
        self,
        values: Iterable[Any],
        *,
        keys: Iterable[Key] | None = None,
        headers: Iterable[Headers] | None = None,
        timestamps: Iterable[datetime | None] | None = None,
        seq: str | None = None,
        if_match: str | None = None,
        idempotency_key: str | None = None,
        close: bool = False,
        timeout: float | None = None,
    ) -> Receipt:
        """Append messages, all or none of them; the options are those of `append`.

        `keys`, `headers` and `timestamps` have one element for each value.
        """
        extras = extras_of(keys, headers, timestamps)
        conditions = AppendHeaders(seq, if_match, idempotency_key, close)
        return self._run(self.calls.append(list(values), conditions, extras), timeout)

    def close(self, value: Any = None, *, timeout: float | None = None) -> Receipt:
        """Close the stream for good, after a last message if there is one."""
        if value is not None:
            return self.append(value, close=True, timeout=timeout)
        return self._run(self.calls.close(), timeout)

    # ---- reading ---------------------------------------------------------------------------------

    def read(
        self,
        offset: str = START,
        *,
        limit: int | None = None,
        isolation: str = READ_COMMITTED,
        timeout: float | None = None,
    ) -> Iterator[Message]:
        """Read from an offset to the end as it is now; `timeout` is for each page.

        What is not committed is not read, unless `isolation` is "read_uncommitted".
        """
        reader = PageReader(self.calls, offset, is_live=False, isolation=isolation)
        reader.source = self.client.positions.read_position(self.path, offset)
        while (page := self._run(reader.next_page(), timeout)) is not None:
            if limit is not None:
                page, limit = page[:limit], limit - len(page)
            yield from page
            if limit is not None and limit <= 0:
                return

    def read_bytes(self, offset: str = START, *, timeout: float | None = None) -> bytes:
        """Read a stream of bytes or text to its end, all in one."""
        return join_messages(self.read(offset, timeout=timeout))

    def read_text(self, offset: str = START, *, timeout: float | None = None) -> str:
        """Read a stream of text to its end, all in one."""
        return self.read_bytes(offset, timeout=timeout).decode()

    def tail(
        self,
        offset: str = START,
        *,
        live: str = "auto",
        group: str | None = None,
        producer_id: str | None = None,
        isolation: str = READ_COMMITTED,
        timeout: float | None = None,
    ) -> "Tail":
        """Read from an offset and go on with what comes, until the stream is closed.

        `now` is where the stream ends at this call. The first answer must come within `timeout`;
        after that, a server that is gone is waited for, and nothing is skipped or repeated.
        `live`: `long-poll`, `sse`, or `auto` for the first, which brings each message's offset.

        With a `group` it begins where the group is, or at `offset` if it was never moved, and
        `message.commit()` moves the group after a message; so does the commit of a transaction
        with `txn.commit_message(message)`. Nothing else moves it. If a transaction of another
        worker may still move it, that is waited for, up to 5 seconds and half the `timeout`. A
        worker that gives its transactions a `producer_id` gives it here too: transactions of its
        older instances are aborted first, and need no waiting.
        What is not committed is not read, unless `isolation` is "read_uncommitted".
        """
        within = self.client.timeout if timeout is None else timeout
        if group is None:
            reader = live_reader(self.calls, offset, live, isolation=isolation)
            reader.source = self.client.positions.read_position(self.path, offset)
        else:
            refuse_events(live)
            if producer_id is not None:
                self.client.registered(producer_id)
            reading = self.client.reading(group, within)
            place = GroupCursor(reading, self.path)
            on_commit = MessageCommitter(self.client.run, place)
            reader = GroupReader(self.calls, offset, reading, place, on_commit, isolation=isolation)
        return Tail(self.client.driver, reader, within)

    # ---- producers -------------------------------------------------------------------------------

    def producer(self, id: str | None = None, **options: Unpack[ProducerOptions]) -> Producer:
        """Make a producer that stores every message once and in order, whatever happens.

        `id` names it across restarts; by default `PRODUCER_ID` of the environment, or host and
        process. The options are those of `ProducerOptions`. StreamNotFound if there is no stream.
        """
        client = self.client
        producer = Producer(
            id,
            client.transport,
            self.calls.target,
            options,
            ask=lambda settings: client.run(open_producer(self.calls, settings)),
            answer_timeout=client.timeout,
        )
        return client.keep(producer)

    def producers(
        self, producer_id: str | None = None, *, timeout: float | None = None
    ) -> list[ProducerState]:
        """Ask what the server knows of the stream's producers, or of one."""
        return self._run(server_calls.producers(self.calls, producer_id), timeout)

    def explain(
        self,
        producer_id: str,
        seq: int | str,
        *,
        epoch: int | None = None,
        session: str | None = None,
        mode: str | None = None,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """Ask what would become of an append with this number, and why.

        `seq` of a sparse producer may be a range such as "3-5"; then `mode` is "sparse".
        """
        flow = server_calls.explain_append(
            self.calls, producer_id, seq, epoch=epoch, session=session, mode=mode
        )
        return self._run(flow, timeout)

    def forget_producer(self, producer_id: str, *, timeout: float | None = None) -> None:
        """Let the stream forget a producer: its numbers begin anew."""
        self._run(server_calls.forget_producer(self.calls, producer_id), timeout)

    def _run(self, flow: Flow[T], timeout: float | None) -> T:
        return self.client.run(flow, timeout)


class Tail(Iterator[Message]):
    """The messages of a stream as they come. Ends with the stream, or by `close`."""

    def __init__(self, driver: SyncDriver, reader: PageReader, timeout: float) -> None:
        self._driver = driver
        self._reader = reader
        self._timeout = timeout
        self._stop = Stop()
        self._lock = threading.Lock()  # held while a page is fetched
        self._ready: deque[Message] = deque()
        driver.run(reader.begin(), timeout, self._stop)

    def __iter__(self) -> "Tail":
        return self

    def __next__(self) -> Message:
        while not self._ready:
            if self._stop.is_set:
                raise StopIteration
            with self._lock:
                self._fetch()
        return self._ready.popleft()

    def __enter__(self) -> "Tail":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def offset(self) -> str:
        """Where to go on after what was fetched so far."""
        return self._reader.offset

    def close(self) -> None:
        """End it, from any thread; one that waits for a message gets the end."""
        self._stop.set()
        if self._lock.acquire(blocking=False):
            self._hang_up()
            self._lock.release()

    def _fetch(self) -> None:
        timeout = None if self._reader.has_begun else self._timeout
        try:
            page = self._driver.run(self._reader.next_page(), timeout, self._stop)
        except BaseException:
            self._hang_up()
            if self._stop.is_set:
                return
            raise
        self._ready.extend(page or ())
        if page is None:
            self._stop.set()
        if self._stop.is_set:
            self._hang_up()

    def _hang_up(self) -> None:
        self._driver.run(self._reader.hang_up(), None)
