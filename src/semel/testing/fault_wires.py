"""The connections of a `FaultProxy`, and what its sessions share."""

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from semel.testing.fault_plan import FaultPlan
from semel.testing.http_messages import (
    HEAD_BYTES_MAX,
    PIECE_BYTES,
    Broken,
    read_answer_head,
    read_whole,
)

_CONNECT_SECONDS: Final = 10.0
_SIDE_SECONDS: Final = 10.0
_WRITE_SECONDS: Final = 60.0
_CLOSE_SECONDS: Final = 1.0
_PIECES_MAX: Final = 256
_LINGER_ZERO: Final = struct.pack("ii", 1, 0)


class WatchedReader(asyncio.StreamReader):
    """A reader that tells when the other side has ended, also while nobody reads."""

    on_end: Callable[[], None] | None = None

    def feed_eof(self) -> None:
        """Note the end."""
        super().feed_eof()
        if self.on_end is not None:
            self.on_end()


class Outlet:
    """Writes pieces in order, each `seconds` after it came. Later ones do not wait for earlier."""

    def __init__(self, writer: asyncio.StreamWriter, seconds: float) -> None:
        self._writer = writer
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_PIECES_MAX)
        self._is_broken = False
        self._task = asyncio.create_task(self._run()) if seconds else None

    async def write(self, data: bytes) -> None:
        """Send, or put in line; raises ConnectionError if nobody is there any more."""
        if self._is_broken or self._writer.is_closing():
            raise ConnectionResetError("the other side is gone")
        for start in range(0, len(data), PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES]
            if self._task is None:
                await self._send(piece)
            else:
                await self._line.put((self._loop.time() + self._seconds, piece))

    async def close(self, *, is_reset: bool = False) -> None:
        """Send what is in line, then close; or reset (RST)."""
        if self._task is not None:
            await self._line.join()
        if is_reset and not self._writer.is_closing():  # else there may be no socket any more
            self._writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO
            )
            self._writer.transport.abort()
        await close(self._writer)

    async def end(self) -> None:
        """Say that nothing more will come."""
        if self._task is not None:
            await self._line.join()
        if self._writer.can_write_eof() and not self._writer.is_closing():
            self._writer.write_eof()

    def abort(self) -> None:
        """Let go at once of whatever is still held."""
        if self._task is not None:
            self._task.cancel()
        self._writer.transport.abort()

    async def _run(self) -> None:
        while True:
            due, piece = await self._line.get()
            await asyncio.sleep(due - self._loop.time())
            try:
                if not self._is_broken:
                    await self._send(piece)
            except OSError:
                self._is_broken = True  # the next write tells it
            self._line.task_done()

    async def _send(self, piece: bytes) -> None:
        self._writer.write(piece)
        async with asyncio.timeout(_WRITE_SECONDS):  # TimeoutError is an OSError
            await self._writer.drain()


class Wires:
    """What all sessions of a proxy share: where the server is, the plan, and the counts."""

    def __init__(self, target: str, plan: FaultPlan, round_trip_seconds: float) -> None:
        self.target = target
        self.plan = plan
        self.one_way_seconds: Final = round_trip_seconds / 2
        self.counts: Final[Counter[str]] = Counter()
        self._number = 0
        self._held: dict[int, asyncio.Future[None]] = {}

    def next_number(self) -> int:
        """Number the requests as they come."""
        self._number += 1
        return self._number

    def hold(self, number: int) -> asyncio.Future[None]:
        """Get a future that is done when a later request of any session has been answered."""
        future = self._held[number] = asyncio.get_running_loop().create_future()
        return future

    def release(self, number: int) -> None:
        """Stop waiting for somebody to overtake."""
        self._held.pop(number).cancel()

    def answered(self, number: int) -> None:
        """Tell those that wait to be overtaken."""
        for held, future in self._held.items():
            if held < number and not future.done():
                future.set_result(None)

    async def connect(self) -> tuple[WatchedReader, asyncio.StreamWriter]:
        """Connect to where the server is now."""
        loop = asyncio.get_running_loop()
        reader = WatchedReader(limit=HEAD_BYTES_MAX, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        host, port = address_of(self.target)
        async with asyncio.timeout(_CONNECT_SECONDS):
            transport, _ = await loop.create_connection(lambda: protocol, host, port)
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def ask_aside(self, request: bytes, method: str) -> bytes | None:
        """Send a request on a connection of its own; its answer, or None if there is none."""
        try:
            reader, writer = await self.connect()
        except OSError:
            return None
        try:
            async with asyncio.timeout(_SIDE_SECONDS):
                writer.write(request)
                await writer.drain()
                head = await read_answer_head(reader, method)
                return None if head is None else await read_whole(reader, head)
        except (OSError, Broken):
            return None
        finally:
            await close(writer)


async def close(writer: asyncio.StreamWriter) -> None:
    """Close, and wait until it is done; what nobody takes is thrown away."""
    writer.close()
    with suppress(OSError):
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await writer.wait_closed()
        except TimeoutError:
            writer.transport.abort()


def address_of(target: str) -> tuple[str, int]:
    """Read where a server is."""
    place = urlsplit(target)
    if place.scheme != "http" or not place.hostname or not place.port:
        raise ValueError(f"{target!r} is no address of a server; wanted is http://HOST:PORT")
    return place.hostname, place.port
