"""The connections of a `FaultProxy`, their shared state, and a parser of HTTP messages."""

import asyncio
import re
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from itertools import count
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from semel.testing.fault_plan import FaultPlan

_CONNECT_SECONDS: Final = 10.0
_SIDE_SECONDS: Final = 10.0
_WRITE_SECONDS: Final = 60.0
_CLOSE_SECONDS: Final = 1.0
_PIECES_MAX: Final = 256
_LINGER_ZERO: Final = struct.pack("ii", 1, 0)


class WatchedReader(asyncio.StreamReader):
    """A reader that calls `on_end` when the other side has finished sending.

    `on_end` is called even if nobody is reading at that moment.
    """

    on_end: Callable[[], None] | None = None

    def feed_eof(self) -> None:
        """Record the end of the input, and call `on_end`."""
        super().feed_eof()
        if self.on_end is not None:
            self.on_end()


class Outlet:
    """Writes pieces of data in order, with a delay.

    Each piece is sent `seconds` after it was passed to `write`. The delays of several pieces
    overlap, so the delay does not limit the throughput.
    """

    def __init__(self, writer: asyncio.StreamWriter, seconds: float) -> None:
        self._writer = writer
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_PIECES_MAX)
        self._is_broken = False
        self._task = asyncio.create_task(self._run()) if seconds else None

    async def write(self, data: bytes) -> None:
        """Send `data` immediately, or queue it if there is a delay.

        Raises ConnectionError if the connection is closed.
        """
        if self._is_broken or self._writer.is_closing():
            raise ConnectionResetError("the other side has closed the connection")
        for start in range(0, len(data), PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES]
            if self._task is None:
                await self._send(piece)
            else:
                await self._line.put((self._loop.time() + self._seconds, piece))

    async def close(self, *, is_reset: bool = False) -> None:
        """Send the queued data, then close the connection. If `is_reset`, close it with RST."""
        await self._line.join()
        # A connection that is already closing sometimes has no socket any more.
        if is_reset and not self._writer.is_closing():
            self._writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO
            )
            self._writer.transport.abort()
        await close(self._writer)

    async def end(self) -> None:
        """Send the queued data, then tell the other side that no more data follows.

        The connection stays open for the other direction.
        """
        await self._line.join()
        if self._writer.can_write_eof() and not self._writer.is_closing():
            self._writer.write_eof()

    def abort(self) -> None:
        """Close the connection immediately. Queued data is lost."""
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
                self._is_broken = True  # the next write raises
            self._line.task_done()

    async def _send(self, piece: bytes) -> None:
        self._writer.write(piece)
        async with asyncio.timeout(_WRITE_SECONDS):  # TimeoutError is an OSError
            await self._writer.drain()


class ConnectionRegistry:
    """The state that all client connections of a fault proxy share.

    It contains the address of the server, the fault plan, the counters, and the held requests. A
    held request waits until a later request overtakes it.
    """

    def __init__(self, target: str, plan: FaultPlan, round_trip_seconds: float) -> None:
        self.target = target
        self.plan = plan
        self.one_way_seconds: Final = round_trip_seconds / 2
        self.counts: Final[Counter[str]] = Counter()
        self.numbers: Final = count(1)  # numbers for requests, in order of arrival
        self._held: dict[int, asyncio.Future[None]] = {}

    def hold(self, number: int) -> asyncio.Future[None]:
        """Hold request `number`. Return a future that is done when a later request is answered."""
        future = self._held[number] = asyncio.get_running_loop().create_future()
        return future

    def release(self, number: int) -> None:
        """Stop holding a request: cancel and drop the future that `hold` returned."""
        self._held.pop(number).cancel()

    def responded(self, number: int) -> None:
        """Record that request `number` got its response.

        This completes the futures of all held requests with a lower number, because request
        `number` has overtaken them.
        """
        for held, future in self._held.items():
            if held < number and not future.done():
                future.set_result(None)

    async def connect(self) -> tuple[WatchedReader, asyncio.StreamWriter]:
        """Connect to the current address of the server. Raises OSError on failure."""
        loop = asyncio.get_running_loop()
        reader = WatchedReader(limit=HEAD_BYTES_MAX, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        host, port = address_of(self.target)
        async with asyncio.timeout(_CONNECT_SECONDS):
            transport, _ = await loop.create_connection(lambda: protocol, host, port)
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def send_aside(self, request: bytes, method: str) -> bytes | None:
        """Send a request on a separate connection. Return the response, or None on failure."""
        try:
            reader, writer = await self.connect()
        except OSError:
            return None
        try:
            async with asyncio.timeout(_SIDE_SECONDS):
                writer.write(request)
                await writer.drain()
                head = await read_response_head(reader, method)
                return None if head is None else await read_whole(reader, head)
        except (OSError, Broken):
            return None
        finally:
            await close(writer)


async def close(writer: asyncio.StreamWriter) -> None:
    """Close a connection, and wait until it is closed.

    If the other side does not read the remaining data in time, the data is dropped.
    """
    writer.close()
    with suppress(OSError):
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await writer.wait_closed()
        except TimeoutError:
            writer.transport.abort()


def address_of(target: str) -> tuple[str, int]:
    """Return the host and the port of the server address `target`.

    Raises ValueError if `target` is not of the form `http://HOST:PORT`.
    """
    parts = urlsplit(target)
    if parts.scheme != "http" or not parts.hostname or not parts.port:
        raise ValueError(f"{target!r} is not the address of a server; expected http://HOST:PORT")
    return parts.hostname, parts.port


# ---- HTTP messages -------------------------------------------------------------------------------
# These functions parse an HTTP/1.1 message only as far as needed to find its end.


HEAD_BYTES_MAX: Final = 64 * 1024
MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024
PIECE_BYTES: Final = 64 * 1024
_HEAD_END: Final = b"\r\n\r\n"
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)[ \t]*\r\n", re.IGNORECASE)
_CHUNKED: Final = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked[ \t]*\r\n", re.IGNORECASE)
_EXPECT: Final = re.compile(rb"\r\nexpect:[ \t]*100-continue[ \t]*\r\n", re.IGNORECASE)
_BODILESS: Final = frozenset({204, 304})


