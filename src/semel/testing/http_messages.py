"""HTTP/1.1 messages as units of bytes: enough of it to know where one ends and the next begins."""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Final

from msgspec import Struct

HEAD_BYTES_MAX: Final = 64 * 1024
MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024
PIECE_BYTES: Final = 64 * 1024
_HEAD_END: Final = b"\r\n\r\n"
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)[ \t]*\r\n", re.IGNORECASE)
_CHUNKED: Final = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked[ \t]*\r\n", re.IGNORECASE)
_EXPECT: Final = re.compile(rb"\r\nexpect:[ \t]*100-continue[ \t]*\r\n", re.IGNORECASE)
_BODILESS: Final = frozenset({204, 304})


class Broken(Exception):
    """The bytes end within a message, or are none."""


class Head(Struct, frozen=True):
    """The first lines of a message, and how its body is delimited.

    `length` is None for a body of chunks, or (`is_chunked` false) for one that ends with the
    connection.
    """

    data: bytes
    is_chunked: bool
    length: int | None

    @property
    def method(self) -> str:
        """The first word of a request."""
        return self.data.partition(b" ")[0].decode("latin-1")

    @property
    def status(self) -> int:
        """The second word of an answer."""
        return int(self.data[9:12])

    @property
    def expects_continue(self) -> bool:
        """Whether the client waits for a word before it sends the body."""
        return _EXPECT.search(self.data) is not None


async def read_request_head(reader: asyncio.StreamReader) -> Head | None:
    """Read the head of a request; None at the end of the connection."""
    data = await _read_head(reader)
    if data is None:
        return None
    is_chunked = _CHUNKED.search(data) is not None
    return Head(data, is_chunked, None if is_chunked else _length(data) or 0)


async def read_answer_head(reader: asyncio.StreamReader, method: str) -> Head | None:
    """Read the head of a final answer to a `method`; None at the end of the connection."""
    while (data := await _read_head(reader)) is not None:
        if not re.match(rb"HTTP/1\.[01] \d\d\d[ \r]", data):
            raise Broken("an answer does not begin as one")
        status = int(data[9:12])
        if status < 200:
            continue  # a client that expects one got it from us
        if method == "HEAD" or status in _BODILESS:
            return Head(data, is_chunked=False, length=0)
        is_chunked = _CHUNKED.search(data) is not None
        return Head(data, is_chunked, None if is_chunked else _length(data))
    return None


async def read_body(reader: asyncio.StreamReader, head: Head) -> AsyncIterator[bytes]:
    """Read the body as it comes; of a body of chunks each piece is one whole chunk."""
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
                raise Broken("the connection ended within a body")
            left -= len(piece)
            yield piece


async def read_whole(reader: asyncio.StreamReader, head: Head) -> bytes:
    """Read the rest of a message, and give it with its head."""
    found = bytearray(head.data)
    async for piece in read_body(reader, head):
        found += piece
        if len(found) > MESSAGE_BYTES_MAX:
            raise Broken(f"a message has more than {MESSAGE_BYTES_MAX} bytes")
    return bytes(found)


async def _read_head(reader: asyncio.StreamReader) -> bytes | None:
    try:
        return await reader.readuntil(_HEAD_END)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise Broken("the connection ended within a head") from error
        return None
    except asyncio.LimitOverrunError as error:
        raise Broken(f"a head has more than {HEAD_BYTES_MAX} bytes") from error


async def _read_chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    size = 1
    while size:
        try:
            line = await reader.readuntil(b"\r\n")
            size = int(line.partition(b";")[0], 16)
            if size > MESSAGE_BYTES_MAX:
                raise Broken(f"a chunk has more than {MESSAGE_BYTES_MAX} bytes")
            chunk = line + (await reader.readexactly(size + 2) if size else b"")
            while not size and not chunk.endswith(b"\r\n\r\n"):
                chunk += await reader.readuntil(b"\r\n")  # trailers, and the empty line
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
            raise Broken("the connection ended within a chunk, or it is none") from error
        yield chunk


def _length(data: bytes) -> int | None:
    found = _LENGTH.search(data)
    return None if found is None else int(found[1])
