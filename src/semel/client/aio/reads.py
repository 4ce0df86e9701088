"""The object that `read` returns: an iterator over the messages up to the present tail."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from semel.client.async_driver import AsyncLock
from semel.client.reading import FetchedMessages, PageReader
from semel.client.transport import Timeout
from semel.client.values import Message

if TYPE_CHECKING:
    from semel.client.aio.client import AsyncClient


class AsyncRead(FetchedMessages, AsyncIterator[Message]):
    """An iterator over the messages of a stream, from an offset up to the present tail.

    Its attributes also have a value if there was no message: `next_offset` is where to continue,
    `up_to_date` says that the tail was reached, and `closed` that no more messages will come.
    """

    def __init__(
        self, client: "AsyncClient", reader: PageReader, limit: int | None, timeout: Timeout
    ) -> None:
        super().__init__(reader)
        self._client = client
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
        page = await self._client.run(self._reader.next_page(), self._timeout)
        self._is_over = page is None
        if page is None:
            return
        self._add(page, start, self._limit)
        if self._limit is not None:
            self._limit -= len(page)
            self._is_over = self._limit <= 0
