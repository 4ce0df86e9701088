"""A pipeline inside this process: messages per second through one processor, and one at a time."""

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
from semel.cli.benchmarks.peers import semel_server
from semel.cli.benchmarks.requests import JSON
from semel.client.client import Client
from semel.pipeline.graph import Graph
from semel.pipeline.runner import Runner
from semel.pipeline.runner import run as run_graph

_MESSAGES: Final = 200_000
_STEPS: Final = 300
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
        rates, latencies = await asyncio.to_thread(
            _measure, semel.url, options.rounds, messages, steps
        )
    return [
        Figure(work="pipeline", name="messages, local", value=middle(rates), unit="/s"),
        Figure(work="pipeline", name="p50 of a step, local", value=_ms(latencies, 50), unit="ms"),
        Figure(work="pipeline", name="p99 of a step, local", value=_ms(latencies, 99), unit="ms"),
    ]


def _ms(latencies: Sequence[float], percent: float) -> float:
    return percentile(latencies, percent) * 1e3


def _measure(url: str, rounds: int, messages: int, steps: int) -> tuple[list[float], list[float]]:
    with Client(url) as client:
        rates = [_rate(client, url, number, messages) for number in range(rounds)]
        return rates, _latencies(client, url, steps)


def _graph(url: str, number: int) -> Graph:
    """A processor of its own for every round: it begins where the streams begin."""
    graph = Graph(f"bench-{number}", url=url)

    @graph.stream("copy", in_=_IN, out=_OUT)
    def copy(message: Any) -> Any:
        return message

    return graph


def _rate(client: Client, url: str, number: int, messages: int) -> float:
    """Process messages that are there; each round has as many."""
    if number == 0:
        values = small_values(messages)
        with client.stream(_IN).producer("bench") as producer:
            for value in values:
                producer.append(value)
    begun = time.perf_counter()
    figures = run_graph(_graph(url, number), available_now=True)
    return figures["copy"].read / (time.perf_counter() - begun)


def _latencies(client: Client, url: str, steps: int) -> list[float]:
    """Append one message at a time, and wait until its output is read."""
    graph = _graph(url, 1_000_000)
    source, out = client.stream(_IN), client.stream(_OUT)
    client.group(f"{graph.id}/copy").set({_IN: source.head().next_offset})
    numbers = count()
    with Runner(graph), out.tail(offset="now") as tail:

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
