"""What the demo's two processes say to each other: length-prefixed msgpack over pipes."""

import asyncio
from typing import Final

import msgspec
from msgspec import Struct

_LENGTH_BYTES: Final = 4


class Open(Struct, frozen=True, tag=True):
    """Make sure a stream is there."""

    id: int
    path: str


class Put(Struct, frozen=True, tag=True):
    """Append a batch; without a producer nobody can tell a retry from a new batch."""

    id: int
    path: str
    messages: list[bytes]
    producer: str | None = None
    seq: int = 0


class Get(Struct, frozen=True, tag=True):
    """Read a stream from an offset."""

    id: int
    path: str
    offset: int


class Stop(Struct, frozen=True, tag=True):
    """Close the engine and end."""

    id: int


class Ready(Struct, frozen=True, tag=True):
    """The engine has recovered and serves."""

    replayed_frames: int


class Done(Struct, frozen=True, tag=True):
    """The answer to everything but a read. `checkpoints`: how many this process has made."""

    id: int
    checkpoints: int
    first_offset: int | None = None
    is_duplicate: bool = False


class Found(Struct, frozen=True, tag=True):
    """Messages, and where to read on; `is_end` if there are no more."""

    id: int
    messages: list[bytes]
    next_offset: int
    is_end: bool


class Failed(Struct, frozen=True, tag=True):
    """The engine refused, which the demo does not expect."""

    id: int
    reason: str


Request = Open | Put | Get | Stop
Answer = Done | Found | Failed

_encode: Final = msgspec.msgpack.Encoder().encode
_request: Final = msgspec.msgpack.Decoder(Request)
_answer: Final = msgspec.msgpack.Decoder(Ready | Answer)


def pack(message: Request | Ready | Answer) -> bytes:
    """Make the bytes of a message."""
    body = _encode(message)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


async def _read(reader: asyncio.StreamReader) -> bytes | None:
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """Read the next request; None if the other side is gone."""
    body = await _read(reader)
    return None if body is None else _request.decode(body)


async def read_answer(reader: asyncio.StreamReader) -> Ready | Answer | None:
    """Read the next answer; None if the other side is gone."""
    body = await _read(reader)
    return None if body is None else _answer.decode(body)
