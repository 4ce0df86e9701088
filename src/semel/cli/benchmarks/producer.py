"""Our producer into a local server: small JSON messages, all of them durable."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain, repeat
from typing import Any, Final

from msgspec import Struct

from semel.cli.benchmarks.bed import Bed, create_streams
from semel.cli.benchmarks.bodies import small_values
from semel.cli.benchmarks.figures import Figure, at_least, middle
from semel.cli.benchmarks.options import scratch
from semel.cli.benchmarks.peers import semel_server
from semel.cli.benchmarks.processes import Process
from semel.cli.benchmarks.requests import JSON
from semel.cli.benchmarks.turns import Side, take_turns
from semel.client.aio.client import AsyncClient
from semel.client.sync.client import Client
from semel.model.limits import MIB

_MESSAGES: Final = 500_000
_VALUES: Final = 10_000  # different ones, used again and again
_PENDING_BYTES_MAX: Final = 4 * MIB
_STREAM: Final = "producer"

_SYNC: Final = "Producer"
_ASYNC: Final = "AsyncProducer"


class Round(Struct, frozen=True):
    """What one round took, per message."""

    seconds: float
    client_cpu_s: float
    server_cpu_s: float


async def run(bed: Bed) -> list[Figure]:
    """Measure."""
    options = bed.options
    count = options.scaled(_MESSAGES)
    values = small_values(min(_VALUES, count))
    times = count // len(values)
    with scratch(options) as folder, ExitStack() as stack:
        semel = stack.enter_context(semel_server(f"{folder}/semel"))
        await create_streams(semel, [_STREAM], JSON)
        sides: dict[str, Side[Round]] = {
            _SYNC: partial(asyncio.to_thread, _produce, semel, values, times),
            _ASYNC: partial(_produce_on_the_loop, semel, values, times),
        }
        found = await take_turns(sides, options.rounds, is_warmed=not options.is_quick)
    return [*_figures(_SYNC, found[_SYNC]), *_figures(_ASYNC, found[_ASYNC])]


def _produce(process: Process, values: list[Any], times: int) -> Round:
    with Client(process.url) as client:
        stream = client.stream(_STREAM)
        producer = stream.producer(_SYNC)
        stop = _started(process, len(values) * times)
        for value in chain.from_iterable(repeat(values, times)):
            producer.append(value)
        producer.close()  # waits until all is stored, or raises
        return stop()


async def _produce_on_the_loop(process: Process, values: list[Any], times: int) -> Round:
    async with AsyncClient(process.url) as client:
        stream = client.stream(_STREAM)
        # An append that need not wait lets nobody else run: with a bound it has to, now and then.
        producer = await stream.producer(_ASYNC, max_pending_bytes=_PENDING_BYTES_MAX).open()
        stop = _started(process, len(values) * times)
        for value in chain.from_iterable(repeat(values, times)):
            await producer.append(value)
        await producer.close()
        return stop()


def _started(process: Process, count: int) -> Callable[[], Round]:
    """Read the clocks; what is returned reads them again."""
    wall, client, server = time.perf_counter(), time.process_time(), process.cpu_seconds

    def stop() -> Round:
        return Round(
            (time.perf_counter() - wall) / count,
            (time.process_time() - client) / count,
            (process.cpu_seconds - server) / count,
        )

    return stop


def _figures(name: str, rounds: Sequence[Round]) -> list[Figure]:
    return [
        Figure(
            work="producer",
            name=f"{name}, 100-byte JSON messages",
            value=1 / middle([each.seconds for each in rounds]),
            unit="messages/s",
            target=at_least(250_000) if name == _SYNC else None,
        ),
        _cost(f"client CPU per message, {name}", [each.client_cpu_s for each in rounds]),
        _cost(f"server CPU per message, {name}", [each.server_cpu_s for each in rounds]),
    ]


def _cost(name: str, seconds: Sequence[float]) -> Figure:
    return Figure(work="producer", name=name, value=middle(seconds) * 1e6, unit="us")
