"""Benchmarks for the Python client and for pipelines.

`client` measures appends that are sent one at a time, and what their numbers and their queue cost.
`producer` measures the maximum rate of a producer. `pipelined` measures a producer over a slow
connection. `pipeline` measures a graph with one processor, on the local engine and on Spark.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from semel.client.aio.client import AsyncClient
from semel.client.requests import AppendHeaders
from semel.client.sync.client import Client
from semel.model.limits import MIB
from semel.pipeline.executor import LOCAL, SPARK
from semel.pipeline.graph.graph import Graph
from semel.pipeline.runner import Runner
from semel.pipeline.runner import run as run_graph
from semel.testing.fault_proxy import FaultProxy
from semel_bench.harness import (
    Figure,
    Harness,
    Side,
    Unavailable,
    at_least,
    interleave,
    median,
    median_of,
    percentile,
    ratio_at_least,
    ratio_at_most,
)
from semel_bench.load import create_streams, exchange
from semel_bench.requests import BYTES, JSON, SMALL_BODY, post, small_values
from semel_bench.servers import HOST, Process, Stopwatch, Usage, semel_server

# ---- client: one append at a time ----------------------------------------------------------------

_CLIENT_STREAM: Final = "client"
_RAW: Final = "raw socket"
_WARM_SHARE: Final = 0.2

Latencies = list[float]


async def measure_client(harness: Harness) -> list[Figure]:
    """Measure the latency of appends by `Client`, by `AsyncClient` and through a plain socket.

    `Client` numbers its appends, so that a retry is safe. The other two rows of `Client` show the
    cost of the numbers, and of the queue in which concurrent appends wait.
    """
    options = harness.options
    seconds = options.round_seconds / 3
    with harness.scratch() as folder, semel_server(folder) as semel:
        await create_streams(semel, [_CLIENT_STREAM], BYTES)
        sides: dict[str, Side[Latencies]] = {
            _RAW: partial(asyncio.to_thread, _append_by_socket, semel, seconds),
            "Client": partial(asyncio.to_thread, _append_by_client, semel, seconds),
            "AsyncClient": partial(_append_by_async_client, semel, seconds),
        }
        # The rounds are short and many, so that all sides run while the disk is in the same state.
        rounds = await interleave(sides, 3 * options.rounds)
        costs = await asyncio.to_thread(_append_costs, semel, seconds * 3 * options.rounds)
    figures = []
    raw = _median_us(rounds[_RAW], 50)
    for name, each in rounds.items():
        p50 = _median_us(each, 50)
        compared = (None, "") if name == _RAW else (p50 / raw, _RAW)
        figures += [
            Figure(f"p50, {name}", p50, "us", None, *compared),
            Figure(f"p99, {name}", _median_us(each, 99), "us"),
        ]
    figures.append(Figure(_PLAIN, median(costs[_PLAIN]) * 1e6, "us"))
    for name, most in ((_QUEUED, 1.05), (_NUMBERED, 1.2)):
        turns = zip(costs[name], costs[_PLAIN], strict=True)
        compared = (median([each / plain for each, plain in turns]), "no queue")
        figures.append(
            Figure(name, median(costs[name]) * 1e6, "us", ratio_at_most(most), *compared)
        )
    return figures


_PLAIN: Final = "p50, unnumbered append, no queue"
_QUEUED: Final = "p50, unnumbered append"
_NUMBERED: Final = "p50, numbered append"
_TURN_COUNT: Final = 20


def _append_costs(process: Process, seconds: float) -> dict[str, Latencies]:
    """Append in three ways, in turns of a few appends. Return the median latency of each turn.

    The turns are short, because the speed of a disk and of a shared machine changes all the time.
    """
    with Client(process.url) as numbering, Client(process.url, retry_appends=False) as other:
        numbered, queued, plain = (
            client.stream(_CLIENT_STREAM) for client in (numbering, other, other)
        )
        plain.head()
        ways: dict[str, Callable[[], object]] = {
            _PLAIN: lambda: other.run(plain.calls.append([SMALL_BODY], AppendHeaders())),
            _QUEUED: lambda: queued.append(SMALL_BODY),
            _NUMBERED: lambda: numbered.append(SMALL_BODY),
        }
        for way in ways.values():
            way()
        medians: dict[str, Latencies] = {name: [] for name in ways}
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            for name, way in ways.items():
                latencies = []
                for _ in range(_TURN_COUNT):
                    began = time.perf_counter()
                    way()
                    latencies.append(time.perf_counter() - began)
                medians[name].append(median(latencies))
    return medians


def _median_us(rounds: Sequence[Latencies], percent: float) -> float:
    return median_of(rounds, lambda latencies: percentile(latencies, percent)) * 1e6


def _append_by_socket(process: Process, seconds: float) -> Latencies:
    latencies: Latencies = []
    request = post(_CLIENT_STREAM, BYTES, SMALL_BODY)
    with socket.create_connection((HOST, process.port)) as line:
        for _ in _timed(seconds, latencies):
            exchange(line, request)
    return latencies


def _append_by_client(process: Process, seconds: float) -> Latencies:
    latencies: Latencies = []
    with Client(process.url) as client:
        stream = client.stream(_CLIENT_STREAM)
        for _ in _timed(seconds, latencies):
            stream.append(SMALL_BODY)
    return latencies


async def _append_by_async_client(process: Process, seconds: float) -> Latencies:
    latencies: Latencies = []
    async with AsyncClient(process.url) as client:
        stream = client.stream(_CLIENT_STREAM)
        for _ in _timed(seconds, latencies):
            await stream.append(SMALL_BODY)
    return latencies


def _timed(seconds: float, latencies: Latencies) -> Iterator[None]:
    """Time the appends of the caller, which makes one append per yield.

    After a warm-up, the latency of each append is added to `latencies`, for `seconds` seconds.
    """
    began = now = time.perf_counter()
    while now - began < seconds * (1 + _WARM_SHARE):
        yield
        before, now = now, time.perf_counter()
        if before - began > seconds * _WARM_SHARE:
            latencies.append(now - before)


# ---- producer: the maximum rate ------------------------------------------------------------------

_PRODUCER_STREAM: Final = "producer"
_SYNC: Final = "Producer"
_ASYNC: Final = "AsyncProducer"


async def measure_producer(harness: Harness) -> list[Figure]:
    """Measure how fast `Producer` and `AsyncProducer` make 100-byte JSON messages durable."""
    options = harness.options
    values = small_values(options.scaled(10_000)) * 50
    count = len(values)
    with harness.scratch() as folder, semel_server(folder) as semel:
        await create_streams(semel, [_PRODUCER_STREAM], JSON)
        sides: dict[str, Side[Usage]] = {
            _SYNC: partial(asyncio.to_thread, _produce, semel, values),
            _ASYNC: partial(_produce_on_the_loop, semel, values),
        }
        rounds = await interleave(sides, options.rounds, warm_rounds=options.pick(1, 0))
    figures = []
    for name, each in rounds.items():
        rate = count / median_of(each, lambda usage: usage.wall_s)
        target = at_least(250_000) if name == _SYNC else None
        client = median_of(each, lambda usage: usage.client_cpu_s) / count * 1e6
        server = median_of(each, lambda usage: usage.server_cpu_s) / count * 1e6
        figures += [
            Figure(f"{name}, 100-byte JSON messages", rate, "messages/s", target),
            Figure(f"client CPU per message, {name}", client, "us"),
            Figure(f"server CPU per message, {name}", server, "us"),
        ]
    return figures


def _produce(process: Process, values: list[Any]) -> Usage:
    with Client(process.url) as client:
        producer = client.stream(_PRODUCER_STREAM).producer(_SYNC)
        watch = Stopwatch(process)
        for value in values:
            producer.append(value)
        producer.close()  # waits until all messages are stored, or raises
        return watch.stop()


async def _produce_on_the_loop(process: Process, values: list[Any]) -> Usage:
    async with AsyncClient(process.url) as client:
        stream = client.stream(_PRODUCER_STREAM)
        # An append that does not have to wait does not let any other task run. With this low bound,
        # some appends have to wait, so the task that sends the batches can run.
        producer = await stream.producer(_ASYNC, max_pending_bytes=4 * MIB).open()
        watch = Stopwatch(process)
        for value in values:
            await producer.append(value)
        await producer.close()
        return watch.stop()


# ---- pipelined: over a slow connection -----------------------------------------------------------

_PIPELINED_STREAM: Final = "pipelined"


async def measure_pipelined(harness: Harness) -> list[Figure]:
    """Measure a producer with one and with five batches in flight. A round trip takes 10 ms."""
    options = harness.options
    count = max(20, options.scaled(250))
    with (
        harness.scratch() as folder,
        semel_server(folder) as semel,
        FaultProxy(semel.url, round_trip_seconds=0.01) as line,
    ):
        await create_streams(semel, [_PIPELINED_STREAM], JSON)
        sides: dict[str, Side[float]] = {
            name: partial(asyncio.to_thread, _batch_rate, line.url, in_flight, count)
            for name, in_flight in (("one", 1), ("five", 5))
        }
        rounds = await interleave(sides, options.rounds, warm_rounds=options.pick(1, 0))
    one, five = median(rounds["one"]), median(rounds["five"])
    name, unit = "in flight, 10 ms round trip", "batches/s"
    return [
        Figure(f"one batch {name}", one, unit),
        Figure(f"five batches {name}", five, unit, ratio_at_least(4.5), five / one, "one"),
    ]


def _batch_rate(url: str, max_in_flight: int, count: int) -> float:
    """Send `count` batches of one message each. Return the number of batches stored per second."""
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


# ---- pipeline: a graph of one processor ----------------------------------------------------------

_IN: Final = "pipeline-in"
_OUT: Final = "pipeline-out"


async def measure_pipeline(harness: Harness) -> list[Figure]:
    """Measure a processing graph in this process, and on Spark if Spark is installed."""
    options = harness.options
    steps = options.scaled(300)
    with harness.scratch() as folder, semel_server(folder) as semel, ExitStack() as stack:
        await create_streams(semel, [_IN, _OUT], JSON)
        await asyncio.to_thread(_fill, semel.url, options.scaled(200_000))
        figures = await asyncio.to_thread(_measure, semel.url, LOCAL, options.rounds, steps)
        with harness.optional():
            stack.callback(_start_spark().stop)
            steps = min(steps, 30)
            figures += await asyncio.to_thread(_measure, semel.url, SPARK, options.rounds, steps)
    return figures


def _start_spark() -> Any:
    """Start a Spark session and return it.

    The start takes seconds, so it is done before the measurement. Raises Unavailable if Spark does
    not start.
    """
    try:
        from semel.spark import session

        return session("bench")
    except Exception as error:
        raise Unavailable(f"Spark does not start: {error}") from error


def _fill(url: str, messages: int) -> None:
    """Append the messages that every round processes."""
    with Client(url) as client, client.stream(_IN).producer("bench") as producer:
        for value in small_values(messages):
            producer.append(value)


def _measure(url: str, engine: str, rounds: int, steps: int) -> list[Figure]:
    rates = [_rate(_graph(url, f"{engine}-{number}"), engine) for number in range(rounds)]
    latencies = _latencies(url, _graph(url, f"{engine}-steps"), engine, steps)
    return [
        Figure(f"messages, {engine}", median(rates), "/s"),
        Figure(f"p50 latency of a step, {engine}", percentile(latencies, 50) * 1e3, "ms"),
        Figure(f"p99 latency of a step, {engine}", percentile(latencies, 99) * 1e3, "ms"),
    ]


def _graph(url: str, name: str) -> Graph:
    """Return a graph with a new id. It has no positions, so it reads its input from the head."""
    graph = Graph(f"bench-{name}", url=url)

    @graph.stream("copy", in_=_IN, out=_OUT)
    def copy(message: Any) -> Any:
        return message

    return graph


def _rate(graph: Graph, engine: str) -> float:
    """Process all stored messages. Return the number of messages processed per second."""
    began = time.perf_counter()
    figures = run_graph(graph, engine=engine, available_now=True)
    return figures["copy"].read / (time.perf_counter() - began)


def _latencies(url: str, graph: Graph, engine: str, steps: int) -> list[float]:
    """Append messages one at a time, and wait for each message to appear in the output.

    Returns the latency of each of the last `steps` messages, in seconds.
    """
    latencies = []
    with Client(url) as client:
        source, out = client.stream(_IN), client.stream(_OUT)
        client.group(f"{graph.id}/copy").set({_IN: source.head().next_offset})
        with Runner(graph, engine=engine), out.tail(offset="now") as tail:
            for number in range(min(20, steps) + steps):
                began = time.perf_counter()
                source.append(number)
                next(tail)
                latencies.append(time.perf_counter() - began)
    return latencies[-steps:]
