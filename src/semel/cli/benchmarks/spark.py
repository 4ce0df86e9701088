"""Spark reads and writes streams: rows per second, beside its own source of text.

Every query is a stream that runs up to what is there now. Its rate is that of its one batch as
Spark times it, planning and checkpoint included. CPU time is that of the whole query, its start
included, of the JVM, the Python workers and the server.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from importlib.util import find_spec
from operator import sub
from pathlib import Path
from typing import TYPE_CHECKING, Final

from semel.cli.benchmarks.bed import Bed, create_streams
from semel.cli.benchmarks.figures import Figure
from semel.cli.benchmarks.neighbour import NEIGHBOUR, append_during
from semel.cli.benchmarks.options import Options, scratch
from semel.cli.benchmarks.peers import Missing, semel_server
from semel.cli.benchmarks.processes import Process
from semel.cli.benchmarks.requests import BYTES
from semel.cli.benchmarks.spark_figures import (
    COPY,
    DECODE,
    NOTHING,
    READ,
    TEXT,
    Run,
    appends,
    plain,
    processors,
    rates,
    small_batches,
)
from semel.cli.benchmarks.spark_rows import append_rows, write_file
from semel.cli.benchmarks.turns import Side, take_turns

if TYPE_CHECKING:
    from semel.cli.benchmarks.spark_queries import Lab

_ROWS: Final = 1_000_000
_ROUNDS: Final = 3
_WARM_ROUNDS: Final = 4
_SMALL_ROWS: Final = 100
_SMALL_BATCHES: Final = 30
_STREAM: Final = "rows"
_SMALL: Final = "few-rows"

Query = Callable[["Lab"], list[float]]


async def run(bed: Bed) -> list[Figure]:
    """Measure."""
    figures: list[Figure] = []
    with bed.optional():
        if find_spec("pyspark") is None or find_spec("pyarrow") is None:
            raise Missing("Spark: not installed; run: pip install 'semel[spark]'")
        figures = await _measure(bed)
    return figures


async def _measure(bed: Bed) -> list[Figure]:
    options = bed.options
    count, batches = options.scaled(_ROWS), options.scaled(_SMALL_BATCHES)
    load = os.getloadavg()[0]
    with scratch(options) as folder, semel_server(f"{folder}/semel") as semel:
        text = f"{folder}/text"
        write_file(text, count)
        await append_rows(semel, _STREAM, count)
        await append_rows(semel, _SMALL, _SMALL_ROWS * batches)
        await create_streams(semel, [NEIGHBOUR], BYTES)
        async with _spark(semel, folder) as spark:
            found = await _warm_turns(
                {
                    TEXT: spark.side(lambda lab: lab.text_to_noop(text)),
                    READ: spark.side(_read),
                    DECODE: spark.side(lambda lab: lab.decode_to_noop(_STREAM)),
                    COPY: spark.side(_copy),
                },
                options,
            )
            small = await take_turns(
                {
                    NOTHING: spark.side(lambda lab: lab.nothing(_SMALL_ROWS, batches)),
                    COPY: spark.side(lambda lab: lab.copy(_SMALL, _SMALL_ROWS)),
                },
                1 if options.is_quick else _ROUNDS,
            )
            idle = await append_during(semel, asyncio.sleep(options.round_seconds))
            reading = await append_during(semel, spark.run(_read))
            copying = await append_during(semel, spark.run(_copy))
    best = {name: min(runs, key=lambda each: each.seconds) for name, runs in found.items()}
    return [
        *rates(best, count),
        *small_batches(small),
        *appends(idle, reading, copying),
        *processors(best, count),
        plain("load average before", load, ""),
    ]


async def _warm_turns(sides: Mapping[str, Side[Run]], options: Options) -> dict[str, list[Run]]:
    """Take turns once the JVM has compiled what it will run, which takes a few."""
    if options.is_quick:
        return await take_turns(sides, 1)
    await take_turns(sides, _WARM_ROUNDS, is_warmed=False)
    return await take_turns(sides, _ROUNDS, is_warmed=False)


def _read(lab: "Lab") -> list[float]:
    return lab.read_to_noop(_STREAM)


def _copy(lab: "Lab") -> list[float]:
    return lab.copy(_STREAM)


class _Spark:
    """Runs queries in a thread of their own, and reads the clocks around each."""

    def __init__(self, semel: Process, lab: "Lab", thread: Executor) -> None:
        self._semel = semel
        self._lab = lab
        self._thread = thread

    def side(self, query: Query) -> Side[Run]:
        """Make something to take turns with."""
        return partial(self.run, query)

    async def run(self, query: Query) -> Run:
        """Run a query."""
        loop = asyncio.get_running_loop()
        before = self._clocks()
        batches = await loop.run_in_executor(self._thread, query, self._lab)
        java_s, python_s, server_s = map(sub, self._clocks(), before)
        return Run(batches, java_s, python_s, server_s)

    def _clocks(self) -> tuple[float, float, float]:
        return (*self._lab.cpu_seconds, self._semel.cpu_seconds)


@asynccontextmanager
async def _spark(semel: Process, folder: str) -> AsyncIterator[_Spark]:
    """Start Spark beside the event loop. It knows its session only in the thread that made it."""
    from semel.cli.benchmarks.spark_queries import start

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1, "semel-spark") as thread:
        lab = await loop.run_in_executor(thread, start, semel.url, Path(folder))
        try:
            yield _Spark(semel, lab, thread)
        finally:
            await loop.run_in_executor(thread, lab.stop)