class Broken(Exception):
    """Raised if the connection ends within an HTTP message, or if the message is not valid."""


class MessageHead(Struct, frozen=True):
    """The head of an HTTP message, and the length of its body.

    `length` is None if the body is chunked, or if the body ends when the connection ends.
    """

    data: bytes
    is_chunked: bool
    length: int | None

    @property
    def method(self) -> str:
        """The method. Use this only on a request head."""
        return self.data.partition(b" ")[0].decode("latin-1")

    @property
    def status(self) -> int:
        """The status. Use this only on a response head."""
        return int(self.data[9:12])

    @property
    def expects_continue(self) -> bool:
        """True if the client waits for 100 Continue before it sends the body."""
        return _EXPECT.search(self.data) is not None


async def read_request_head(reader: asyncio.StreamReader) -> MessageHead | None:
    """Read a request head. Return None if the connection has ended.

    Raises Broken if the connection ends within the head, or if the head is too long.
    """
    data = await _read_head(reader)
    return None if data is None else _head(data, length=0)


async def read_response_head(reader: asyncio.StreamReader, method: str) -> MessageHead | None:
    """Read the head of the final response to a request. Return None if the connection has ended.

    `method` is the method of the request. It is needed because a response to HEAD has no body.
    Raises Broken if the head is incomplete or not valid.
    """
    while (data := await _read_head(reader)) is not None:
        if not re.match(rb"HTTP/1\.[01] \d\d\d[ \r]", data):
            raise Broken("a response does not begin with a status line")
        status = int(data[9:12])
        if status < 200:
            continue  # skip 1xx responses; the proxy itself sends 100 Continue to the client
        if method == "HEAD" or status in _BODILESS:
            return MessageHead(data, is_chunked=False, length=0)
        return _head(data, length=None)
    return None


def _head(data: bytes, length: int | None) -> MessageHead:
    """Parse a message head. If it is not chunked and has no Content-Length, use `length`."""
    if _CHUNKED.search(data):
        return MessageHead(data, is_chunked=True, length=None)
    match = _LENGTH.search(data)
    return MessageHead(data, is_chunked=False, length=int(match[1]) if match else length)


async def read_body(reader: asyncio.StreamReader, head: MessageHead) -> AsyncIterator[bytes]:
    """Yield the body of a message in pieces, as they arrive.

    For a chunked body, each piece is one encoded body chunk. Raises Broken if the connection ends
    within the body, or if a body chunk is not valid.
    """
    if head.is_chunked:
        async for chunk in _read_chunks(reader):
            yield chunk
    elif head.length is None:
        while piece := await reader.read(PIECE_BYTES):
            yield piece
    else:
        left = head.length
        while left:
            piece = await reader.read(min(left, PIECE_BYTES))
            if not piece:
                raise Broken("the connection ended within the body of an HTTP message")
            left -= len(piece)
            yield piece


async def read_whole(reader: asyncio.StreamReader, head: MessageHead) -> bytes:
    """Read the body of a message, and return the whole message including its head.

    Raises Broken if the connection ends within the body, or if the message is not valid or too
    large.
    """
    message = bytearray(head.data)
    async for piece in read_body(reader, head):
        message += piece
        if len(message) > MESSAGE_BYTES_MAX:
            raise Broken(f"an HTTP message has more than {MESSAGE_BYTES_MAX} bytes")
    return bytes(message)


async def _read_head(reader: asyncio.StreamReader) -> bytes | None:
    try:
        return await reader.readuntil(_HEAD_END)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise Broken("the connection ended within the head of an HTTP message") from error
        return None
    except asyncio.LimitOverrunError as error:
        raise Broken(f"the head of an HTTP message has more than {HEAD_BYTES_MAX} bytes") from error


async def _read_chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    size = 1
    while size:
        try:
            line = await reader.readuntil(b"\r\n")
            size = int(line.partition(b";")[0], 16)
            if size > MESSAGE_BYTES_MAX:
                raise Broken(f"a body chunk has more than {MESSAGE_BYTES_MAX} bytes")
            chunk = line + (await reader.readexactly(size + 2) if size else b"")
            while not size and not chunk.endswith(b"\r\n\r\n"):
                chunk += await reader.readuntil(b"\r\n")  # the trailers and the final empty line
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
            raise Broken(
                "the connection ended within a body chunk, or the chunk is not valid"
            ) from error
        yield chunk
