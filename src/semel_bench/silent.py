"""What other clients notice of silent readers: clients that request a long response and never read.

Each silent reader sends one GET whose response is 4 MiB, and reads nothing. When the server closes
its connection, it connects again. Meanwhile another client sends small reads and appends at a fixed
rate, and receives events. The same requests are measured before, without silent readers.
"""

import asyncio
import select
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, cast

from msgspec import Struct, field

from semel.model.limits import MIB
from semel_bench.harness import Figure, Harness, at_most, percentile, ratio
from semel_bench.load import (
    CLOSED,
    EventReader,
    allow_many_files,
    close_readers,
    connect_readers,
    create_streams,
    send_all,
)
from semel_bench.requests import BYTES, JSON, bare_request, http_response_bytes, post, stream_url
from semel_bench.servers import HOST, Process, memory_of, semel_server

_COUNTS: Final = (300, 1_000, 3_000)
_LONG: Final = "long"
_SMALL: Final = "small"
_EVENTS: Final = "events"
_LONG_BODY: Final = bytes(4 * MIB)
_EVENT_BODY: Final = b'{"n":1}'
_READ: Final = bare_request("GET", f"{stream_url(_SMALL)}?offset=-1")
_APPEND: Final = post(_EVENTS, JSON, _EVENT_BODY)
_READS_PER_SECOND: Final = 50
_APPENDS_PER_SECOND: Final = 10
_WAIT_SECONDS: Final = 180.0
_CONNECT_TOGETHER: Final = 50
_GONE: Final = select.POLLRDHUP | select.POLLHUP | select.POLLERR


class Latencies(Struct):
    """The latencies of another client's requests in one phase, in seconds."""

    reads: list[float] = field(default_factory=list)
    appends: list[float] = field(default_factory=list)
    events: list[float] = field(default_factory=list)


async def measure_silent(harness: Harness) -> list[Figure]:
    """Measure another client's requests without silent readers, and with three numbers of them."""
    allow_many_files()
    figures: list[Figure] = []
    for count in map(harness.options.scaled, _COUNTS):
        with harness.scratch() as folder, semel_server(folder) as semel:
            figures += await _compare(semel, count, harness.options.round_seconds)
    return figures


async def _compare(process: Process, count: int, seconds: float) -> list[Figure]:
    await create_streams(process, [_LONG, _SMALL], BYTES, connections=1)
    await create_streams(process, [_EVENTS], JSON, connections=1)
    await send_all(process, post(_LONG, BYTES, _LONG_BODY), post(_SMALL, BYTES, b"small"))
    idle = await _probe(process, seconds)
    silent = SilentReaders(process, count)
    holding = asyncio.create_task(silent.hold())
    try:
        busy = await _probe(process, 4 * seconds)
    finally:
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
        silent.close()
    return [
        *_figures(f"small read, {count:,} silent readers", idle.reads, busy.reads, is_judged=True),
        *_figures(f"append, {count:,} silent readers", idle.appends, busy.appends),
        *_figures(f"event, {count:,} silent readers", idle.events, busy.events),
        Figure(f"connections replaced, {count:,} silent readers", silent.replaced, ""),
        Figure(
            f"peak memory, {count:,} silent readers", memory_of(process.pid).peak_kib / 1024, "MiB"
        ),
    ]


def _figures(
    name: str, idle: Sequence[float], busy: Sequence[float], *, is_judged: bool = False
) -> list[Figure]:
    figures = [
        Figure(
            f"{name}, {label}",
            at_of(busy) * 1e3,
            "ms",
            ratio=ratio(at_of(busy), at_of(idle)),
            beside="idle",
        )
        for label, at_of in (
            ("p50", partial(percentile, percent=50)),
            ("p99", partial(percentile, percent=99)),
            ("max", partial(percentile, percent=100)),
        )
    ]
    beyond_ms = (percentile(busy, 99) - percentile(idle, 99)) * 1e3
    target = at_most(100) if is_judged else None
    return [*figures, Figure(f"{name}, p99 beyond idle", beyond_ms, "ms", target)]


# ---- another client ------------------------------------------------------------------------------


