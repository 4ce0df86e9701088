"""Our producer over a long line: one batch in flight against five."""

import asyncio
import time
from contextlib import ExitStack
from functools import partial
from typing import Final

from semel.cli.benchmarks.bed import Bed, create_streams
from semel.cli.benchmarks.figures import Figure, middle, ratio_at_least
from semel.cli.benchmarks.options import scratch
from semel.cli.benchmarks.peers import semel_server
from semel.cli.benchmarks.requests import JSON
from semel.cli.benchmarks.turns import Side, take_turns
from semel.client.sync.client import Client
from semel.testing.fault_proxy import FaultProxy

_ROUND_TRIP_SECONDS: Final = 0.01
_LINE: Final = "10 ms round trip"
_BATCHES: Final = 250
_BATCHES_MIN: Final = 20
_STREAM: Final = "pipelined"


async def run(bed: Bed) -> list[Figure]:
    """Measure."""
    options = bed.options
    count = max(_BATCHES_MIN, options.scaled(_BATCHES))
    with scratch(options) as folder, ExitStack() as stack:
        semel = stack.enter_context(semel_server(f"{folder}/semel"))
        await create_streams(semel, [_STREAM], JSON)
        line = FaultProxy(semel.url, round_trip_seconds=_ROUND_TRIP_SECONDS)
        url = stack.enter_context(line).url
        sides: dict[str, Side[float]] = {
            "one": partial(asyncio.to_thread, _rate, url, 1, count),
            "five": partial(asyncio.to_thread, _rate, url, 5, count),
        }
        found = await take_turns(sides, options.rounds, is_warmed=not options.is_quick)
    one, five = middle(found["one"]), middle(found["five"])
    return [
        Figure(work="pipelined", name=f"one in flight, {_LINE}", value=one, unit="batches/s"),
        Figure(
            work="pipelined",
            name=f"five in flight, {_LINE}",
            value=five,
            unit="batches/s",
            ratio=five / one,
            beside="one",
            target=ratio_at_least(4.5),
        ),
    ]


def _rate(url: str, max_in_flight: int, count: int) -> float:
    """Send batches of one message; how many per second are stored."""
    with Client(url) as client:
        stream = client.stream(_STREAM)
        with stream.producer(
            f"in-flight-{max_in_flight}", max_in_flight=max_in_flight, max_batch_messages=1
        ) as producer:
            producer.append("connect")  # the first batch of a producer always goes alone
            producer.flush()
            began = time.perf_counter()
            for number in range(count):
                producer.append(number)
            producer.flush()
            return count / (time.perf_counter() - began)
