"""The Python client: one append at a time (`client`), its `producer`, and batches `pipelined`."""

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, repeat
from typing import Any, Final

from semel.client.aio.client import AsyncClient
from semel.client.sync.client import Client
from semel.model.limits import MIB
from semel.testing.fault_proxy import FaultProxy
from semel_bench.figures import Figure, at_least, median, percentile, ratio_at_least
from semel_bench.harness import Harness, Side, interleave
from semel_bench.load import create_streams, exchange
from semel_bench.requests import BYTES, JSON, SMALL_BODY, post, small_values
from semel_bench.servers import HOST, Process, Stopwatch, Usage, semel_server

# ---- client: one append at a time ----------------------------------------------------------------

_CLIENT_STREAM: Final = "client"
_WARM_SHARE: Final = 0.2

_RAW: Final = "raw socket"

Latencies = list[float]


async def measure_client(harness: Harness) -> list[Figure]:
    """Measure both clients, compared with a socket that is written and read directly."""
    options = harness.options
    seconds = options.round_seconds / 3
    with harness.scratch() as folder, semel_server(folder) as semel:
        await create_streams(semel, [_CLIENT_STREAM], BYTES)
        sides: dict[str, Side[Latencies]] = {
            _RAW: partial(asyncio.to_thread, _append_by_socket, semel, seconds),
            "Client": partial(asyncio.to_thread, _append_by_client, semel, seconds),
            "AsyncClient": partial(_append_by_async_client, semel, seconds),
        }
        # Many short rounds: what is compared must see the disk in the same state.
        rounds = await interleave(sides, 3 * options.rounds)
    figures = []
    raw = _median_us(rounds[_RAW], 50)
    for name, each in rounds.items():
        p50, p99 = _median_us(each, 50), _median_us(each, 99)
        compared = (None, "") if name == _RAW else (p50 / raw, _RAW)
        figures.append(Figure(f"p50, {name}", p50, "us", None, *compared))
        figures.append(Figure(f"p99, {name}", p99, "us"))
    return figures


def _median_us(rounds: Sequence[Latencies], percent: float) -> float:
    return median([percentile(each, percent) for each in rounds]) * 1e6


def _append_by_socket(process: Process, seconds: float) -> Latencies:
    request = post(_CLIENT_STREAM, BYTES, SMALL_BODY)
    with socket.create_connection((HOST, process.port)) as line:
        return _timed(lambda: exchange(line, request), seconds)


def _append_by_client(process: Process, seconds: float) -> Latencies:
    with Client(process.url) as client:
        stream = client.stream(_CLIENT_STREAM)
        return _timed(lambda: stream.append(SMALL_BODY), seconds)


def _timed(append: Callable[[], object], seconds: float) -> Latencies:
    """Append again and again; return how long each append took, without the first ones."""
    latencies: Latencies = []
    began = now = time.perf_counter()
    while now - began < seconds * (1 + _WARM_SHARE):
        append()
        before, now = now, time.perf_counter()
        if before - began > seconds * _WARM_SHARE:
            latencies.append(now - before)
    return latencies


async def _append_by_async_client(process: Process, seconds: float) -> Latencies:
    latencies: Latencies = []
    async with AsyncClient(process.url) as client:
        stream = client.stream(_CLIENT_STREAM)
        began = now = time.perf_counter()
        while now - began < seconds * (1 + _WARM_SHARE):
            await stream.append(SMALL_BODY)
            before, now = now, time.perf_counter()
            if before - began > seconds * _WARM_SHARE:
                latencies.append(now - before)
    return latencies


# ---- producer: as fast as it goes ----------------------------------------------------------------

_MESSAGES: Final = 500_000
_VALUES: Final = 10_000  # distinct ones, which are repeated
_PENDING_BYTES_MAX: Final = 4 * MIB
_PRODUCER_STREAM: Final = "producer"

_SYNC: Final = "Producer"
_ASYNC: Final = "AsyncProducer"


