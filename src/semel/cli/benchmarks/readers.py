"""Many connections that read one event stream each."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final, cast

from semel.cli.benchmarks.processes import HOST, Process
from semel.cli.benchmarks.requests import BadAnswer, get, stream_url

_AT_ONCE: Final = 100
_UP_TO_DATE: Final = b'"upToDate":true'
_BEGIN_SECONDS_MAX: Final = 60.0


class EventReader(asyncio.Protocol):
    """Notes when what came; nothing is looked at before the load is over."""

    __slots__ = ("_began", "_head", "_request", "arrived", "is_lost", "transport")

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._began: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._head = b""
        self.arrived: list[tuple[float, bytes]] | None = None
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the events."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Events; or at first the head and the news that there are none yet."""
        if self.arrived is not None:
            self.arrived.append((time.perf_counter(), data))
        elif not self._began.done():
            self._begin(data)

    def _begin(self, data: bytes) -> None:
        self._head += data
        if not b"HTTP/1.1 200".startswith(self._head[:12]):
            self._began.set_exception(BadAnswer(self._head[:200].decode("latin-1")))
        elif _UP_TO_DATE in self._head.replace(b" ", b""):
            self._head = b""
            self._began.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """The server ended it."""
        self.is_lost = True
        if not self._began.done():
            self._began.set_exception(exc or ConnectionError("the server closed a connection"))

    async def began(self) -> None:
        """Wait until the reader stands at the end of the stream."""
        await asyncio.wait_for(self._began, _BEGIN_SECONDS_MAX)


async def connect_readers(process: Process, name: str, count: int) -> list[EventReader]:
    """Let so many readers wait at the end of a stream."""
    request = get(f"{stream_url(name)}?offset=now&live=sse", "Accept: text/event-stream")
    loop = asyncio.get_running_loop()
    readers: list[EventReader] = []
    while len(readers) < count:
        some = [EventReader(request) for _ in range(min(_AT_ONCE, count - len(readers)))]
        connecting = (loop.create_connection(_giving(it), HOST, process.port) for it in some)
        await asyncio.gather(*connecting)
        await asyncio.gather(*(reader.began() for reader in some))
        readers += some
    return readers


def _giving(reader: EventReader) -> Callable[[], EventReader]:
    return lambda: reader


async def close_readers(readers: Sequence[EventReader]) -> None:
    """Let them go."""
    for reader in readers:
        reader.transport.abort()
    await asyncio.sleep(0.1)
