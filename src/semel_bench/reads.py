"""Reading over HTTP: `catchup` from the start of a stream, `sse` at its end as events arrive."""

import asyncio
import re
import socket
import time
from collections.abc import Sequence
from functools import partial
from itertools import repeat
from typing import Final, cast

from semel_bench.figures import Figure, at_least, at_most, median, percentile
from semel_bench.harness import Harness, Options, Side, interleave
from semel_bench.load import create_streams, drive, send_all
from semel_bench.requests import (
    BYTES,
    FRAMES,
    JSON,
    SMALL_BODY,
    BadAnswer,
    get,
    large_bytes,
    large_json,
    limited,
    post,
    stream_url,
)
from semel_bench.servers import HOST, Process, Stopwatch, Usage, semel_server

# ---- catchup -------------------------------------------------------------------------------------

_LARGE_APPENDS: Final = 100
_SMALL_STREAMS: Final = 50
_SMALL_APPENDS: Final = 1_000
_BUFFER_BYTES: Final = 1 << 20
_HEAD_END: Final = b"\r\n\r\n"
_LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length: ([0-9]+)")
_NEXT: Final = re.compile(rb"(?i)\r\nstream-next-offset: ([0-9_]+)")
_UP_TO_DATE: Final = re.compile(rb"(?i)\r\nstream-up-to-date: true")
_CLOSED: Final = "the server closed a connection"


async def measure_catchup(harness: Harness) -> list[Figure]:
    """Measure reads from start to end, of files that the kernel has in memory."""
    small = f"256 bytes, {_SMALL_STREAMS} streams interleaved"
    frames = f"Accept: {FRAMES}"
    kinds = {
        "1 MiB appends, bytes": ("large-bytes", (), at_least(800)),
        "1 MB appends, JSON": ("large-json", (), at_least(400)),
        "1 MiB appends, frames format": ("large-bytes", (frames,), at_least(800)),
        small: ("small-0", (), None),
        f"{small}, frames format": ("small-0", (frames,), None),
    }
    with harness.scratch() as folder, semel_server(folder) as semel:
        await _fill(semel, harness.options)
        sides: dict[str, Side[float]] = {
            name: partial(_catch_up, semel, stream, *fields)
            for name, (stream, fields, _) in kinds.items()
        }
        rounds = await interleave(sides, harness.options.rounds)
    return [
        Figure(name, median(rounds[name]), "MB/s", target) for name, (*_, target) in kinds.items()
    ]


async def _fill(process: Process, options: Options) -> None:
    times = options.scaled(_LARGE_APPENDS)
    large = (("large-bytes", BYTES, large_bytes()), ("large-json", JSON, large_json()))
    for name, kind, body in large:
        await create_streams(process, [name], kind)
        await send_all(process, *repeat(post(name, kind, body), times))
    names = [f"small-{index}" for index in range(_SMALL_STREAMS)]
    await create_streams(process, names, BYTES)
    times = options.scaled(_SMALL_APPENDS)
    requests = [post(name, BYTES, SMALL_BODY) for name in names]
    await drive(process, [limited(repeat(request, times)) for request in requests])


async def _catch_up(process: Process, name: str, *fields: str) -> float:
    """Read to the end over a blocking socket, which costs a client least; return MB/s."""
    total, seconds = await asyncio.to_thread(read_all, process, name, fields)
    return total / seconds / 1e6


def read_all(
    process: Process, name: str, fields: tuple[str, ...] = (), query: str = ""
) -> tuple[int, float]:
    """Read a stream from its start to its end; return the number of bytes and the seconds.

    `fields` and `query` are added to every request. Raises BadAnswer for anything but success.
    """
    offset, total, is_over = "-1", 0, False
    buffer = bytearray(_BUFFER_BYTES)
    with socket.create_connection((HOST, process.port)) as line:
        began = time.perf_counter()
        while not is_over:
            line.sendall(get(f"{stream_url(name)}?offset={offset}{query}", *fields))
            head, body_bytes = _read_answer(line, buffer)
            following = _NEXT.search(head)
            if following is None:
                raise BadAnswer("no Stream-Next-Offset")
            offset, total = following[1].decode(), total + body_bytes
            is_over = _UP_TO_DATE.search(head) is not None
        return total, time.perf_counter() - began


def _read_answer(line: socket.socket, buffer: bytearray) -> tuple[bytes, int]:
    """Read one response and drop its body; return its head and the size of the body."""
    data = b""
    while (end := data.find(_HEAD_END)) < 0:
        piece = line.recv(4096)
        if not piece:
            raise BadAnswer(_CLOSED)
        data += piece
    head = data[: end + 2]
    length = _LENGTH.search(head)
    if not data.startswith(b"HTTP/1.1 200") or length is None:
        raise BadAnswer(data[:200].decode("latin-1"))
    size = int(length[1])
    missing = size - (len(data) - end - len(_HEAD_END))
    while missing:
        count = line.recv_into(buffer, min(missing, _BUFFER_BYTES))
        if not count:
            raise BadAnswer(_CLOSED)
        missing -= count
    return head, size