async def _probe(process: Process, seconds: float) -> Latencies:
    """Send small reads and appends at a fixed rate, and return the latencies.

    A request does not wait for the earlier ones. Its latency is counted from the time at which it
    was due, so that a server that hangs once is not measured once only.
    """
    latencies = Latencies()
    readers = await connect_readers(process, _EVENTS, 1)
    readers[0].arrived = []
    reads, appends = _Pool(process), _Pool(process)
    _, sent = await asyncio.gather(
        _at_rate(seconds, _READS_PER_SECOND, partial(_time, reads, _READ, latencies.reads)),
        _at_rate(seconds, _APPENDS_PER_SECOND, partial(_time, appends, _APPEND, latencies.appends)),
    )
    latencies.events = await _events(readers[0], sent)
    await close_readers(readers)
    for pool in (reads, appends):
        pool.close()
    return latencies


async def _at_rate(
    seconds: float, per_second: int, send: Callable[[float], Awaitable[None]]
) -> list[float]:
    """Call `send` at a fixed rate, with the time at which it is due. Return all those times."""
    began = time.perf_counter()
    dues = [began + n / per_second for n in range(max(2, int(seconds * per_second)))]
    tasks = []
    for due in dues:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.ensure_future(send(due)))
    await asyncio.wait_for(asyncio.gather(*tasks), _WAIT_SECONDS)
    return dues


async def _time(pool: "_Pool", request: bytes, latencies: list[float], due: float) -> None:
    await pool.ask(request)
    latencies.append(time.perf_counter() - due)


async def _events(reader: EventReader, sent: Sequence[float]) -> list[float]:
    """Return the time from each append until its event arrived. Waits for the last event."""
    until = time.perf_counter() + _WAIT_SECONDS
    arrived = reader.arrived or []
    while _count(arrived) < len(sent) and not reader.is_lost:
        if time.perf_counter() > until:
            break
        await asyncio.sleep(0.01)
    times = [at for at, data in arrived for _ in range(data.count(_EVENT_BODY))]
    return [at - due for at, due in zip(times, sent, strict=False)]


def _count(arrived: Sequence[tuple[float, bytes]]) -> int:
    return sum(data.count(_EVENT_BODY) for _, data in arrived)


class _Line(asyncio.Protocol):
    """A connection that sends one request at a time."""

    def __init__(self) -> None:
        self._data = b""
        self._answer: asyncio.Future[None] | None = None
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    async def ask(self, request: bytes) -> None:
        """Send a request, and wait for its response.

        Raises BadResponse if the request is refused, and ConnectionError if the connection ends.
        """
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        await self._answer

    def data_received(self, data: bytes) -> None:
        self._data += data
        assert self._answer is not None
        try:
            size = http_response_bytes(self._data)
        except Exception as error:  # noqa: BLE001 - the event loop would only log it
            self._answer.set_exception(error)
            return
        if size:
            self._data = b""
            self._answer.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionError(CLOSED))


class _Pool:
    """Connections to the server. A request uses a free one, or a new one if none is free."""

    def __init__(self, process: Process) -> None:
        self._port = process.port
        self._free: list[_Line] = []

    async def ask(self, request: bytes) -> None:
        while self._free and self._free[-1].is_lost:
            self._free.pop()
        if self._free:
            line = self._free.pop()
        else:
            loop = asyncio.get_running_loop()
            _, line = await loop.create_connection(_Line, HOST, self._port)
        await line.ask(request)
        self._free.append(line)

    def close(self) -> None:
        for line in self._free:
            line.transport.abort()


# ---- silent readers ------------------------------------------------------------------------------


class SilentReaders:
    """Connections that each request a long response, and never read.

    While `hold` runs, there are always `count` of them: it replaces those that the server closes.
    """

    def __init__(self, process: Process, count: int) -> None:
        self._port = process.port
        self._count = count
        self._sockets: dict[int, socket.socket] = {}
        self._poll = select.poll()
        self.replaced = 0

    async def hold(self) -> None:
        """Open the connections, and replace those that the server has closed, until cancelled."""
        while True:
            while missing := self._count - len(self._sockets):
                await asyncio.gather(
                    *(self._open() for _ in range(min(missing, _CONNECT_TOGETHER)))
                )
            await asyncio.sleep(0.1)
            for descriptor, _ in self._poll.poll(0):
                self._poll.unregister(descriptor)
                self._sockets.pop(descriptor).close()
                self.replaced += 1

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        line = socket.socket()
        line.setblocking(False)
        request = bare_request("GET", f"{stream_url(_LONG)}?offset=-1")
        with suppress(ConnectionError):  # the server refuses connections: try again later
            await loop.sock_connect(line, (HOST, self._port))
            await loop.sock_sendall(line, request)
            self._sockets[line.fileno()] = line
            self._poll.register(line, _GONE)
            return
        line.close()

    def close(self) -> None:
        """Close all connections."""
        for line in self._sockets.values():
            line.close()
