"""The rates at which Spark reads and writes streams, compared with Spark's own text source.

To measure a rate, a streaming query processes the stored rows in one batch. The rate is computed
from the duration that Spark reports. This duration includes planning and the Spark checkpoint.

CPU time is measured over the whole query, including its start.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from importlib.util import find_spec
from operator import sub
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from semel.model.limits import BATCH_MESSAGES_MAX
from semel.version import install_advice
from semel_bench.harness import (
    Figure,
    Harness,
    Side,
    Target,
    Unavailable,
    at_least,
    at_most,
    interleave,
    median,
    percentile,
    ratio,
    ratio_at_least,
)
from semel_bench.load import BACKGROUND, append_during, create_streams, drive
from semel_bench.requests import BYTES, JSON, limited, post
from semel_bench.servers import Process, cpu_seconds_below, cpu_seconds_of, semel_server

if TYPE_CHECKING:
    from semel_bench.spark_queries import SparkQueries

_SMALL_ROWS: Final = 100
_STREAM: Final = "rows"
_SMALL: Final = "few-rows"
# The command line of Spark's Python workers contains this. The workers run until the Spark session
# ends. The process that reads offsets is not counted, because it ends with its query.
_WORKERS: Final = b"pyspark.daemon"

_TEXT: Final = "text file to noop"
_READ: Final = "source to noop"
_DECODE: Final = "source to noop, decoded into 7 columns"
_COPY: Final = "source to sink"
_EMPTY: Final = "nothing"

Query = Callable[["SparkQueries"], list[float]]


class Run(Struct, frozen=True):
    """A query's cost in seconds: its batch durations and the CPU time of Java, Python and semel."""

    batches: list[float]
    java_s: float
    python_s: float
    server_s: float

    @property
    def seconds(self) -> float:
        """The total duration of all batches, in seconds."""
        return sum(self.batches)


async def measure_spark(harness: Harness) -> list[Figure]:
    """Measure Spark on two cores with a million rows of 200 bytes.

    The benchmark is skipped if Spark is not installed.
    """
    figures: list[Figure] = []
    with harness.optional():
        if find_spec("pyspark") is None or find_spec("pyarrow") is None:
            raise Unavailable("Spark is not installed; " + install_advice("'.[spark]'"))
        figures = await _measure(harness)
    return figures


async def _measure(harness: Harness) -> list[Figure]:
    options = harness.options
    count, batches = options.scaled(1_000_000), options.scaled(30)
    load = os.getloadavg()[0]
    with harness.scratch() as folder, semel_server(folder) as semel:
        text = f"{folder}/text"
        _write_file(text, count)
        await _append_rows(semel, _STREAM, count)
        await _append_rows(semel, _SMALL, _SMALL_ROWS * batches)
        await create_streams(semel, [BACKGROUND], BYTES)
        async with _spark(semel, folder) as spark:
            rounds = options.pick(3, 1)
            runs = await interleave(
                {
                    _TEXT: spark.side(lambda queries: queries.text_to_noop(text)),
                    _READ: spark.side(_read),
                    _DECODE: spark.side(lambda queries: queries.decode_to_noop(_STREAM)),
                    _COPY: spark.side(_copy),
                },
                rounds,
                warm_rounds=options.pick(4, 1),  # the JVM gets faster, as it compiles code
            )
            small = await interleave(
                {
                    _EMPTY: spark.side(lambda queries: queries.empty(_SMALL_ROWS, batches)),
                    _COPY: spark.side(lambda queries: queries.copy(_SMALL, _SMALL_ROWS)),
                },
                rounds,
            )
            _, idle = await append_during(semel, asyncio.sleep(options.round_seconds))
            meanwhile = {
                name: (await append_during(semel, spark.run(query)))[1]
                for name, query in ((_READ, _read), (_COPY, _copy))
            }
    best = {name: min(each, key=lambda run: run.seconds) for name, each in runs.items()}
    return [
        *_rates(best, count),
        *_small_batches(small),
        *_background_appends(idle, meanwhile),
        *_cpu_times(best, count),
        Figure("load average before", load, ""),
    ]


def _read(queries: "SparkQueries") -> list[float]:
    return queries.read_to_noop(_STREAM)


def _copy(queries: "SparkQueries") -> list[float]:
    return queries.copy(_STREAM)


# ---- the rows: JSON of about 200 bytes -----------------------------------------------------------


def _rows(count: int) -> Iterator[list[bytes]]:
    """Yield `count` rows of seven fields each, in lists that each fit into one append."""
    for first in range(0, count, BATCH_MESSAGES_MAX):
        yield list(map(_row, range(first, min(first + BATCH_MESSAGES_MAX, count))))


