"""Messages between the tests and the process under test: pickles with a length prefix."""

import pickle
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from semel.broker.settings import Settings

LENGTH: Final = struct.Struct("<I")
READY: Final = 0
_CHUNK_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Job:
    """The job of a process: `serve` a directory or `inspect` it.

    The process sets these resource limits first, and then gives up root for the user with this id.
    """

    name: str
    path: str
    segment_bytes: int = 64 * 1024
    reserve_bytes: int = 0
    checkpoint_interval_ms: int = 3_600_000
    is_faulty: bool = False
    resource_limits: tuple[tuple[int, int], ...] = ()
    user_id: int | None = None

    @property
    def settings(self) -> Settings:
        return Settings(
            segment_bytes=self.segment_bytes,
            reserve_bytes=self.reserve_bytes,
            checkpoint_interval_ms=self.checkpoint_interval_ms,
        )


@dataclass(frozen=True, slots=True)
class Ready:
    """The first message of a server."""

    replayed_frames: int


@dataclass(frozen=True, slots=True)
class Failure:
    """`inspect` could not read a stream."""

    reason: str


@dataclass(frozen=True, slots=True)
class JournalPosition:
    """The end of a journal, its durable position, and whether the disk is full."""

    end: int
    durable: int
    is_full: bool


@dataclass(frozen=True, slots=True)
class Text:
    """The result of a read: the messages from `offset` on."""

    head: int
    tail: int
    offset: int
    messages: tuple[bytes, ...]


def pack(value: object) -> bytes:
    body = pickle.dumps(value)
    return LENGTH.pack(len(body)) + body


class Link:
    """The tests' end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = bytearray()
        self._next = READY + 1
        self.is_open = True

    def send(self, *request: object) -> int:
        """Send a request and return its number, even if the process has ended."""
        number = self._next
        self._next += 1
        try:
            self._connection.sendall(pack((number, request)))
        except (BrokenPipeError, ConnectionResetError):
            self.is_open = False
        return number

    def receive(self, seconds: float) -> Iterator[tuple[int, Any]]:
        """Receive once, for at most `seconds`, and yield the responses that are complete."""
        self._connection.settimeout(max(seconds, 0.0001))
        try:
            data = self._connection.recv(_CHUNK_BYTES)
            self.is_open = bool(data)
            self._buffer += data
        except TimeoutError:
            return
        except ConnectionResetError:
            self.is_open = False
        finally:
            self._connection.settimeout(None)
        yield from self._split()

    def _split(self) -> Iterator[tuple[int, Any]]:
        while len(self._buffer) >= LENGTH.size:
            end = LENGTH.size + LENGTH.unpack_from(self._buffer)[0]
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[LENGTH.size : end])
            del self._buffer[:end]
            yield pickle.loads(body)

    def wait_for(self, number: int, seconds: float = 30.0) -> Any:
        """Wait for the response with this number, and drop all others."""
        deadline = time.monotonic() + seconds
        while self.is_open and (left := deadline - time.monotonic()) > 0:
            for answered, value in self.receive(left):
                if answered == number:
                    return value
        raise Hangup("timed out" if self.is_open else "the process closed the connection")

    def ask(self, *request: object) -> Any:
        """Send a request and wait for the response."""
        return self.wait_for(self.send(*request))

    def drain(self) -> Iterator[tuple[int, Any]]:
        """Yield all remaining responses until the process closes the connection."""
        while self.is_open:
            yield from self.receive(5.0)

    def close(self) -> None:
        self._connection.close()


class Hangup(Exception):
    """The process ended, or did not send a response in time."""