async def measure_producer(harness: Harness) -> list[Figure]:
    """Measure both producers: 100-byte JSON messages, all of them durable at the end."""
    options = harness.options
    count = options.scaled(_MESSAGES)
    values = small_values(min(_VALUES, count))
    times = count // len(values)
    count = len(values) * times
    with harness.scratch() as folder, semel_server(folder) as semel:
        await create_streams(semel, [_PRODUCER_STREAM], JSON)
        sides: dict[str, Side[Usage]] = {
            _SYNC: partial(asyncio.to_thread, _produce, semel, values, times),
            _ASYNC: partial(_produce_on_the_loop, semel, values, times),
        }
        rounds = await interleave(sides, options.rounds, is_warmed=not options.is_quick)
    figures = []
    for name, each in rounds.items():
        rate = count / median([one.wall_s for one in each])
        target = at_least(250_000) if name == _SYNC else None
        client = median([one.client_cpu_s for one in each]) / count * 1e6
        server = median([one.server_cpu_s for one in each]) / count * 1e6
        figures += [
            Figure(f"{name}, 100-byte JSON messages", rate, "messages/s", target),
            Figure(f"client CPU per message, {name}", client, "us"),
            Figure(f"server CPU per message, {name}", server, "us"),
        ]
    return figures


def _produce(process: Process, values: list[Any], times: int) -> Usage:
    with Client(process.url) as client:
        producer = client.stream(_PRODUCER_STREAM).producer(_SYNC)
        watch = Stopwatch(process)
        for value in chain.from_iterable(repeat(values, times)):
            producer.append(value)
        producer.close()  # waits until everything is stored, or raises
        return watch.stop()


async def _produce_on_the_loop(process: Process, values: list[Any], times: int) -> Usage:
    async with AsyncClient(process.url) as client:
        stream = client.stream(_PRODUCER_STREAM)
        # An append that need not wait lets nothing else run: with a bound it waits now and then.
        producer = await stream.producer(_ASYNC, max_pending_bytes=_PENDING_BYTES_MAX).open()
        watch = Stopwatch(process)
        for value in chain.from_iterable(repeat(values, times)):
            await producer.append(value)
        await producer.close()
        return watch.stop()


# ---- pipelined: over a slow line -----------------------------------------------------------------

_ROUND_TRIP_SECONDS: Final = 0.01
_BATCHES: Final = 250
_BATCHES_MIN: Final = 20
_PIPELINED_STREAM: Final = "pipelined"


async def measure_pipelined(harness: Harness) -> list[Figure]:
    """Measure a producer over a line with a round trip of 10 ms: one batch in flight, and five."""
    options = harness.options
    count = max(_BATCHES_MIN, options.scaled(_BATCHES))
    with (
        harness.scratch() as folder,
        semel_server(folder) as semel,
        FaultProxy(semel.url, round_trip_seconds=_ROUND_TRIP_SECONDS) as line,
    ):
        await create_streams(semel, [_PIPELINED_STREAM], JSON)
        sides: dict[str, Side[float]] = {
            "one": partial(asyncio.to_thread, _batch_rate, line.url, 1, count),
            "five": partial(asyncio.to_thread, _batch_rate, line.url, 5, count),
        }
        rounds = await interleave(sides, options.rounds, is_warmed=not options.is_quick)
    one, five = median(rounds["one"]), median(rounds["five"])
    name, unit = "in flight, 10 ms round trip", "batches/s"
    return [
        Figure(f"one {name}", one, unit),
        Figure(f"five {name}", five, unit, ratio_at_least(4.5), five / one, "one"),
    ]


def _batch_rate(url: str, max_in_flight: int, count: int) -> float:
    """Send batches of one message; return how many per second are stored."""
    with Client(url) as client:
        stream = client.stream(_PIPELINED_STREAM)
        with stream.producer(
            f"in-flight-{max_in_flight}", max_in_flight=max_in_flight, max_batch_messages=1
        ) as producer:
            producer.append("connect")  # the first batch of a producer is always sent alone
            producer.flush()
            began = time.perf_counter()
            for number in range(count):
                producer.append(number)
            producer.flush()
            return count / (time.perf_counter() - began)
