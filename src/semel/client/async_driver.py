"""The flow driver for asyncio. It runs flows (generators of request steps) on the event loop.

`AsyncTail` cannot await in its constructor. It therefore begins to read when it is entered or
iterated. While a task waits for a message, another task can end the wait with `close`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, cast

from msgspec.structs import replace

from semel.client.computed import ComputedFields
from semel.client.flows import Flow, Lost, NotSent, Opened, Pause, Receive, Reply, Send, T
from semel.client.reading import FetchedMessages, MessageReader
from semel.client.requests import render
from semel.client.response_parser import (
    BodyEnd,
    BodyPart,
    ParserEvent,
    Response,
    ResponseCut,
)
from semel.client.transport import (
    FOREVER,
    RECEIVE_BYTES,
    ConnectionPool,
    PooledConnection,
    ProcessOwner,
    Transport,
    connect_error,
    jitter,
    reason_of,
    speaks_tls,
    uses_tls,
)
from semel.client.values import Message


def async_caller() -> object:
    """Return what identifies the running task, as long as it exists."""
    return id(asyncio.current_task())


class AsyncLock:
    """An asyncio.Lock that several event loops can use, one after the other.

    It is needed because a client can be used again after its first event loop has ended.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._lock = loop, asyncio.Lock()
        await self._lock.acquire()

    async def __aexit__(self, *error: object) -> None:
        self._lock.release()


class AsyncStop:
    """A signal that ends a running call. Another task on the same event loop sets the signal."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._connection: AsyncConnection | None = None

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        """End the call. A request without a response counts as lost, and is not sent again."""
        self._event.set()
        self.watch(self._connection)

    def watch(self, connection: "AsyncConnection | None") -> None:
        """Record the connection that the call waits for, so that `set` can close this connection.

        If `set` was called before, close the connection now.
        """
        self._connection = connection
        if connection is not None and self.is_set:
            connection.close()

    async def wait(self, seconds: float) -> None:
        """Wait until `set` is called, but at most `seconds` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()


class AsyncConnection(PooledConnection):
    """A connection that belongs to one event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._owner = ProcessOwner("a connection")
        self._reader = reader
        self._writer = writer

    def is_usable(self) -> bool:
        """Return True if the connection can be used for a request.

        Return False in a forked process, if the running loop is not the loop that opened the
        connection, or if the loop has detected that the connection is closed.
        """
        is_closed = self._reader.at_eof() or self._writer.transport.is_closing()
        is_ours = self._loop is asyncio.get_running_loop() and not self._owner.is_parent
        return is_ours and not is_closed

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def has_unsent(self) -> bool:
        """Return True if a part of the request is still in the loop's write buffer."""
        return self._writer.transport.get_write_buffer_size() > 0

    async def receive(self, deadline: float, silence_seconds: float) -> ParserEvent:
        """Return the parser's next event.

        Raises OSError or ResponseCut if the connection fails, if `deadline` passes, or if no byte
        arrives for `silence_seconds`.
        """
        while not self.events:
            until = min(deadline, time.monotonic() + silence_seconds)
            async with asyncio.timeout(seconds_until(until)):
                data = await self._reader.read(RECEIVE_BYTES)
            self.take(data)
        return self.events.popleft()

    def close(self) -> None:
        if not self._loop.is_closed():
            self._writer.transport.abort()


