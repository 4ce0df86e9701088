"""The client for asyncio: `AsyncClient`, with the methods of `Client`, awaited."""

import asyncio
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack
from weakref import WeakSet

from semel.client import server_calls
from semel.client.async_driver import AsyncDriver
from semel.client.async_group import AsyncMessageCommitter
from semel.client.async_transacting import AsyncTransacting
from semel.client.client import CONNECT_SECONDS, TIMEOUT_SECONDS
from semel.client.errors import ClientError
from semel.client.flows import Flow
from semel.client.group_calls import GroupCursor, GroupReader, refuse_events
from semel.client.producer.aio import AsyncProducer
from semel.client.producer.opening import ProducerOptions, open_producer
from semel.client.reading import PageReader
from semel.client.requests import AppendHeaders, CreateHeaders
from semel.client.sse import live_reader
from semel.client.stream_calls import ServerConfig, StreamCalls
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


class AsyncClient(AsyncTransacting):
    """A server, for one event loop at a time; connections are kept and reused.

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
        super().__init__(site, AsyncDriver(self.transport), timeout)
        self._producers: WeakSet[AsyncProducer] = WeakSet()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
            return
        with suppress(ClientError):  # what is raised is not masked
            await self.close()

    def __repr__(self) -> str:
        return f"AsyncClient({self.transport.address.url!r})"

    async def close(self, timeout: float | None = None) -> None:
        """Wait until the producers have stored what they took, and close them and the connections.

        All of it ends within `timeout`, or that of the client; what a producer has not stored by
        then is given up, and Indeterminate is raised. Calls after this raise ClientClosed.
        """
        producers, self._producers = list(self._producers), WeakSet()
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.driver.close)
            for producer in producers:
                stack.push_async_callback(producer.close_by, deadline)

    def keep(self, producer: AsyncProducer) -> AsyncProducer:
        """Take note of a producer, to close it with the client."""
        self._producers.add(producer)
        return producer

    def stream(self, path: str) -> "AsyncStream":
        """Name a stream; nothing is sent. ValueError if no stream can have that path."""
        return AsyncStream(self, path)

    async def streams(
        self, prefix: str = "", *, after: str | None = None, timeout: float | None = None
    ) -> AsyncIterator[StreamEntry]:
        """List the streams whose paths begin so, in order of their paths."""
        while True:
            page = await self.run(server_calls.list_streams(self.site, prefix, after), timeout)
            for entry in page.streams:
                yield entry
            if page.next is None:
                return
            after = page.next

    async def health(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Ask how the server is."""
        return await self.run(server_calls.health(self.site), timeout)

    async def register_producer(
        self, id: str | None = None, *, timeout: float | None = None
    ) -> Registration:
        """Get an id of a producer, or the next epoch of one, which fences off the older ones."""
        return await self.run(server_calls.register_producer(self.site, id), timeout)


