"""What waits and does nothing: `idle` readers and what they cost, and streams in `memory`."""

import asyncio
import resource
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Final, cast

from semel_bench.figures import Figure, at_least, at_most
from semel_bench.harness import Harness
from semel_bench.load import create_streams
from semel_bench.reads import close_readers, connect_readers
from semel_bench.requests import JSON, BadAnswer, put
from semel_bench.servers import HOST, Process, semel_server

# ---- idle: readers of events that do not come ----------------------------------------------------

_READERS: Final = 10_000
_SPARE_FILES: Final = 200
_SERVER_SHARE: Final = 0.8  # of its files, a server uses this part for connections
_STREAM: Final = "idle"
_HOLD_SECONDS: Final = 3.0


async def measure_idle(harness: Harness) -> list[Figure]:
    """Measure how many of 10,000 waiting readers are held, and the memory and CPU they take."""
    target = harness.options.scaled(_READERS)
    count = min(target, int(_raise_file_limit() * _SERVER_SHARE) - _SPARE_FILES)
    if count < target:
        harness.skipped.append(f"idle: the file limit allows {count} readers of {target}")
    with harness.scratch() as folder, semel_server(folder) as semel:
        await create_streams(semel, [_STREAM], JSON)
        before = semel.memory_kib
        readers = await connect_readers(semel, _STREAM, count)
        cpu = semel.cpu_seconds
        await asyncio.sleep(_HOLD_SECONDS)
        held = sum(not reader.is_lost for reader in readers)
        cores = (semel.cpu_seconds - cpu) / _HOLD_SECONDS
        memory = semel.memory_kib - before
        await close_readers(readers)
    return [
        Figure("SSE readers held", held, "readers", at_least(target)),
        Figure("memory, all", memory / 1024, "MiB"),
        Figure("memory, each", memory / held, "KiB"),
        Figure("server while they wait", cores, "cores"),
    ]


def _raise_file_limit() -> int:
    """Raise the limit of open files of this process and its children; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 20


# ---- memory: streams without messages ------------------------------------------------------------

_STREAMS: Final = 200_000
_CONNECTIONS: Final = 8
_PIPELINED: Final = 32
_CREATED: Final = b"HTTP/1.1 201"


async def measure_memory(harness: Harness) -> list[Figure]:
    """Measure the memory of 200,000 streams, just created and after a restart."""
    count = harness.options.scaled(_STREAMS)
    with harness.scratch() as folder:
        with semel_server(folder) as semel:
            empty = semel.memory_kib
            began = time.perf_counter()
            await _create(semel, count)
            seconds = time.perf_counter() - began
            created = semel.memory_kib - empty
        with semel_server(folder) as semel:
            restarted = semel.memory_kib - empty
    name = f"per idle stream of {count:,}"
    return [
        Figure(f"{name}, after a restart", restarted / count, "KiB", at_most(1.2)),
        Figure(f"{name}, just created", created / count, "KiB"),
        Figure("streams created", count / seconds, "streams/s"),
    ]


class _Creator(asyncio.Protocol):
    """Keeps some requests in flight and counts the responses."""

    def __init__(self, requests: Iterator[bytes]) -> None:
        self._requests = requests
        self._in_flight = 0
        self._rest = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first requests."""
        self._transport = cast("asyncio.Transport", transport)
        self._send(_PIPELINED)

    def _send(self, count: int) -> None:
        some = list(islice(self._requests, count))
        self._in_flight += len(some)
        if some:
            self._transport.write(b"".join(some))
        elif not self._in_flight and not self.done.done():
            self.done.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Count the responses that begin in the data, and send as many requests."""
        data = self._rest + data
        created = data.count(_CREATED)
        self._rest = data[-len(_CREATED) + 1 :]  # too short to be counted twice
        self._in_flight -= created
        if data.count(b"HTTP/1.1 4") + data.count(b"HTTP/1.1 5") and not self.done.done():
            self.done.set_exception(BadAnswer("a stream was not created"))
        else:
            self._send(created)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail if responses were due."""
        if not self.done.done():
            self.done.set_exception(exc or BadAnswer("the server closed a connection"))


async def _create(process: Process, count: int) -> None:
    loop = asyncio.get_running_loop()
    requests = (put(f"idle/{number}", JSON) for number in range(count))
    creators = [
        await loop.create_connection(partial(_Creator, requests), HOST, process.port)
        for _ in range(_CONNECTIONS)
    ]
    await asyncio.gather(*(creator.done for _, creator in creators))
    for transport, _ in creators:
        transport.close()
