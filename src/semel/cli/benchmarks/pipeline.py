"""A pipeline: messages per second through one processor, and one at a time; on both engines."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import count
from typing import Any, Final

from semel.cli.benchmarks.bed import Bed, create_streams
from semel.cli.benchmarks.bodies import small_values
from semel.cli.benchmarks.figures import Figure, middle, percentile
from semel.cli.benchmarks.options import scratch
from semel.cli.benchmarks.peers import Missing, semel_server
from semel.cli.benchmarks.requests import JSON
from semel.client.sync.client import Client
from semel.model.offsets import print_offset
from semel.pipeline.executor import LOCAL, SPARK
from semel.pipeline.graph.graph import Graph
from semel.pipeline.runner import Runner
from semel.pipeline.runner import run as run_graph

_MESSAGES: Final = 200_000
_STEPS: Final = 300
_SPARK_STEPS: Final = 30
_WARM_STEPS: Final = 20
_IN: Final = "pipeline-in"
_OUT: Final = "pipeline-out"


async def run(bed: Bed) -> list[Figure]:
    """Measure."""
    options = bed.options
    messages, steps = options.scaled(_MESSAGES), options.scaled(_STEPS)
    with scratch(options) as folder, ExitStack() as stack:
        semel = stack.enter_context(semel_server(f"{folder}/semel"))
        await create_streams(semel, [_IN, _OUT], JSON)
        found = await asyncio.to_thread(_figures, semel.url, options.rounds, messages, steps)
        with bed.optional():
            spark = _spark()
            stack.callback(spark.stop)
            fewer = max(min(steps, _SPARK_STEPS), 1)
            found += await asyncio.to_thread(
                _figures, semel.url, options.rounds, messages, fewer, SPARK
            )
    return found


def _spark() -> Any:
    """Start Spark beforehand: a JVM takes seconds."""
    try:
        from semel.spark import session

        return session("bench")
    except Exception as error:
        raise Missing(f"Spark does not start: {error}") from error


def _figures(url: str, rounds: int, messages: int, steps: int, engine: str = LOCAL) -> list[Figure]:
    rates, latencies = _measure(url, rounds, messages, steps, engine)
    named = [
        (f"messages, {engine}", middle(rates), "/s"),
        (f"p50 of a step, {engine}", _ms(latencies, 50), "ms"),
        (f"p99 of a step, {engine}", _ms(latencies, 99), "ms"),
    ]
    return [
        Figure(work="pipeline", name=name, value=value, unit=unit) for name, value, unit in named
    ]


def _ms(latencies: Sequence[float], percent: float) -> float:
    return percentile(latencies, percent) * 1e3


def _measure(
    url: str, rounds: int, messages: int, steps: int, engine: str
) -> tuple[list[float], list[float]]:
    with Client(url) as client:
        _fill(client, messages)
        rates = [_rate(_graph(url, f"{engine}-{number}"), engine) for number in range(rounds)]
        return rates, _latencies(client, _graph(url, f"{engine}-steps"), steps, engine)


def _graph(url: str, name: str) -> Graph:
    """A processor of its own for every round: it begins where the streams begin."""
    graph = Graph(f"bench-{name}", url=url)

    @graph.stream("copy", in_=_IN, out=_OUT)
    def copy(message: Any) -> Any:
        return message

    return graph


def _fill(client: Client, messages: int) -> None:
    """Let the messages be there that every round processes."""
    if client.stream(_IN).head().next_offset != print_offset(0):
        return
    with client.stream(_IN).producer("bench") as producer:
        for value in small_values(messages):
            producer.append(value)


def _rate(graph: Graph, engine: str) -> float:
    """Process all messages that are there."""
    begun = time.perf_counter()
    figures = run_graph(graph, engine=engine, available_now=True)
    return figures["copy"].read / (time.perf_counter() - begun)


def _latencies(client: Client, graph: Graph, steps: int, engine: str) -> list[float]:
    """Append one message at a time, and wait until its output is read."""
    source, out = client.stream(_IN), client.stream(_OUT)
    client.group(f"{graph.id}/copy").set({_IN: source.head().next_offset})
    numbers = count()
    with Runner(graph, engine=engine), out.tail(offset="now") as tail:

        def once() -> None:
            source.append(next(numbers))
            next(tail)

        _timed(once, min(_WARM_STEPS, steps))
        return _timed(once, steps)


def _timed(call: Callable[[], None], times: int) -> list[float]:
    found = []
    for _ in range(times):
        before = time.perf_counter()
        call()
        found.append(time.perf_counter() - before)
    return found