class AsyncStream:
    """A stream of a server, by its path."""

    def __init__(self, client: AsyncClient, path: str) -> None:
        self.client = client
        self.path = path
        self.calls = StreamCalls(client.site, path)

    def __repr__(self) -> str:
        return f"AsyncStream({self.path!r})"

    # ---- the stream as a whole -------------------------------------------------------------------

    async def create(
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
        await self._run(self.calls.create(configuration, body, exist_ok=exist_ok), timeout)
        return self

    async def fork(
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
    ) -> "AsyncStream":
        """Make a stream that begins as a copy of this one, up to `offset` or all of it."""
        fork = AsyncStream(self.client, path)
        configuration = CreateHeaders(None, ttl, expires_at, closed, self.path, offset, sub_offset)
        await self._run(fork.calls.create(configuration, exist_ok=exist_ok), timeout)
        return fork

    async def head(self, *, timeout: float | None = None) -> StreamInfo:
        """Look at the stream; StreamNotFound if it is not there."""
        return await self._run(self.calls.head(), timeout)

    async def exists(self, *, timeout: float | None = None) -> bool:
        """Tell whether the stream is there."""
        return await self._run(self.calls.exists(), timeout)

    async def delete(self, *, timeout: float | None = None) -> None:
        """Delete the stream; its data stays for its forks."""
        await self._run(self.calls.delete(), timeout)

    async def trim(self, before: str, *, timeout: float | None = None) -> None:
        """Give up the messages before an offset. Only semel can."""
        await self._run(self.calls.trim(before), timeout)

    # ---- writing ---------------------------------------------------------------------------------

    async def append(
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
        return await self.append_many(
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

    async def append_many(
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
        return await self._run(self.calls.append(list(values), conditions, extras), timeout)

    async def close(self, value: Any = None, *, timeout: float | None = None) -> Receipt:
        """Close the stream for good, after a last message if there is one."""
        if value is not None:
            return await self.append(value, close=True, timeout=timeout)
        return await self._run(self.calls.close(), timeout)

    # ---- reading ---------------------------------------------------------------------------------

    def read(
        self,
        offset: str = START,
        *,
        limit: int | None = None,
        isolation: str = READ_COMMITTED,
        timeout: float | None = None,
    ) -> AsyncIterator[Message]:
        """Read from an offset to the end as it is now; `timeout` is for each page.

        What is not committed is not read, unless `isolation` is "read_uncommitted".
        """
        reader = PageReader(self.calls, offset, is_live=False, isolation=isolation)
        reader.source = self.client.positions.read_position(self.path, offset)
        return self._read(reader, limit, timeout)

    async def _read(
        self, reader: PageReader, limit: int | None, timeout: float | None
    ) -> AsyncIterator[Message]:
        while (page := await self._run(reader.next_page(), timeout)) is not None:
            if limit is not None:
                page, limit = page[:limit], limit - len(page)
            for message in page:
                yield message
            if limit is not None and limit <= 0:
                return

    async def read_bytes(self, offset: str = START, *, timeout: float | None = None) -> bytes:
        """Read a stream of bytes or text to its end, all in one."""
        return join_messages([message async for message in self.read(offset, timeout=timeout)])

    async def read_text(self, offset: str = START, *, timeout: float | None = None) -> str:
        """Read a stream of text to its end, all in one."""
        found = await self.read_bytes(offset, timeout=timeout)
        return found.decode()

    def tail(
        self,
        offset: str = START,
        *,
        live: str = "auto",
        group: str | None = None,
        producer_id: str | None = None,
        isolation: str = READ_COMMITTED,
        timeout: float | None = None,
    ) -> "AsyncTail":
        """Read from an offset and go on with what comes, until the stream is closed.

        `now` is where the stream ends when the `async with` is entered, or the first message is
        asked for. The first answer must come within `timeout`;
        after that, a server that is gone is waited for, and nothing is skipped or repeated.
        `live`: `long-poll`, `sse`, or `auto` for the first, which brings each message's offset.

        With a `group` it begins where the group is, or at `offset` if it was never moved, and
        `await message.commit()` moves the group after a message; so does the commit of a
        transaction with `await txn.commit_message(message)`. Nothing else moves it. If a
        transaction of another worker may still move it, that is waited for, up to 5 seconds and
        half the `timeout`. A worker that gives its transactions a `producer_id` gives it here too:
        transactions of its older instances are aborted first, and need no waiting.
        What is not committed is not read, unless `isolation` is "read_uncommitted".
        """
        within = self.client.timeout if timeout is None else timeout
        before: Callable[[], Awaitable[object]] | None = None
        if group is None:
            reader = live_reader(self.calls, offset, live, isolation=isolation)
            reader.source = self.client.positions.read_position(self.path, offset)
        else:
            refuse_events(live)
            if producer_id is not None:
                before = partial(self.client.registered, producer_id)
            reading = self.client.reading(group, within)
            place = GroupCursor(reading, self.path)
            on_commit = AsyncMessageCommitter(self.client.run, place)
            reader = GroupReader(self.calls, offset, reading, place, on_commit, isolation=isolation)
        return AsyncTail(self.client.driver, reader, within, before)

    # ---- producers -------------------------------------------------------------------------------

    def producer(self, id: str | None = None, **options: Unpack[ProducerOptions]) -> AsyncProducer:
        """Make a producer that stores every message once and in order, whatever happens.

        `id` names it across restarts; by default `PRODUCER_ID` of the environment, or host and
        process. The options are those of `ProducerOptions`. Nothing is sent before it is entered,
        opened or given a message.
        """
        client = self.client
        producer = AsyncProducer(
            id,
            client.transport,
            self.calls.target,
            options,
            ask=lambda settings: client.run(open_producer(self.calls, settings)),
            answer_timeout=client.timeout,
        )
        return client.keep(producer)

    async def producers(
        self, producer_id: str | None = None, *, timeout: float | None = None
    ) -> list[ProducerState]:
        """Ask what the server knows of the stream's producers, or of one."""
        return await self._run(server_calls.producers(self.calls, producer_id), timeout)

    async def explain(
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
        return await self._run(flow, timeout)

    async def forget_producer(self, producer_id: str, *, timeout: float | None = None) -> None:
        """Let the stream forget a producer: its numbers begin anew."""
        await self._run(server_calls.forget_producer(self.calls, producer_id), timeout)

    async def _run(self, flow: Flow[T], timeout: float | None) -> T:
        return await self.client.run(flow, timeout)


class AsyncTail(AsyncIterator[Message]):
    """The messages of a stream as they come. Ends with the stream, or by `close`."""

    def __init__(
        self,
        driver: AsyncDriver,
        reader: PageReader,
        timeout: float,
        before: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._driver = driver
        self._reader = reader
        self._timeout = timeout
        self._before = before  # to be awaited once, before anything is asked
        self._lock = asyncio.Lock()  # held while a page is fetched
        self._ready: deque[Message] = deque()
        self._is_over = False

    def __aiter__(self) -> "AsyncTail":
        return self

    async def __anext__(self) -> Message:
        while not self._ready:
            if self._is_over:
                raise StopAsyncIteration
            await self._fetch()
        return self._ready.popleft()

    async def __aenter__(self) -> "AsyncTail":
        await self._prepare()
        await self._driver.run(self._reader.begin(), self._timeout)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def offset(self) -> str:
        """Where to go on after what was fetched so far."""
        return self._reader.offset

    async def close(self) -> None:
        """End it. A task that waits for a message is ended by cancelling it."""
        self._is_over = True
        await self._driver.run(self._reader.hang_up(), None)

    async def _prepare(self) -> None:
        if self._before is not None:
            await self._before()
            self._before = None

    async def _fetch(self) -> None:
        async with self._lock:
            if not self._ready and not self._is_over:
                await self._fetch_page()

    async def _fetch_page(self) -> None:
        await self._prepare()
        timeout = None if self._reader.has_begun else self._timeout
        try:
            page = await self._driver.run(self._reader.next_page(), timeout)
        except BaseException:
            await self._driver.run(self._reader.hang_up(), None)
            raise
        self._ready.extend(page or ())
        self._is_over = page is None
