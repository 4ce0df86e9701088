"""The load that the benchmarks generate: connections that each send one request at a time."""

import asyncio
import re
import resource
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final, cast

from semel_bench.harness import Options, Side, T, percentile
from semel_bench.requests import (
    BYTES,
    SMALL_BODY,
    BadResponse,
    Source,
    bare_request,
    http_head_bytes,
    http_response_bytes,
    limited,
    post,
    put,
    stream_url,
)
from semel_bench.servers import HOST, Process, Stopwatch, Usage

CLOSED: Final = "the server closed a connection"

BACKGROUND: Final = "background"  # the stream that `append_during` appends to; its type is BYTES

ResponseBytes = Callable[[bytes], int]


class Round(Usage, frozen=True):
    """The wall time and CPU time of one round, and the latency of each request in seconds."""

    latencies: list[float]

    @property
    def rate(self) -> float:
        """Responses per second."""
        return len(self.latencies) / self.wall_s

    @property
    def cpu_us(self) -> float:
        """CPU time that the server used per response, in microseconds."""
        return self.server_cpu_s / max(1, len(self.latencies)) * 1e6

    def ms(self, percent: float) -> float:
        """Return a percentile of the latencies, in milliseconds. `percent` is for example 99."""
        return percentile(self.latencies, percent) * 1e3


class _RoundState:
    """The state that all connections of a round share."""

    __slots__ = ("busy", "is_over", "latencies", "settled")

    def __init__(self, connections: int) -> None:
        self.latencies: list[float] = []
        self.is_over = False
        self.busy = connections
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def leave(self) -> None:
        """Record that a connection sends no more requests. The last connection ends the round."""
        self.busy -= 1
        if not self.busy and not self.settled.done():
            self.settled.set_result(None)

    def fail(self, error: Exception) -> None:
        """End the round with an error. A failed request makes the figures of the round invalid."""
        self.is_over = True
        if not self.settled.done():
            self.settled.set_exception(error)


class _Connection(asyncio.Protocol):
    """A connection that sends one request at a time, and waits for each response."""

    __slots__ = (
        "_buffer",
        "_is_busy",
        "_response_bytes",
        "_sent_at",
        "_source",
        "_state",
        "_write",
    )

    def __init__(self, source: Source, state: _RoundState, response_bytes: ResponseBytes) -> None:
        self._source = source
        self._state = state
        self._response_bytes = response_bytes
        self._buffer = b""
        self._sent_at = 0.0
        self._is_busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the write method of the transport."""
        self._write = cast("asyncio.Transport", transport).write

    def send(self) -> None:
        """Send the next request, unless there are no more requests or the round is over."""
        request = None if self._state.is_over else self._source()
        self._is_busy = request is not None
        if request is None:
            self._state.leave()
            return
        self._sent_at = time.perf_counter()
        self._write(request)

    def data_received(self, data: bytes) -> None:
        """Collect the parts of a response. When the response is complete, send the next request."""
        if self._buffer:
            data = self._buffer + data
        try:
            size = self._response_bytes(data)
        except Exception as error:  # noqa: BLE001 - the event loop would only log it
            self._state.fail(error)
            return
        if not size:
            self._buffer = data
            return
        self._buffer = data[size:] if size < len(data) else b""
        self._state.latencies.append(time.perf_counter() - self._sent_at)
        self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the round if the connection was waiting for a response."""
        if self._is_busy:
            self._state.fail(exc or ConnectionError(CLOSED))