class AsyncDriver:
    """Runs the client's calls (flows), and keeps connections open for later calls."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        # Until the first response, the server at an http:// address can be one that uses TLS.
        self._may_use_tls = not transport.address.is_tls
        self._pool: ConnectionPool[AsyncConnection] = ConnectionPool()

    async def run(
        self,
        flow: Flow[T],
        timeout: float = FOREVER,
        stop: AsyncStop | None = None,
        *,
        silence_seconds: float = FOREVER,
    ) -> T:
        """Run a flow and return its result. Raises what the flow raises.

        After `timeout` seconds, or once `stop` is set, the flow's requests fail and its pauses end
        immediately. A request also fails if no byte of its response arrives for `silence_seconds`.
        So even a request without a timeout ends if the server's machine fails.
        """
        deadline = time.monotonic() + timeout
        stop = stop or AsyncStop()
        reply: Any = None
        while True:
            try:
                step = flow.send(reply)
            except StopIteration as end:
                return cast("T", end.value)
            if isinstance(step, Send):
                reply = await self._send(step, deadline, stop, silence_seconds)
            elif isinstance(step, Receive):
                reply = await self._receive(step, deadline, stop)
            elif isinstance(step, Pause):
                reply = await self._pause(step, deadline, stop)
            else:
                self._pool.give_back(step.channel, is_whole=True)
                reply = None

    async def close(self) -> None:
        """Close idle connections. Running requests continue. New requests raise ClientClosed."""
        self._pool.close()
        await asyncio.sleep(0)  # the loop closes the connections in its next iteration

    # ---- steps -----------------------------------------------------------------------------------

    async def _send(
        self, step: Send, deadline: float, stop: AsyncStop, silence_seconds: float
    ) -> Reply:
        computed = self._transport.computed
        if computed is None:
            return await self._attempt(step, deadline, stop, silence_seconds)
        first = await _computed(computed, step, deadline)
        if isinstance(first, NotSent):
            return first
        reply = await self._attempt(first, deadline, stop, silence_seconds)
        if computed.is_token_refused(reply):
            again = await _computed(computed, step, deadline)
            if isinstance(again, NotSent):
                return reply
            if again.request.authorization != first.request.authorization:
                reply = await self._attempt(again, deadline, stop, silence_seconds)
        return reply

    async def _attempt(
        self, step: Send, deadline: float, stop: AsyncStop, silence_seconds: float
    ) -> Reply:
        connection = self._pool.take(step.kind)
        if connection is None:
            try:
                connection = await self._connect(deadline)
            except OSError as error:
                return connect_error(self._transport, error)
        stop.watch(connection)
        reply: Reply | None = None
        try:
            reply = await self._exchange(connection, step, deadline, silence_seconds)
            return reply
        finally:
            stop.watch(None)
            if not isinstance(reply, Opened):
                self._pool.give_back(connection, is_whole=isinstance(reply, Response))

    async def _exchange(
        self, connection: AsyncConnection, step: Send, deadline: float, silence_seconds: float
    ) -> Reply:
        request = step.request
        connection.parser.expect(is_head=request.method == "HEAD", is_streamed=request.is_streamed)
        connection.send(render(request, self._transport.fixed))
        try:
            event = await connection.receive(deadline, min(silence_seconds, step.silence_seconds))
        except (OSError, ResponseCut) as error:
            if self._may_use_tls and connection.was_refused(error):
                self._may_use_tls = False
                if await asyncio.to_thread(speaks_tls, self._transport, deadline):
                    return uses_tls(self._transport)
            url = self._transport.address.url
            return connection.failure(error, url, is_sent=not connection.has_unsent())
        assert isinstance(event, Response)
        self._may_use_tls = False
        return Opened(event, connection) if event.is_streamed else event

    async def _receive(
        self, step: Receive, deadline: float, stop: AsyncStop
    ) -> BodyPart | BodyEnd | Lost:
        connection: AsyncConnection = step.channel
        stop.watch(connection)
        try:
            event = await connection.receive(deadline, step.silence_seconds)
        except (OSError, ResponseCut) as error:
            return Lost(f"the connection to the server was lost: {reason_of(error)}")
        finally:
            stop.watch(None)
        assert not isinstance(event, Response)
        return event

    async def _pause(self, step: Pause, deadline: float, stop: AsyncStop) -> bool:
        seconds = max(step.at_least, jitter(step.seconds))
        if stop.is_set or time.monotonic() + seconds >= deadline:
            return False
        await stop.wait(seconds)
        return not stop.is_set

    async def _connect(self, deadline: float) -> AsyncConnection:
        transport, address = self._transport, self._transport.address
        seconds = min(deadline - time.monotonic(), transport.connect_timeout)
        async with asyncio.timeout(max(seconds, 0)):
            reader, writer = await asyncio.open_connection(
                address.host, address.port, ssl=transport.tls, limit=2 * RECEIVE_BYTES
            )
        return AsyncConnection(reader, writer)


async def _computed(computed: ComputedFields, step: Send, deadline: float) -> Send | NotSent:
    """Return the step with its computed headers, or NotSent if the deadline passes before that."""
    try:
        async with asyncio.timeout(seconds_until(deadline)):
            return replace(step, request=await computed.add_to_async(step.request))
    except TimeoutError:
        return NotSent("the request's headers were not computed before the timeout")


def seconds_until(deadline: float) -> float | None:
    """Return the seconds until the deadline as a timeout of asyncio. None means no timeout."""
    return None if deadline == FOREVER else max(deadline - time.monotonic(), 0)


# ---- the iterators that `read` and `tail` return -------------------------------------------------


class AsyncRead(FetchedMessages, AsyncIterator[Message]):
    """The object that `read` returns: an iterator over the messages up to the present tail.

    Its attributes also have a value if there was no message: `next_offset` is where to continue,
    `up_to_date` says that the tail was reached, and `closed` that no more messages will come.
    """

    def __init__(
        self, driver: AsyncDriver, reader: MessageReader, limit: int | None, timeout: float
    ) -> None:
        super().__init__(reader)
        self._driver = driver
        self._limit = limit
        self._timeout = timeout
        self._lock = AsyncLock()  # held while a page is fetched
        self._is_over = limit is not None and limit <= 0

    def __aiter__(self) -> "AsyncRead":
        return self

    async def __anext__(self) -> Message:
        while (message := self._take()) is None:
            if self._is_over:
                raise StopAsyncIteration
            async with self._lock:
                if not self._ready and not self._is_over:
                    await self._fetch()
        return message

    async def _fetch(self) -> None:
        start = self._reader.offset
        page = await self._driver.run(self._reader.next_page(), self._timeout)
        self._is_over = page is None
        if page is None:
            return
        self._add(page, start, self._limit)
        if self._limit is not None:
            self._limit -= len(page)
            self._is_over = self._limit <= 0


class AsyncTail(FetchedMessages, AsyncIterator[Message]):
    """An iterator over the messages of a stream. At the tail, it waits for new messages.

    The iteration ends when the stream is closed or when `close` is called. While a task waits for a
    message, another task can use the attributes `next_offset`, `up_to_date` and `closed`.
    """

    def __init__(
        self,
        driver: AsyncDriver,
        reader: MessageReader,
        timeout: float,
        before: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        super().__init__(reader)
        self._driver = driver
        self._timeout = timeout
        self._before = before  # awaited once, before the first request
        self._lock = asyncio.Lock()  # held while a page is fetched
        self._stop = AsyncStop()

    def __aiter__(self) -> "AsyncTail":
        return self

    async def __anext__(self) -> Message:
        while (message := self._take()) is None:
            if self._stop.is_set:
                raise StopAsyncIteration
            async with self._lock:
                if not self._ready and not self._stop.is_set:
                    await self._fetch()
        return message

    async def __aenter__(self) -> "AsyncTail":
        await self._prepare()
        await self._driver.run(self._reader.begin(), self._timeout, self._stop)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def offset(self) -> str:
        """The offset after the messages that have been fetched so far.

        This offset can be ahead of `next_offset`.
        """
        return self._reader.offset

    async def close(self) -> None:
        """End the iteration, also that of a task that waits for a message.

        Messages that were fetched and not returned are dropped. To read them, begin at
        `next_offset`.
        """
        self._stop.set()
        self._drop()
        await self._driver.run(self._reader.hang_up())

    async def _prepare(self) -> None:
        if self._before is not None:
            await self._before()
            self._before = None

    async def _fetch(self) -> None:
        await self._prepare()
        start = self._reader.offset
        timeout = FOREVER if self._reader.has_begun else self._timeout
        try:
            page = await self._driver.run(self._reader.next_page(), timeout, self._stop)
        except Exception:
            await self._driver.run(self._reader.hang_up())
            if self._stop.is_set:
                return
            raise
        except BaseException:
            await self._driver.run(self._reader.hang_up())
            raise
        self._add(page or [], start)
        if page is None:
            self._stop.set()
        elif self._stop.is_set:  # `close` was called when the page arrived
            self._drop()
            await self._driver.run(self._reader.hang_up())