# ---- readers of events ---------------------------------------------------------------------------

_AT_ONCE: Final = 100
_AT_END: Final = b'"upToDate":true'
_BEGIN_SECONDS_MAX: Final = 60.0


class EventReader(asyncio.Protocol):
    """Records when data arrived; the data is not examined before the load is over."""

    __slots__ = ("_began", "_head", "_request", "arrived", "is_lost", "transport")

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._began: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._head = b""
        self.arrived: list[tuple[float, bytes]] | None = None
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Request the events."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Record events; or, at first, wait for the event that says there are none yet."""
        if self.arrived is not None:
            self.arrived.append((time.perf_counter(), data))
        elif not self._began.done():
            self._begin(data)

    def _begin(self, data: bytes) -> None:
        self._head += data
        if not b"HTTP/1.1 200".startswith(self._head[:12]):
            self._began.set_exception(BadAnswer(self._head[:200].decode("latin-1")))
        elif _AT_END in self._head.replace(b" ", b""):
            self._head = b""
            self._began.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Record that the server closed the connection."""
        self.is_lost = True
        if not self._began.done():
            self._began.set_exception(exc or ConnectionError(_CLOSED))

    async def began(self) -> None:
        """Wait until the reader is at the end of the stream."""
        await asyncio.wait_for(self._began, _BEGIN_SECONDS_MAX)


async def connect_readers(process: Process, name: str, count: int) -> list[EventReader]:
    """Return `count` readers that wait at the end of a stream."""
    request = get(f"{stream_url(name)}?offset=now&live=sse", "Accept: text/event-stream")
    loop = asyncio.get_running_loop()
    readers: list[EventReader] = []
    while len(readers) < count:
        number = min(_AT_ONCE, count - len(readers))
        connecting = (
            loop.create_connection(partial(EventReader, request), HOST, process.port)
            for _ in range(number)
        )
        some = [reader for _, reader in await asyncio.gather(*connecting)]
        await asyncio.gather(*(reader.began() for reader in some))
        readers += some
    return readers


async def close_readers(readers: Sequence[EventReader]) -> None:
    """Close their connections."""
    for reader in readers:
        reader.transport.abort()
    await asyncio.sleep(0.1)


# ---- sse -----------------------------------------------------------------------------------------

_READERS: Final = 1_000
_EVENTS_PER_SECOND: Final = 50
_STREAM: Final = "events"
_NUMBER: Final = re.compile(rb'"n": ?([0-9]+)')
_SETTLE_SECONDS: Final = 1.0
_PAD: Final = b"x" * 100


class _Delivery(Usage, frozen=True):
    """One round: how long each event took to each reader, and how many did not arrive."""

    latencies: list[float]
    missing: int


async def measure_sse(harness: Harness) -> list[Figure]:
    """Measure how long events take from the append to 1,000 readers of one stream."""
    options = harness.options
    count = options.scaled(_READERS)
    with harness.scratch() as folder, semel_server(folder) as semel:
        await create_streams(semel, [_STREAM], JSON)
        rounds = [await _deliver(semel, options, count) for _ in range(options.rounds)]
    p50, p99 = (
        median([percentile(each.latencies, percent) for each in rounds]) * 1e3
        for percent in (50, 99)
    )
    name = f"p99, {count:,} readers, {_EVENTS_PER_SECOND} events/s"
    return [
        Figure(name, p99, "ms", at_most(10)),
        Figure("p50", p50, "ms"),
        Figure("not delivered", sum(each.missing for each in rounds), ""),
        Figure("server", median([each.server_share for each in rounds]), "cores"),
        Figure("client", median([each.client_share for each in rounds]), "cores"),
    ]


async def _deliver(process: Process, options: Options, count: int) -> _Delivery:
    readers = await connect_readers(process, _STREAM, count)
    for reader in readers:
        reader.arrived = []
    watch = Stopwatch(process)
    sent = await _send_events(process, round(_EVENTS_PER_SECOND * options.round_seconds))
    usage = watch.stop()
    await asyncio.sleep(_SETTLE_SECONDS)
    latencies = [
        at - sent[int(number)]
        for reader in readers
        for at, data in reader.arrived or ()
        for number in _NUMBER.findall(data)
    ]
    missing = len(readers) * len(sent) - len(latencies)
    await close_readers(readers)
    return _Delivery(
        usage.wall_s, usage.server_cpu_s, usage.client_cpu_s, latencies=latencies, missing=missing
    )


async def _send_events(process: Process, count: int) -> list[float]:
    """Append events at a fixed rate without waiting for responses; return when each was sent."""
    answers, line = await asyncio.open_connection(HOST, process.port)
    reading = asyncio.create_task(answers.read())
    sent: list[float] = []
    began = time.perf_counter()
    for number in range(count):
        due = began + number / _EVENTS_PER_SECOND
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        request = post(_STREAM, JSON, b'{"n":%d,"pad":"%b"}' % (number, _PAD))
        sent.append(time.perf_counter())
        line.write(request)
    await asyncio.sleep(1 / _EVENTS_PER_SECOND)
    line.close()
    await reading
    return sent