async def drive(
    process: Process,
    sources: Sequence[Source],
    *,
    seconds: float | None = None,
    response_bytes: ResponseBytes = http_response_bytes,
) -> Round:
    """Send the requests of each source over its own connection, and return the measurements.

    The load ends when the sources have no more requests, or after `seconds` of measurement. With
    `seconds`, a short warm-up comes first and is not measured.

    `response_bytes` takes the bytes received so far and returns the size of the first response in
    them; 0 if that response is incomplete. `drive` raises the errors of `response_bytes`, and
    ConnectionError if the server closes a connection that is waiting for a response.
    """
    state = _RoundState(len(sources))
    loop = asyncio.get_running_loop()
    connected = [
        await loop.create_connection(
            partial(_Connection, source, state, response_bytes), HOST, process.port
        )
        for source in sources
    ]
    try:
        watch = Stopwatch(process)
        for _, connection in connected:
            connection.send()
        if seconds is not None:
            await _let_run(seconds / 6, state)
            state.latencies.clear()
            watch = Stopwatch(process)
        await _let_run(seconds, state)
        latencies, usage = state.latencies.copy(), watch.stop()
        state.is_over = True
        await asyncio.wait_for(state.settled, 120.0)
    finally:
        for transport, _ in connected:
            transport.close()
    return Round(usage.wall_s, usage.server_cpu_s, usage.client_cpu_s, latencies)


async def _let_run(seconds: float | None, state: _RoundState) -> None:
    """Wait until the sources have no more requests, but at most `seconds`.

    If a connection fails, this function raises the connection's error.
    """
    done, _ = await asyncio.wait([state.settled], timeout=seconds)
    for future in done:
        future.result()


def timed_side(
    options: Options,
    process: Process,
    sources: Sequence[Source],
    response_bytes: ResponseBytes = http_response_bytes,
    *,
    parts: int = 1,
) -> Side[Round]:
    """Return a function that calls `drive` for one round. Pass this function to `interleave`.

    The length of a round is `options.round_seconds`, divided by `parts`. To compare latencies, use
    several `parts`: between short rounds of two programs, the state of the disk changes little.
    """
    seconds = options.round_seconds / parts
    return partial(drive, process, sources, seconds=seconds, response_bytes=response_bytes)


async def send_all(process: Process, *requests: bytes) -> Round:
    """Send requests over one connection, one at a time, and wait for each response."""
    return await drive(process, [limited(iter(requests))])


async def create_streams(
    process: Process, names: Iterable[str], content_type: str, *fields: str, connections: int = 16
) -> Round:
    """Create streams over several connections. Each connection sends one request at a time.

    `fields` are additional header lines.
    """
    create = limited(put(name, content_type, *fields) for name in names)
    return await drive(process, [create] * connections)


async def append_during(process: Process, work: Awaitable[T]) -> tuple[T, list[float]]:
    """Append to the stream BACKGROUND at short intervals until `work` is done.

    Returns the result of `work` and the latencies of the appends. The latencies show how `work`
    affects other clients.
    """
    task = asyncio.ensure_future(work)
    latencies: list[float] = []
    while not task.done() or not latencies:
        latencies += (await send_all(process, post(BACKGROUND, BYTES, SMALL_BODY))).latencies
        await asyncio.sleep(0.002)  # so that these appends are not a load themselves
    return await task, latencies


# ---- over a blocking socket, because this needs the least CPU time in the client -----------------

_BUFFER_BYTES: Final = 1 << 20
_LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length: ([0-9]+)")
_NEXT: Final = re.compile(rb"(?i)\r\nstream-next-offset: ([0-9_]+)")
_UP_TO_DATE: Final = re.compile(rb"(?i)\r\nstream-up-to-date: true")


def exchange(line: socket.socket, request: bytes) -> bytes:
    """Send a request and return the response. Raises BadResponse if the request fails."""
    line.sendall(request)
    return _receive(line, http_response_bytes)


def _receive(line: socket.socket, response_bytes: ResponseBytes) -> bytes:
    data = b""
    while not response_bytes(data):
        piece = line.recv(4096)
        if not piece:
            raise BadResponse(CLOSED)
        data += piece
    return data


