# generated from semel/client/aio/reads.py by `make facades`; do not edit
"""The object that `read` returns: an iterator over the messages up to the present tail."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from semel.client.reading import FetchedMessages, PageReader
from semel.client.sync_driver import SyncLock
from semel.client.transport import Timeout
from semel.client.values import Message

if TYPE_CHECKING:
    from semel.client.sync.client import Client


class Read(FetchedMessages, Iterator[Message]):
    """An iterator over the messages of a stream, from an offset up to the present tail.

    Its attributes also have a value if there was no message: `next_offset` is where to continue,
    `up_to_date` says that the tail was reached, and `closed` that no more messages will come.
    """

    def __init__(
        self, client: "Client", reader: PageReader, limit: int | None, timeout: Timeout
    ) -> None:
        super().__init__(reader)
        self._client = client
        self._limit = limit
        self._timeout = timeout
        self._lock = SyncLock()  # held while a page is fetched
        self._is_over = limit is not None and limit <= 0

    def __iter__(self) -> "Read":
        return self

    def __next__(self) -> Message:
        while (message := self._take()) is None:
            if self._is_over:
                raise StopIteration
            with self._lock:
                if not self._ready and not self._is_over:
                    self._fetch()
        return message

    def _fetch(self) -> None:
        start = self._reader.offset
        page = self._client.run(self._reader.next_page(), self._timeout)
        self._is_over = page is None
        if page is None:
            return
        self._add(page, start, self._limit)
        if self._limit is not None:
            self._limit -= len(page)
            self._is_over = self._limit <= 0
