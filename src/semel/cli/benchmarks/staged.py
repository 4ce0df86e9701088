"""A staged transaction of 2 GiB: what the server holds of it, and what its neighbours notice."""

import asyncio
import time
from collections.abc import Awaitable, Iterator
from typing import Final, TypeVar

from semel.cli.benchmarks.bed import Bed, create_streams
from semel.cli.benchmarks.bodies import large_bytes
from semel.cli.benchmarks.figures import Figure, at_most, percentile
from semel.cli.benchmarks.load import drive
from semel.cli.benchmarks.neighbour import NEIGHBOUR, append_during
from semel.cli.benchmarks.options import Options, scratch
from semel.cli.benchmarks.peers import semel_server
from semel.cli.benchmarks.processes import Process
from semel.cli.benchmarks.requests import BYTES, limited
from semel.cli.benchmarks.txn_requests import Calls
from semel.model.limits import GIB, MIB

_BYTES: Final = 2 * GIB
_STREAM: Final = "staged"
_LOOK_SECONDS: Final = 0.05

T = TypeVar("T")


class Growth:
    """The most memory a server has held since we looked first."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._before = self._most = process.memory_kib

    def look(self) -> None:
        """Look again."""
        self._most = max(self._most, self._process.memory_kib)

    @property
    def mb(self) -> float:
        """How much more it was at most."""
        return (self._most - self._before) * 1024 / 1e6

    async def watch(self, work: Awaitable[T]) -> T:
        """Look while something is done."""
        task = asyncio.ensure_future(work)
        while not (await asyncio.wait([task], timeout=_LOOK_SECONDS))[0]:
            self.look()
        self.look()
        return task.result()


async def run(bed: Bed) -> list[Figure]:
    """Measure."""
    options = bed.options
    chunks = options.scaled(_BYTES // MIB)
    with scratch(options) as folder, semel_server(f"{folder}/semel") as semel:
        await create_streams(semel, [_STREAM, NEIGHBOUR], BYTES)
        idle = await _append_for(semel, options)
        growth, calls = Growth(semel), Calls(_STREAM, _STREAM)
        staging = drive(semel, [limited(_staging(calls, chunks))])
        began = time.perf_counter()
        meanwhile = await append_during(semel, growth.watch(staging))
        staged_s = time.perf_counter() - began
        began = time.perf_counter()
        committing = drive(semel, [limited(iter([calls.end(1, "commit")]))])
        during_commit = await append_during(semel, growth.watch(committing))
        commit_s = time.perf_counter() - began
    size = f"{chunks:,} MiB"
    p99 = percentile(meanwhile, 99)
    rest = percentile(idle, 99)
    return [
        Figure(
            work="staged",
            name=f"memory growth, {size}",
            value=growth.mb,
            unit="MB",
            target=at_most(200),
        ),
        _figure(f"staging of {size}", chunks * MIB / 1e6 / staged_s, "MB/s"),
        _figure("commit", commit_s * 1e3, "ms"),
        Figure(
            work="staged",
            name="another's append, p99, meanwhile",
            value=p99 * 1e3,
            unit="ms",
            ratio=p99 / rest if rest else None,
            beside="idle",
        ),
        _figure("another's append, longest, meanwhile", max(meanwhile) * 1e3, "ms"),
        _figure("another's append, longest, around the commit", max(during_commit) * 1e3, "ms"),
        _figure("another's append, p99, idle", rest * 1e3, "ms"),
    ]


def _staging(calls: Calls, chunks: int) -> Iterator[bytes]:
    body = large_bytes()
    yield calls.begin("staged")
    for seq in range(chunks):
        yield calls.stage(1, seq, body)


async def _append_for(process: Process, options: Options) -> list[float]:
    return await append_during(process, asyncio.sleep(options.round_seconds))


def _figure(name: str, value: float, unit: str) -> Figure:
    return Figure(work="staged", name=name, value=value, unit=unit)