def read_all(
    process: Process, name: str, fields: tuple[str, ...] = (), query: str = ""
) -> tuple[int, float]:
    """Read a stream from its head to its tail.

    Returns the number of bytes read and the duration in seconds. `fields` and `query` are added to
    the headers and the query of every request. Raises BadResponse if a read fails.
    """
    offset, total, is_over = "-1", 0, False
    buffer = bytearray(_BUFFER_BYTES)
    with socket.create_connection((HOST, process.port)) as line:
        began = time.perf_counter()
        while not is_over:
            url = f"{stream_url(name)}?offset={offset}{query}"
            line.sendall(bare_request("GET", url, *fields))
            head, body_bytes = _read_response(line, buffer)
            following = _NEXT.search(head)
            if following is None:
                raise BadResponse("no Stream-Next-Offset")
            offset, total = following[1].decode(), total + body_bytes
            is_over = _UP_TO_DATE.search(head) is not None
        return total, time.perf_counter() - began


def _read_response(line: socket.socket, buffer: bytearray) -> tuple[bytes, int]:
    """Read one response and drop its body. Return the response head and the size of the body."""
    data = _receive(line, http_head_bytes)
    end = http_head_bytes(data)
    head = data[:end]
    length = _LENGTH.search(head)
    if not data.startswith(b"HTTP/1.1 200") or length is None:
        raise BadResponse(data[:200].decode("latin-1"))
    size = int(length[1])
    missing = size - (len(data) - end)
    while missing:
        count = line.recv_into(buffer, min(missing, _BUFFER_BYTES))
        if not count:
            raise BadResponse(CLOSED)
        missing -= count
    return head, size


# ---- readers of events ---------------------------------------------------------------------------


class EventReader(asyncio.Protocol):
    """A reader of server-sent events that records the data with the time at which it arrives.

    The data is not parsed while it arrives, because that would disturb the measurement.
    """

    __slots__ = ("_began", "_head", "_request", "arrived", "is_lost", "transport")

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._began: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._head = b""
        self.arrived: list[tuple[float, bytes]] | None = None
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request for the events."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Record the data in `arrived`. While `arrived` is None, only look for the tail."""
        if self.arrived is not None:
            self.arrived.append((time.perf_counter(), data))
        elif not self._began.done():
            self._begin(data)

    def _begin(self, data: bytes) -> None:
        self._head += data
        if not b"HTTP/1.1 200".startswith(self._head[:12]):
            self._began.set_exception(BadResponse(self._head[:200].decode("latin-1")))
        elif b'"upToDate":true' in self._head.replace(b" ", b""):
            self._head = b""
            self._began.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Record that the connection was closed."""
        self.is_lost = True
        if not self._began.done():
            self._began.set_exception(exc or ConnectionError(CLOSED))

    async def began(self) -> None:
        """Wait until the reader is at the tail.

        Raises BadResponse if the server refuses the request, ConnectionError if the server closes
        the connection, and TimeoutError after a minute.
        """
        await asyncio.wait_for(self._began, 60.0)


async def connect_readers(process: Process, name: str, count: int) -> list[EventReader]:
    """Connect and return `count` readers that wait at the tail of a stream."""
    url = f"{stream_url(name)}?offset=now&live=sse"
    request = bare_request("GET", url, "Accept: text/event-stream")
    loop = asyncio.get_running_loop()
    readers: list[EventReader] = []
    while len(readers) < count:
        connecting = (
            loop.create_connection(partial(EventReader, request), HOST, process.port)
            for _ in range(min(100, count - len(readers)))
        )
        connected = [reader for _, reader in await asyncio.gather(*connecting)]
        await asyncio.gather(*(reader.began() for reader in connected))
        readers += connected
    return readers


async def close_readers(readers: Sequence[EventReader]) -> None:
    """Close the connections of the readers."""
    for reader in readers:
        reader.transport.abort()
    await asyncio.sleep(0.1)


def allow_many_files() -> int:
    """Increase the limit on open files as far as possible, and return the new limit.

    The limit applies to this process and to its child processes.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 20
