"""Reading a stream and then waiting for new messages: the iterators that `tail` returns.

Written twice by hand, because the two begin and end differently. A `Tail` begins in its
constructor, and `close` from another thread ends a wait. An `AsyncTail` cannot await in its
constructor, so it begins when it is entered or iterated; a wait is ended by cancelling its task.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

from semel.client.async_driver import AsyncDriver
from semel.client.reading import PageReader
from semel.client.sync_driver import Stop, SyncDriver
from semel.client.transport import FOREVER
from semel.client.values import Message


class Tail(Iterator[Message]):
    """The messages of a stream as they come. Ends when the stream is closed, or by `close`."""

    def __init__(
        self,
        driver: SyncDriver,
        reader: PageReader,
        timeout: float,
        before: Callable[[], object] | None = None,
    ) -> None:
        self._driver = driver
        self._reader = reader
        self._timeout = timeout
        self._stop = Stop()
        self._lock = threading.Lock()  # held while a page is fetched
        self._ready: deque[Message] = deque()
        if before is not None:
            before()
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
        """The next offset after the messages that were fetched so far."""
        return self._reader.offset

    def close(self) -> None:
        """End the iteration, from any thread; a thread that waits for a message gets the end."""
        self._stop.set()
        if self._lock.acquire(blocking=False):
            self._hang_up()
            self._lock.release()

    def _fetch(self) -> None:
        timeout = FOREVER if self._reader.has_begun else self._timeout
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
        self._driver.run(self._reader.hang_up())


class AsyncTail(AsyncIterator[Message]):
    """The messages of a stream as they come. Ends when the stream is closed, or by `close`."""

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
        self._before = before  # awaited once, before the first request
        self._lock = asyncio.Lock()  # held while a page is fetched
        self._ready: deque[Message] = deque()
        self._is_over = False

    def __aiter__(self) -> "AsyncTail":
        return self

    async def __anext__(self) -> Message:
        while not self._ready:
            if self._is_over:
                raise StopAsyncIteration
            async with self._lock:
                if not self._ready and not self._is_over:
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
        """The next offset after the messages that were fetched so far."""
        return self._reader.offset

    async def close(self) -> None:
        """End the iteration. To end a wait for a message, cancel the task that waits."""
        self._is_over = True
        await self._driver.run(self._reader.hang_up())

    async def _prepare(self) -> None:
        if self._before is not None:
            await self._before()
            self._before = None

    async def _fetch(self) -> None:
        await self._prepare()
        timeout = FOREVER if self._reader.has_begun else self._timeout
        try:
            page = await self._driver.run(self._reader.next_page(), timeout)
        except BaseException:
            await self._driver.run(self._reader.hang_up())
            raise
        self._ready.extend(page or ())
        self._is_over = page is None
