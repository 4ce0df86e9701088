"""A stream with 100,000 aborted transactions: reading it, starting on it, finding its end."""

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from typing import Final

from semel.cli.benchmarks.bed import Bed, create_streams
from semel.cli.benchmarks.catchup import read_all
from semel.cli.benchmarks.figures import Figure, Target, at_most, middle, ratio_at_most
from semel.cli.benchmarks.load import Round, drive
from semel.cli.benchmarks.options import Options, scratch
from semel.cli.benchmarks.peers import semel_server
from semel.cli.benchmarks.processes import Process
from semel.cli.benchmarks.requests import (
    BYTES,
    BadAnswer,
    Source,
    get,
    head,
    http_answer_bytes,
    limited,
    post,
    stream_url,
)
from semel.cli.benchmarks.staged import Growth
from semel.cli.benchmarks.turns import Side, take_turns
from semel.cli.benchmarks.txn_requests import Calls

_MANY: Final = 100_000
_FEW: Final = 100
_CONNECTIONS: Final = 50
_BODY: Final = bytes(range(100))
_LONG: Final = "long"
_SHORT: Final = "short"
_COMMITTED: Final = "isolation=read_committed"


async def run(bed: Bed) -> list[Figure]:
    """Measure."""
    options = bed.options
    many = max(options.scaled(_MANY), 2 * _FEW)
    with scratch(options) as folder:
        with semel_server(f"{folder}/semel") as semel:
            empty = semel.memory_kib
            await create_streams(semel, [_LONG, _SHORT], BYTES)
            filling = Growth(semel)
            filled_s = await filling.watch(_fill(semel, _LONG, many))
            await _fill(semel, _SHORT, _FEW)
        began = time.perf_counter()
        with semel_server(f"{folder}/semel") as semel:
            started_s = time.perf_counter() - began
            restarted = (semel.memory_kib - empty) * 1024 / 1e6
            reading = Growth(semel)
            read_s = await reading.watch(_read(semel))
            looks = await _look(semel, options)
    size = f"{many:,} aborted"
    return [
        _figure(f"memory after a restart, {size}", restarted, "MB", at_most(100)),
        _figure("memory growth while they are written", filling.mb, "MB"),
        _figure("memory growth while they are read", reading.mb, "MB"),
        _figure("start", started_s, "s"),
        _figure("read at read_committed, from start to end", read_s * 1e3, "ms"),
        _figure("transactions begun, written and aborted", many / filled_s, "transactions/s"),
        *_compare("HEAD", looks, many),
        *_compare("read at the end", looks, many),
    ]


async def _fill(process: Process, stream: str, count: int) -> float:
    """Put one message before and one behind so many aborted transactions; how long that took."""
    plain = post(stream, BYTES, _BODY)
    began = time.perf_counter()
    await drive(process, [limited(iter([plain]))])
    shares = [count // _CONNECTIONS] * _CONNECTIONS
    names = [f"{stream}-{index}" for index in range(_CONNECTIONS)]
    sources = [
        limited(_aborts(Calls(name, stream), n)) for name, n in zip(names, shares, strict=True)
    ]
    await drive(process, sources)
    await drive(process, [limited(iter([plain]))])
    return time.perf_counter() - began


def _aborts(calls: Calls, count: int) -> Iterator[bytes]:
    for epoch in range(1, count + 1):
        yield calls.begin()
        yield calls.publish(epoch, _BODY)
        yield calls.end(epoch, "abort")


async def _read(process: Process) -> float:
    """Read all that is committed: two messages; how long that took."""
    found = asyncio.to_thread(read_all, process.port, _LONG, (), f"&{_COMMITTED}")
    total, seconds = await found
    if total != 2 * len(_BODY):
        raise BadAnswer(f"{total} bytes are committed, not {2 * len(_BODY)}")
    return seconds


async def _look(process: Process, options: Options) -> dict[str, list[float]]:
    """Find the end of both streams in turns; the middle of how long it took."""
    sides: dict[str, Side[Round]] = {}
    for stream in (_LONG, _SHORT):
        for what, source, size in (
            ("HEAD", _again(head("HEAD", stream_url(stream)) + b"\r\n"), _head_bytes),
            (
                "read at the end",
                _again(get(f"{stream_url(stream)}?offset=now&{_COMMITTED}")),
                http_answer_bytes,
            ),
        ):
            sides[f"{what}, {stream}"] = partial(
                drive,
                process,
                [source],
                seconds=options.round_seconds / 3,
                warm_seconds=options.round_seconds / 15,
                answer_bytes=size,
            )
    found = await take_turns(sides, 3 * options.rounds)
    return {name: [middle(each.latencies) for each in rounds] for name, rounds in found.items()}


def _again(request: bytes) -> Source:
    return lambda: request


def _head_bytes(data: bytes) -> int:
    """Tell where an answer without a body ends."""
    return data.find(b"\r\n\r\n") + 4 if b"\r\n\r\n" in data else 0


def _compare(what: str, looks: dict[str, list[float]], many: int) -> list[Figure]:
    long, short = (middle(looks[f"{what}, {name}"]) * 1e6 for name in (_LONG, _SHORT))
    ratio = long / short if short else None
    return [
        _figure(f"{what}, p50, {many:,} decided", long, "us", ratio_at_most(1.2), ratio),
        _figure(f"{what}, p50, {_FEW} decided", short, "us"),
    ]


def _figure(
    name: str, value: float, unit: str, target: Target | None = None, ratio: float | None = None
) -> Figure:
    beside = "" if ratio is None else f"{_FEW} decided"
    return Figure(
        work="aborted", name=name, value=value, unit=unit, target=target, ratio=ratio, beside=beside
    )
