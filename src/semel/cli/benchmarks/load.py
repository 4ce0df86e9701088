"""The load: connections that each send their next request when the last one is answered."""

import asyncio
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final, cast

from msgspec import Struct

from semel.cli.benchmarks.figures import percentile
from semel.cli.benchmarks.processes import HOST, Process
from semel.cli.benchmarks.requests import Source, http_answer_bytes

_ANSWER_SECONDS_MAX: Final = 120.0

AnswerBytes = Callable[[bytes], int]


class Round(Struct, frozen=True):
    """What one measured round found. CPU is that of the server's process, and of this one."""

    latencies: list[float]
    wall_s: float
    server_cpu_s: float
    client_cpu_s: float

    @property
    def rate(self) -> float:
        """Answers per second."""
        return len(self.latencies) / self.wall_s

    @property
    def cpu_us(self) -> float:
        """Microseconds of the server's CPU per answer."""
        return self.server_cpu_s / max(1, len(self.latencies)) * 1e6

    @property
    def client_share(self) -> float:
        """How much of one core this process took."""
        return self.client_cpu_s / self.wall_s

    @property
    def server_share(self) -> float:
        """How much of one core the server took."""
        return self.server_cpu_s / self.wall_s

    def ms(self, percent: float) -> float:
        """A percentile of the latency."""
        return percentile(self.latencies, percent) * 1e3


def over(rounds: Sequence[Round], figure: Callable[[Round], float]) -> float:
    """Take the median of a figure over the rounds."""
    return median(map(figure, rounds))


class Tally:
    """What all connections of a round share."""

    __slots__ = ("busy", "is_over", "latencies", "settled")

    def __init__(self, connections: int) -> None:
        self.latencies: list[float] = []
        self.is_over = False
        self.busy = connections
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def leave(self) -> None:
        """One connection will send no more."""
        self.busy -= 1
        if not self.busy and not self.settled.done():
            self.settled.set_result(None)

    def fail(self, error: Exception) -> None:
        """Something other than success: the round is worth nothing."""
        self.is_over = True
        if not self.settled.done():
            self.settled.set_exception(error)


class Caller(asyncio.Protocol):
    """One connection, one request at a time."""

    __slots__ = ("_answer_bytes", "_buffer", "_is_busy", "_sent_at", "_source", "_tally", "_write")

    def __init__(self, source: Source, tally: Tally, answer_bytes: AnswerBytes) -> None:
        self._source = source
        self._tally = tally
        self._answer_bytes = answer_bytes
        self._buffer = b""
        self._sent_at = 0.0
        self._is_busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The server has accepted."""
        self._write = cast("asyncio.Transport", transport).write

    def send(self) -> None:
        """Send the next request, or be done."""
        request = None if self._tally.is_over else self._source()
        self._is_busy = request is not None
        if request is None:
            self._tally.leave()
            return
        self._sent_at = time.perf_counter()
        self._write(request)

    def data_received(self, data: bytes) -> None:
        """An answer, or a piece of one."""
        if self._buffer:
            data = self._buffer + data
        try:
            size = self._answer_bytes(data)
        except Exception as error:  # noqa: BLE001 - the loop would only log it
            self._tally.fail(error)
            return
        if not size:
            self._buffer = data
            return
        self._buffer = data[size:] if size < len(data) else b""
        self._tally.latencies.append(time.perf_counter() - self._sent_at)
        self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end, too early if an answer is due."""
        if self._is_busy:
            self._tally.fail(exc or ConnectionError("the server closed a connection"))


async def drive(
    process: Process,
    sources: Sequence[Source],
    *,
    seconds: float = 0.0,
    warm_seconds: float = 0.0,
    answer_bytes: AnswerBytes = http_answer_bytes,
) -> Round:
    """Run one connection per source for a time, or without one until the sources are empty."""
    tally = Tally(len(sources))
    callers, transports = await _connect(process, sources, tally, answer_bytes)
    try:
        began = _Moment(process)
        for caller in callers:
            caller.send()
        if seconds:
            await _rest(warm_seconds, tally)
            tally.latencies.clear()
            began = _Moment(process)
            await _rest(seconds, tally)
            latencies, now = tally.latencies.copy(), _Moment(process)
            tally.is_over = True
            await asyncio.wait_for(tally.settled, _ANSWER_SECONDS_MAX)
        else:
            await tally.settled
            latencies, now = tally.latencies, _Moment(process)
    finally:
        for transport in transports:
            transport.close()
    return Round(
        latencies, now.wall - began.wall, now.server - began.server, now.client - began.client
    )


async def _connect(
    process: Process, sources: Sequence[Source], tally: Tally, answer_bytes: AnswerBytes
) -> tuple[list[Caller], list[asyncio.Transport]]:
    loop = asyncio.get_running_loop()
    callers, transports = [], []
    for source in sources:
        caller = Caller(source, tally, answer_bytes)
        transport, _ = await loop.create_connection(_giving(caller), HOST, process.port)
        callers.append(caller)
        transports.append(transport)
    return callers, transports


def _giving(caller: Caller) -> Callable[[], Caller]:
    return lambda: caller


async def _rest(seconds: float, tally: Tally) -> None:
    """Let the loop work; come back early only with what went wrong."""
    done, _ = await asyncio.wait([tally.settled], timeout=seconds)
    for future in done:
        future.result()


class _Moment:
    """Clocks, read together."""

    def __init__(self, process: Process) -> None:
        self.wall = time.perf_counter()
        self.server = process.cpu_seconds
        self.client = time.process_time()