def _row(number: int) -> bytes:
    return (
        b'{"id":%d,"customer":"customer-%05d","amount":%d.%02d,"currency":"EUR","is_paid":%b,'
        b'"placed_at":"2026-01-%02dT%02d:%02d:00Z","note":"%b"}'
        % (
            *(number, number * 7919 % 100_000, number % 900, number % 100),
            *(b"true" if number % 3 else b"false", number % 28 + 1, number % 24, number % 60),
            b"an order as orders are, with a few words about where to leave it",
        )
    )


def _write_file(directory: str, count: int) -> None:
    """Write the rows to a file in a new directory, one row per line."""
    os.mkdir(directory)
    with open(f"{directory}/rows.json", "wb") as file:
        for lines in _rows(count):
            file.write(b"".join(line + b"\n" for line in lines))


async def _append_rows(process: Process, name: str, count: int) -> None:
    """Create a JSON stream and append the rows to it."""
    await create_streams(process, [name], JSON)
    bodies = (b"[" + b",".join(lines) + b"]" for lines in _rows(count))
    await drive(process, [limited(post(name, JSON, body) for body in bodies)])


# ---- running queries -----------------------------------------------------------------------------


class _Spark(Struct, frozen=True):
    """Runs queries in a separate thread, and measures the CPU time of each query."""

    semel: Process
    queries: "SparkQueries"
    thread: Executor

    def side(self, query: Query) -> Side[Run]:
        """Return a function that runs the query, to be passed to `interleave`."""
        return partial(self.run, query)

    async def run(self, query: Query) -> Run:
        """Run a query to its end and return its cost."""
        loop = asyncio.get_running_loop()
        before = self._clocks()
        batches = await loop.run_in_executor(self.thread, query, self.queries)
        java_s, python_s, server_s = map(sub, self._clocks(), before)
        return Run(batches, java_s, python_s, server_s)

    def _clocks(self) -> tuple[float, float, float]:
        java = self.queries.java_pid
        python_s = cpu_seconds_below(java, _WORKERS)
        return cpu_seconds_of(java), python_s, self.semel.cpu_seconds


@asynccontextmanager
async def _spark(semel: Process, folder: str) -> AsyncIterator[_Spark]:
    """Run Spark during the block.

    Spark has its own thread, because a session can be used only in the thread that created it.
    """
    from semel_bench.spark_queries import start

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1, "semel-spark") as thread:
        queries = await loop.run_in_executor(thread, start, semel.url, Path(folder))
        try:
            yield _Spark(semel, queries, thread)
        finally:
            await loop.run_in_executor(thread, queries.stop)


# ---- figures -------------------------------------------------------------------------------------


def _rates(best: dict[str, Run], count: int) -> list[Figure]:
    rate = {name: count / each.seconds for name, each in best.items()}

    def compared(name: str, target: Target, label: str = "") -> Figure:
        ratio_to_text = rate[name] / rate[_TEXT]
        return Figure(label or name, rate[name], "rows/s", target, ratio_to_text, "text")

    return [
        Figure(_TEXT, rate[_TEXT], "rows/s"),
        compared(_READ, at_least(1_200_000)),
        compared(_READ, ratio_at_least(0.6), f"{_READ}, ratio to text"),
        compared(_DECODE, at_least(500_000)),
        compared(_COPY, at_least(500_000)),
    ]


def _small_batches(runs: dict[str, list[Run]]) -> list[Figure]:
    ours, empty = _batch_ms(runs[_COPY]), _batch_ms(runs[_EMPTY])
    return [
        Figure("100-row batch, additional time for semel", ours - empty, "ms", at_most(60)),
        Figure("100-row batch, from semel source to semel sink", ours, "ms"),
        Figure("100-row batch, source and sink that do no work", empty, "ms"),
    ]


def _batch_ms(runs: Sequence[Run]) -> float:
    """Return the median duration of a batch, in milliseconds.

    The first quarter of each run's batches is not counted, because these batches are slower.
    """
    counted = (each.batches[len(each.batches) // 4 :] for each in runs)
    return median([seconds for batches in counted for seconds in batches]) * 1e3


def _background_appends(idle: list[float], meanwhile: dict[str, list[float]]) -> list[Figure]:
    rest = percentile(idle, 99)
    figures = [Figure("another client's append, p99, no query", rest * 1e3, "ms")]
    for name, latencies in meanwhile.items():
        p99 = percentile(latencies, 99)
        compared = (None, ratio(p99, rest), "idle")
        figures.append(Figure(f"another client's append, p99, {name}", p99 * 1e3, "ms", *compared))
    return figures


def _cpu_times(best: dict[str, Run], count: int) -> list[Figure]:
    return [
        Figure(f"{name}, CPU of {process}", seconds / count * 1e6, "us/row")
        for name, run in best.items()
        for process, seconds in (
            ("JVM", run.java_s),
            ("workers", run.python_s),
            ("server", run.server_s),
        )
        if name != _TEXT or process == "JVM"
    ]
