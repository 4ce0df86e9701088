"""What the tests and the process they torment say to each other: pickles behind a length."""

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
    """What a process is to do: `serve` a directory or `inspect` it."""

    name: str
    path: str
    segment_bytes: int = 64 * 1024
    reserve_bytes: int = 0
    checkpoint_interval_ms: int = 3_600_000
    is_faulty: bool = False

    @property
    def settings(self) -> Settings:
        return Settings(
            segment_bytes=self.segment_bytes,
            reserve_bytes=self.reserve_bytes,
            checkpoint_interval_ms=self.checkpoint_interval_ms,
        )


@dataclass(frozen=True, slots=True)
class Ready:
    """The first thing a server says."""

    replayed_frames: int


@dataclass(frozen=True, slots=True)
class Failure:
    """Something could not be read."""

    reason: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a journal is."""

    end: int
    durable: int
    is_full: bool


@dataclass(frozen=True, slots=True)
class Text:
    """What a read found: the messages from `offset` on."""

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
        """Send a request and answer its number; nobody may be there to take it any more."""
        number = self._next
        self._next += 1
        try:
            self._connection.sendall(pack((number, request)))
        except (BrokenPipeError, ConnectionResetError):
            self.is_open = False
        return number

    def receive(self, seconds: float) -> Iterator[tuple[int, Any]]:
        """Give out the answers that arrive in time, at least those that are here already."""
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
        """Wait for one answer, dropping others."""
        deadline = time.monotonic() + seconds
        while self.is_open and (left := deadline - time.monotonic()) > 0:
            for answered, value in self.receive(left):
                if answered == number:
                    return value
        raise Hangup("no answer: the process is " + ("silent" if self.is_open else "gone"))

    def ask(self, *request: object) -> Any:
        """Send a request and wait for its answer."""
        return self.wait_for(self.send(*request))

    def drain(self) -> Iterator[tuple[int, Any]]:
        """Give out what a dead process had sent."""
        while self.is_open:
            yield from self.receive(5.0)

    def close(self) -> None:
        self._connection.close()


class Hangup(Exception):
    """The process ended, or says nothing, where an answer was due."""
