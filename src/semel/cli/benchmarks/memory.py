"""What an idle stream costs: 200,000 of them, created over pipelined connections."""

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Final, cast

from semel.cli.benchmarks.bed import Bed
from semel.cli.benchmarks.figures import Figure, at_most
from semel.cli.benchmarks.options import scratch
from semel.cli.benchmarks.peers import semel_server
from semel.cli.benchmarks.processes import HOST, Process
from semel.cli.benchmarks.requests import JSON, BadAnswer, put

_STREAMS: Final = 200_000
_CONNECTIONS: Final = 8
_PIPELINED: Final = 32
_CREATED: Final = b"HTTP/1.1 201"


async def run(bed: Bed) -> list[Figure]:
    """Measure."""
    count = bed.options.scaled(_STREAMS)
    with scratch(bed.options) as folder:
        with semel_server(f"{folder}/semel") as semel:
            empty = semel.memory_kib
            began = time.perf_counter()
            await _create(semel, count)
            seconds = time.perf_counter() - began
            created = semel.memory_kib - empty
        with semel_server(f"{folder}/semel") as semel:
            restarted = semel.memory_kib - empty
    name = f"per idle stream of {count:,}"
    return [
        _figure(f"{name}, after a restart", restarted / count, is_judged=True),
        _figure(f"{name}, just created", created / count),
        Figure(work="memory", name="streams created", value=count / seconds, unit="streams/s"),
    ]


def _figure(name: str, value: float, *, is_judged: bool = False) -> Figure:
    target = at_most(1.2) if is_judged else None
    return Figure(work="memory", name=name, value=value, unit="KiB", target=target)


class _Creator(asyncio.Protocol):
    """Keeps some requests under way and counts the answers."""

    def __init__(self, requests: Iterator[bytes]) -> None:
        self._requests = requests
        self._owed = 0
        self._rest = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        self._send(_PIPELINED)

    def _send(self, count: int) -> None:
        some = list(islice(self._requests, count))
        self._owed += len(some)
        if some:
            self._transport.write(b"".join(some))
        elif not self._owed and not self.done.done():
            self.done.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Count the answers that begin in what came."""
        data = self._rest + data
        created = data.count(_CREATED)
        self._rest = data[-len(_CREATED) + 1 :]  # too short to be counted twice
        self._owed -= created
        if data.count(b"HTTP/1.1 4") + data.count(b"HTTP/1.1 5") and not self.done.done():
            self.done.set_exception(BadAnswer("a stream was not created"))
        else:
            self._send(created)

    def connection_lost(self, exc: Exception | None) -> None:
        """The end, too early if answers are due."""
        if not self.done.done():
            self.done.set_exception(exc or BadAnswer("the server closed a connection"))


async def _create(process: Process, count: int) -> None:
    loop = asyncio.get_running_loop()
    shares = [range(first, count, _CONNECTIONS) for first in range(_CONNECTIONS)]
    connected = [
        await loop.create_connection(partial(_Creator, _requests(share)), HOST, process.port)
        for share in shares
    ]
    await asyncio.gather(*(creator.done for _, creator in connected))
    for transport, _ in connected:
        transport.close()


def _requests(numbers: range) -> Iterator[bytes]:
    return (put(f"idle/{number}", JSON) for number in numbers)
