"""The load: connections that each send their next request when the last one is answered."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from statistics import median
from typing import Final, cast

from semel_bench.figures import percentile
from semel_bench.harness import Options, Side
from semel_bench.requests import (
    BYTES,
    SMALL_BODY,
    BadAnswer,
    Source,
    http_answer_bytes,
    limited,
    post,
    put,
)
from semel_bench.servers import HOST, Process, Stopwatch, Usage

_ANSWER_SECONDS_MAX: Final = 120.0
_CREATING: Final = 16
_RECEIVED_BYTES: Final = 4096
_CLOSED: Final = "the server closed a connection"

BACKGROUND: Final = "background"  # the stream of the background load, of bytes
_PAUSE_SECONDS: Final = 0.002  # between its appends, so that it is no load of its own

AnswerBytes = Callable[[bytes], int]


class Round(Usage, frozen=True):
    """What one round took, and how long each of its requests took."""

    latencies: list[float]

    @property
    def rate(self) -> float:
        """Responses per second."""
        return len(self.latencies) / self.wall_s

    @property
    def cpu_us(self) -> float:
        """Microseconds of the server's CPU per response."""
        return self.server_cpu_s / max(1, len(self.latencies)) * 1e6

    def ms(self, percent: float) -> float:
        """Return a percentile of the latency."""
        return percentile(self.latencies, percent) * 1e3


def over(rounds: Sequence[Round], figure: Callable[[Round], float]) -> float:
    """Return the median of a figure over the rounds."""
    return median(map(figure, rounds))


class _RoundState:
    """What all connections of a round share."""

    __slots__ = ("busy", "is_over", "latencies", "settled")

    def __init__(self, connections: int) -> None:
        self.latencies: list[float] = []
        self.is_over = False
        self.busy = connections
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def leave(self) -> None:
        """Count one connection that will send no more."""
        self.busy -= 1
        if not self.busy and not self.settled.done():
            self.settled.set_result(None)

    def fail(self, error: Exception) -> None:
        """End the round: a request failed, so its figures are worth nothing."""
        self.is_over = True
        if not self.settled.done():
            self.settled.set_exception(error)


class _Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    __slots__ = ("_answer_bytes", "_buffer", "_is_busy", "_sent_at", "_source", "_state", "_write")

    def __init__(self, source: Source, state: _RoundState, answer_bytes: AnswerBytes) -> None:
        self._source = source
        self._state = state
        self._answer_bytes = answer_bytes
        self._buffer = b""
        self._sent_at = 0.0
        self._is_busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep how to write."""
        self._write = cast("asyncio.Transport", transport).write

    def send(self) -> None:
        """Send the next request, if there is one."""
        request = None if self._state.is_over else self._source()
        self._is_busy = request is not None
        if request is None:
            self._state.leave()
            return
        self._sent_at = time.perf_counter()
        self._write(request)

    def data_received(self, data: bytes) -> None:
        """Read a response, or a part of one; once it is complete, send the next request."""
        if self._buffer:
            data = self._buffer + data
        try:
            size = self._answer_bytes(data)
        except Exception as error:  # noqa: BLE001 - the loop would only log it
            self._state.fail(error)
            return
        if not size:
            self._buffer = data
            return
        self._buffer = data[size:] if size < len(data) else b""
        self._state.latencies.append(time.perf_counter() - self._sent_at)
        self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the round if a response was due."""
        if self._is_busy:
            self._state.fail(exc or ConnectionError(_CLOSED))


async def drive(
    process: Process,
    sources: Sequence[Source],
    *,
    seconds: float = 0.0,
    warm_seconds: float = 0.0,
    answer_bytes: AnswerBytes = http_answer_bytes,
) -> Round:
    """Run one connection per source for a time, or without one until the sources are empty.

    Raises what `answer_bytes` raises for a response, and ConnectionError if the server hangs up.
    """
    state = _RoundState(len(sources))
    loop = asyncio.get_running_loop()
    connected = [
        await loop.create_connection(
            partial(_Connection, source, state, answer_bytes), HOST, process.port
        )
        for source in sources
    ]
    try:
        watch = Stopwatch(process)
        for _, connection in connected:
            connection.send()
        if seconds:
            await _let_run(warm_seconds, state)
            state.latencies.clear()
            watch = Stopwatch(process)
            await _let_run(seconds, state)
            latencies, usage = state.latencies.copy(), watch.stop()
            state.is_over = True
            await asyncio.wait_for(state.settled, _ANSWER_SECONDS_MAX)
        else:
            await state.settled
            latencies, usage = state.latencies, watch.stop()
    finally:
        for transport, _ in connected:
            transport.close()
    return Round(usage.wall_s, usage.server_cpu_s, usage.client_cpu_s, latencies)


async def _let_run(seconds: float, state: _RoundState) -> None:
    """Wait; raise at once if a connection fails."""
    done, _ = await asyncio.wait([state.settled], timeout=seconds)
    for future in done:
        future.result()


def timed_side(
    options: Options,
    process: Process,
    sources: Sequence[Source],
    answer_bytes: AnswerBytes = http_answer_bytes,
) -> Side[Round]:
    """Return a side to interleave: it drives the sources for the time of a round."""
    times = {"seconds": options.round_seconds, "warm_seconds": options.warm_seconds}
    return partial(drive, process, sources, answer_bytes=answer_bytes, **times)


async def send_all(process: Process, *requests: bytes) -> Round:
    """Send requests over one connection, each when the last one is answered."""
    return await drive(process, [limited(iter(requests))])


async def create_streams(process: Process, names: Sequence[str], content_type: str) -> None:
    """Create streams over a few connections."""
    shares = (names[first::_CREATING] for first in range(min(_CREATING, len(names))))
    requests = [[put(name, content_type) for name in share] for share in shares]
    await drive(process, [limited(iter(each)) for each in requests])


async def append_during(process: Process, work: Awaitable[object]) -> list[float]:
    """Append to the stream BACKGROUND now and then until `work` is done.

    Returns how long each append took: what another client notices of the work.
    """
    task = asyncio.ensure_future(work)
    request, latencies = post(BACKGROUND, BYTES, SMALL_BODY), list[float]()
    while not task.done() or not latencies:
        latencies += (await send_all(process, request)).latencies
        await asyncio.sleep(_PAUSE_SECONDS)
    await task
    return latencies


def exchange(line: socket.socket, request: bytes) -> bytes:
    """Send a request over a blocking socket and return the response; BadAnswer if it failed."""
    line.sendall(request)
    data = line.recv(_RECEIVED_BYTES)
    while not http_answer_bytes(data):
        piece = line.recv(_RECEIVED_BYTES)
        if not piece:
            raise BadAnswer(_CLOSED)
        data += piece
    return data
