"""One append at a time through our clients, beside a socket that is written and read by hand."""

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

from semel.cli.benchmarks.bed import Bed, create_streams
from semel.cli.benchmarks.figures import Figure, middle, percentile
from semel.cli.benchmarks.options import scratch
from semel.cli.benchmarks.peers import semel_server
from semel.cli.benchmarks.processes import HOST, Process
from semel.cli.benchmarks.requests import BYTES, http_answer_bytes, post
from semel.cli.benchmarks.turns import Side, take_turns
from semel.client.aio.client import AsyncClient
from semel.client.sync.client import Client

_BODY: Final = bytes(range(256))
_STREAM: Final = "client"
_WARM_SHARE: Final = 0.2

_RAW: Final = "raw socket"
_SYNC: Final = "Client"
_ASYNC: Final = "AsyncClient"

Latencies = list[float]


async def run(bed: Bed) -> list[Figure]:
    """Measure."""
    options = bed.options
    seconds = options.round_seconds / 3
    with scratch(options) as folder, ExitStack() as stack:
        semel = stack.enter_context(semel_server(f"{folder}/semel"))
        await create_streams(semel, [_STREAM], BYTES)
        sides: dict[str, Side[Latencies]] = {
            _RAW: partial(asyncio.to_thread, _by_hand, semel, seconds),
            _SYNC: partial(asyncio.to_thread, _by_client, semel, seconds),
            _ASYNC: partial(_by_async_client, semel, seconds),
        }
        # Many short rounds: what is compared must meet the same disk.
        found = await take_turns(sides, 3 * options.rounds)
    raw = _middle_of(found[_RAW], 50)
    return [figure for name, rounds in found.items() for figure in _figures(name, rounds, raw)]


def _by_hand(process: Process, seconds: float) -> Latencies:
    request = post(_STREAM, BYTES, _BODY)
    with socket.create_connection((HOST, process.port)) as line:

        def append() -> None:
            line.sendall(request)
            data = line.recv(4096)
            while not http_answer_bytes(data):
                data += line.recv(4096)

        return _timed(append, seconds)


def _by_client(process: Process, seconds: float) -> Latencies:
    with Client(process.url) as client:
        stream = client.stream(_STREAM)
        return _timed(lambda: stream.append(_BODY), seconds)


def _timed(append: Callable[[], object], seconds: float) -> Latencies:
    """Append again and again; what the first ones took does not count."""
    found: Latencies = []
    began = now = time.perf_counter()
    while now - began < seconds * (1 + _WARM_SHARE):
        append()
        before, now = now, time.perf_counter()
        if before - began > seconds * _WARM_SHARE:
            found.append(now - before)
    return found


async def _by_async_client(process: Process, seconds: float) -> Latencies:
    found: Latencies = []
    async with AsyncClient(process.url) as client:
        stream = client.stream(_STREAM)
        began = now = time.perf_counter()
        while now - began < seconds * (1 + _WARM_SHARE):
            await stream.append(_BODY)
            before, now = now, time.perf_counter()
            if before - began > seconds * _WARM_SHARE:
                found.append(now - before)
    return found


def _figures(name: str, rounds: Sequence[Latencies], raw: float) -> list[Figure]:
    p50 = _middle_of(rounds, 50)
    return [
        Figure(
            work="client",
            name=f"p50, {name}",
            value=p50,
            unit="us",
            ratio=None if name == _RAW else p50 / raw,
            beside="" if name == _RAW else _RAW,
        ),
        Figure(work="client", name=f"p99, {name}", value=_middle_of(rounds, 99), unit="us"),
    ]


def _middle_of(rounds: Sequence[Latencies], percent: float) -> float:
    return middle([percentile(each, percent) for each in rounds]) * 1e6
