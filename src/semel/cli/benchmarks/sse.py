"""1000 readers of one event stream, 50 events a second: how long an event is on its way."""

import asyncio
import re
import time
from typing import Final

from msgspec import Struct

from semel.cli.benchmarks.bed import Bed, create_streams
from semel.cli.benchmarks.figures import Figure, at_most, middle, percentile
from semel.cli.benchmarks.options import Options, scratch
from semel.cli.benchmarks.peers import semel_server
from semel.cli.benchmarks.processes import HOST, Process
from semel.cli.benchmarks.readers import EventReader, close_readers, connect_readers
from semel.cli.benchmarks.requests import JSON, post

_READERS: Final = 1_000
_EVENTS_PER_SECOND: Final = 50
_STREAM: Final = "events"
_NUMBER: Final = re.compile(rb'"n": ?([0-9]+)')
_SETTLE_SECONDS: Final = 1.0
_PAD: Final = b"x" * 100
_C: Final = "cores"


class Delivery(Struct, frozen=True):
    """What one round found."""

    latencies: list[float]
    missing: int
    server_share: float
    client_share: float


async def run(bed: Bed) -> list[Figure]:
    """Measure."""
    options = bed.options
    count = options.scaled(_READERS)
    with scratch(options) as folder, semel_server(f"{folder}/semel") as semel:
        await create_streams(semel, [_STREAM], JSON)
        found = [await _round(semel, options, count) for _ in range(options.rounds)]
    p50, p99 = (
        middle([percentile(each.latencies, percent) for each in found]) * 1e3
        for percent in (50, 99)
    )
    name = f"{count:,} readers, {_EVENTS_PER_SECOND} events/s"
    return [
        Figure(work="sse", name=f"p99, {name}", value=p99, unit="ms", target=at_most(10)),
        Figure(work="sse", name="p50", value=p50, unit="ms"),
        Figure(work="sse", name="not delivered", value=sum(x.missing for x in found), unit=""),
        Figure(work="sse", name="server", value=middle([x.server_share for x in found]), unit=_C),
        Figure(work="sse", name="client", value=middle([x.client_share for x in found]), unit=_C),
    ]


async def _round(process: Process, options: Options, count: int) -> Delivery:
    readers = await connect_readers(process, _STREAM, count)
    for reader in readers:
        reader.arrived = []
    wall, server, client = time.perf_counter(), process.cpu_seconds, time.process_time()
    sent = await _send_events(process, round(_EVENTS_PER_SECOND * options.round_seconds))
    seconds = time.perf_counter() - wall
    server, client = process.cpu_seconds - server, time.process_time() - client
    await asyncio.sleep(_SETTLE_SECONDS)
    latencies = _latencies(readers, sent)
    missing = len(readers) * len(sent) - len(latencies)
    await close_readers(readers)
    return Delivery(latencies, missing, server / seconds, client / seconds)


async def _send_events(process: Process, count: int) -> list[float]:
    """Append one event after another at their times; when each was sent."""
    answers, line = await asyncio.open_connection(HOST, process.port)
    reading = asyncio.create_task(answers.read())  # nobody waits for them
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


def _latencies(readers: list[EventReader], sent: list[float]) -> list[float]:
    found = []
    for reader in readers:
        for at, data in reader.arrived or ():
            found += [at - sent[int(number)] for number in _NUMBER.findall(data)]
    return found
