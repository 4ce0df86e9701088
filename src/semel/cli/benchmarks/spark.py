"""Spark reads and writes streams: rows per second, beside its own source of text.

Every query is a stream that runs up to what is there now. Its rate is that of its one batch as
Spark times it, planning and checkpoint included; CPU time is that of the whole query, its start
included.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from importlib.util import find_spec
from operator import sub
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from semel.cli.benchmarks.bed import Bed, create_streams
from semel.cli.benchmarks.figures import (
    Figure,
    Target,
    at_least,
    at_most,
    middle,
    percentile,
    ratio_at_least,
)
from semel.cli.benchmarks.neighbour import NEIGHBOUR, append_during
from semel.cli.benchmarks.options import scratch
from semel.cli.benchmarks.peers import Missing, semel_server
from semel.cli.benchmarks.processes import Process
from semel.cli.benchmarks.requests import BYTES
from semel.cli.benchmarks.spark_rows import append_rows, write_file
from semel.cli.benchmarks.turns import Side, take_turns

if TYPE_CHECKING:
    from semel.cli.benchmarks.spark_queries import Lab

_ROWS: Final = 1_000_000
_ROUNDS: Final = 3
_SMALL_ROWS: Final = 100
_SMALL_BATCHES: Final = 30
_WARM_SHARE: Final = 4  # one of so many small batches is not counted
_STREAM: Final = "rows"
_SMALL: Final = "few-rows"

_TEXT: Final = "text file to noop"
_READ: Final = "source to noop"
_DECODE: Final = "source to noop, as 7 columns"
_COPY: Final = "source to sink"


_NOTHING: Final = "nothing"

Query = Callable[["Lab"], list[float]]


class Run(Struct, frozen=True):
    """What one query took: of its batches, and of each one's processor."""

    batches: list[float]
    java_s: float
    python_s: float
    server_s: float

    @property
    def seconds(self) -> float:
        """All batches together."""
        return sum(self.batches)


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
            found = await take_turns(
                {
                    _TEXT: spark.side(lambda lab: lab.text_to_noop(text)),
                    _READ: spark.side(_read),
                    _DECODE: spark.side(lambda lab: lab.decode_to_noop(_STREAM)),
                    _COPY: spark.side(_copy),
                },
                1 if options.is_quick else _ROUNDS,
            )
            small = await take_turns(
                {
                    _NOTHING: spark.side(lambda lab: lab.nothing(_SMALL_ROWS, batches)),
                    _COPY: spark.side(lambda lab: lab.copy(_SMALL, _SMALL_ROWS)),
                },
                1 if options.is_quick else _ROUNDS,
            )
            idle = await append_during(semel, asyncio.sleep(options.round_seconds))
            reading = await append_during(semel, spark.run(_read))
            copying = await append_during(semel, spark.run(_copy))
    best = {name: min(runs, key=lambda each: each.seconds) for name, runs in found.items()}
    return [
        *_rates(best, count),
        *_small_figures(small),
        *_appends(idle, reading, copying),
        *_processors(best, count),
        _figure("load average before", load, ""),
    ]


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


# ---- figures -------------------------------------------------------------------------------------


def _rates(best: dict[str, Run], count: int) -> list[Figure]:
    rate = {name: count / each.seconds for name, each in best.items()}
    text = rate[_TEXT]

    def figure(name: str, target: Target, label: str = "") -> Figure:
        return Figure(
            work="spark",
            name=label or name,
            value=rate[name],
            unit="rows/s",
            ratio=rate[name] / text,
            beside="text",
            target=target,
        )

    return [
        _figure(_TEXT, text, "rows/s"),
        figure(_READ, at_least(1_200_000)),
        figure(_READ, ratio_at_least(0.6), f"{_READ}, beside text"),
        figure(_DECODE, at_least(500_000)),
        figure(_COPY, at_least(500_000)),
    ]


def _small_figures(found: dict[str, list[Run]]) -> list[Figure]:
    ours, nothing = _batch_ms(found[_COPY]), _batch_ms(found[_NOTHING])
    return [
        Figure(
            work="spark",
            name="a batch of 100 rows, over one of nothing",
            value=ours - nothing,
            unit="ms",
            target=at_most(60),
        ),
        _figure("a batch of 100 rows, source to sink", ours, "ms"),
        _figure("a batch of nothing, Python to Python", nothing, "ms"),
    ]


def _batch_ms(runs: Sequence[Run]) -> float:
    """Take the median of the batches; the first of each run are slower."""
    return (
        middle([s for each in runs for s in each.batches[len(each.batches) // _WARM_SHARE :]]) * 1e3
    )


def _appends(idle: list[float], reading: list[float], copying: list[float]) -> list[Figure]:
    rest = percentile(idle, 99)
    figures = [_figure("another's append, p99, idle", rest * 1e3, "ms")]
    for name, found in ((_READ, reading), (_COPY, copying)):
        p99 = percentile(found, 99)
        figures.append(
            Figure(
                work="spark",
                name=f"another's append, p99, {name}",
                value=p99 * 1e3,
                unit="ms",
                ratio=p99 / rest if rest else None,
                beside="idle",
            )
        )
    return figures


def _processors(best: dict[str, Run], count: int) -> list[Figure]:
    figures = []
    for name, each in best.items():
        for who, seconds in (
            ("JVM", each.java_s),
            ("Python", each.python_s),
            ("server", each.server_s),
        ):
            if name != _TEXT or who == "JVM":
                figures.append(_figure(f"{name}, CPU of {who}", seconds / count * 1e6, "us/row"))
    return figures


def _figure(name: str, value: float, unit: str) -> Figure:
    return Figure(work="spark", name=name, value=value, unit=unit)
