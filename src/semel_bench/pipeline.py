"""A graph of one processor on both engines: messages per second, and one message at a time."""

import asyncio
import time
from contextlib import ExitStack
from typing import Any, Final

from semel.client.sync.client import Client
from semel.pipeline.executor import LOCAL, SPARK
from semel.pipeline.graph.graph import Graph
from semel.pipeline.runner import Runner
from semel.pipeline.runner import run as run_graph
from semel_bench.figures import Figure, median, percentile
from semel_bench.harness import Harness, Unavailable
from semel_bench.load import create_streams
from semel_bench.requests import JSON, small_values
from semel_bench.servers import semel_server

_MESSAGES: Final = 200_000
_STEPS: Final = 300
_SPARK_STEPS: Final = 30
_WARM_STEPS: Final = 20
_IN: Final = "pipeline-in"
_OUT: Final = "pipeline-out"


async def measure_pipeline(harness: Harness) -> list[Figure]:
    """Measure the engine inside this process, and Spark if it is there."""
    options = harness.options
    steps = options.scaled(_STEPS)
    with harness.scratch() as folder, semel_server(folder) as semel, ExitStack() as stack:
        await create_streams(semel, [_IN, _OUT], JSON)
        await asyncio.to_thread(_fill, semel.url, options.scaled(_MESSAGES))
        figures = await asyncio.to_thread(_measure, semel.url, LOCAL, options.rounds, steps)
        with harness.optional():
            stack.callback(_start_spark().stop)
            steps = max(min(steps, _SPARK_STEPS), 1)
            figures += await asyncio.to_thread(_measure, semel.url, SPARK, options.rounds, steps)
    return figures


def _start_spark() -> Any:
    """Start Spark before the measurement, because a JVM takes seconds."""
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
        Figure(f"p50 of a step, {engine}", percentile(latencies, 50) * 1e3, "ms"),
        Figure(f"p99 of a step, {engine}", percentile(latencies, 99) * 1e3, "ms"),
    ]


def _graph(url: str, name: str) -> Graph:
    """Return a graph whose new name makes it begin at the start of the streams."""
    graph = Graph(f"bench-{name}", url=url)

    @graph.stream("copy", in_=_IN, out=_OUT)
    def copy(message: Any) -> Any:
        return message

    return graph


def _rate(graph: Graph, engine: str) -> float:
    """Process the messages that are there; return how many per second."""
    began = time.perf_counter()
    figures = run_graph(graph, engine=engine, available_now=True)
    return figures["copy"].read / (time.perf_counter() - began)


def _latencies(url: str, graph: Graph, engine: str, steps: int) -> list[float]:
    """Append one message at a time and wait for its output; return the seconds of each."""
    latencies = []
    with Client(url) as client:
        source, out = client.stream(_IN), client.stream(_OUT)
        client.group(f"{graph.id}/copy").set({_IN: source.head().next_offset})
        with Runner(graph, engine=engine), out.tail(offset="now") as tail:
            for number in range(min(_WARM_STEPS, steps) + steps):
                began = time.perf_counter()
                source.append(number)
                next(tail)
                latencies.append(time.perf_counter() - began)
    return latencies[-steps:]
