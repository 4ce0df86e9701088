"""Does a checkpoint hold the loop up? A ticker beside a steady load, with and without checkpoints.

Every stream is written to before each checkpoint, so every tail and an index chunk of every stream
is dirty. During every second checkpoint appends come one by one, which the engine may write on the
loop. A gap is how much later than its period a tick came; the load's own bursts are in it. The net
gap leaves out what any thread of this process spent waiting for a core: on a busy machine the truth
lies between the two.
"""

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import uvloop
from msgspec import Struct, field

from bench.bed import Workload, workload
from bench.core_waits import CoreWaits
from bench.options import Options, scratch
from bench.report import Figure, middle, percentile
from bench.submitters import create_streams
from bench.timing import Times, timed
from semel.broker.engine import Engine
from semel.broker.settings import Settings
from semel.model.limits import MIB
from semel.model.outcomes import Appended, Outcome

_TICK_S = 0.001
_PUMP_S = 0.002
_APPEND_BYTES = 256
_NEVER_MS = 10**9
_AFTER_S = 0.5


class Gaps(Struct):
    """Seconds by which ticks were late, as seen and net of waiting for a core."""

    seen: list[float] = field(default_factory=list)
    net: list[float] = field(default_factory=list)

    def add(self, gap_s: float, waited_s: float) -> None:
        self.seen.append(max(gap_s, 0.0))
        self.net.append(max(gap_s - waited_s, 0.0))


def run(options: Options) -> list[Figure]:
    checkpoints, per_second = (2, 2_000) if options.is_quick else (6, 10_000)
    with scratch(options) as path, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = runner.run(
            _stall(str(path), options.streams, checkpoints=checkpoints, per_second=per_second)
        )
    gc.unfreeze()
    return figures


async def _stall(path: str, streams: int, *, checkpoints: int, per_second: int) -> list[Figure]:
    # The segment is never full: no checkpoint begins but those asked for.
    segment_bytes = 16 * MIB + (checkpoints + 1) * streams * 4 * _APPEND_BYTES
    engine = await Engine.open(path, Settings(segment_bytes, 0, _NEVER_MS))
    await create_streams(engine, streams)
    pump = Pump(engine, workload(streams, _APPEND_BYTES, is_tagged=False), per_second)
    durations: list[float] = []
    with timed(_parts(engine)) as parts, _collections(parts):
        ticker = Ticker(lambda: _is_in_checkpoint(parts), pump)
        tasks = [asyncio.create_task(pump.run()), asyncio.create_task(ticker.run())]
        for index in range(checkpoints):
            await pump.until(pump.submitted + streams)
            pump.is_trickling = index % 2 == 1
            durations.append(await _checkpoint(engine, parts))
            # Half a second for what follows a checkpoint, which the ticker counts to it.
            await asyncio.sleep(_AFTER_S)
            pump.is_trickling = False
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await engine.settle()
    await engine.close()
    return _figures(streams, ticker, durations, parts)


def _parts(engine: Engine) -> dict[str, tuple[object, str]]:
    """What the loop's thread does for a checkpoint, and what else may hold it up."""
    return {
        "cut()": (engine.broker, "cut"),
        "cut_done()": (engine.broker, "cut_done"),
        "end of a cut": (engine, "_cut_over"),
        "write on the loop": (engine, "_write_here"),
        "answers of a group": (engine.broker, "written"),
    }


def _is_in_checkpoint(parts: Times) -> bool:
    return len(parts["cut()"]) > len(parts["cut_done()"])


async def _checkpoint(engine: Engine, parts: Times) -> float:
    """Ask for a checkpoint and wait for it; answers how long it took."""
    began = time.perf_counter()
    engine.checkpoint()
    while _is_in_checkpoint(parts):  # noqa: ASYNC110 - the engine tells nobody that it is over
        await asyncio.sleep(_TICK_S)
    return time.perf_counter() - began


@contextmanager
def _collections(parts: Times) -> Iterator[None]:
    """Time the garbage collector too; it may run on any thread but holds all of them."""
    parts["full collection"] = []
    began = 0.0

    def note(phase: str, info: Mapping[str, int]) -> None:
        nonlocal began
        if info["generation"] == 2 and phase == "start":
            began = time.perf_counter()
        elif info["generation"] == 2:
            parts["full collection"].append(time.perf_counter() - began)

    gc.callbacks.append(note)
    yield
    gc.callbacks.remove(note)


class Pump:
    """A steady load, or a trickle of lone appends."""

    def __init__(self, engine: Engine, work: Workload, per_second: int) -> None:
        self._engine = engine
        self._work = work
        self._per_second = per_second
        self.submitted = 0
        self.is_trickling = False

    async def run(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(_PUMP_S)
            # What a stall held up is not made up for: that would be a burst of our own making.
            elapsed_s = min(time.perf_counter() - began, 5 * _PUMP_S)
            count = 1 if self.is_trickling else int(elapsed_s * self._per_second)
            for command in self._work(self.submitted, count):
                self._engine.submit(command, _check)
                self.submitted += 1

    async def until(self, submitted: int) -> None:
        while self.submitted < submitted:  # noqa: ASYNC110 - the pump stays free of other duties
            await asyncio.sleep(0.01)


def _check(outcome: Outcome) -> None:
    assert isinstance(outcome, Appended)


class Ticker:
    """Wakes every millisecond and notes how late it is."""

    def __init__(self, is_in_checkpoint: Callable[[], bool], pump: Pump) -> None:
        self.quiet = Gaps()
        self.steady = Gaps()
        self.trickle = Gaps()
        self._is_in_checkpoint = is_in_checkpoint
        self._pump = pump

    async def run(self) -> None:
        last = seen_in = time.perf_counter()
        waits = CoreWaits()
        while True:
            await asyncio.sleep(_TICK_S)
            now = time.perf_counter()
            if self._is_in_checkpoint():
                seen_in = now
            gaps = self._phase(last - seen_in < _AFTER_S)
            gaps.add(now - last - _TICK_S, waits.since_last())
            last = now

    def _phase(self, is_near_checkpoint: bool) -> Gaps:
        if not is_near_checkpoint:
            return self.quiet
        return self.trickle if self._pump.is_trickling else self.steady


def _figures(streams: int, ticker: Ticker, durations: list[float], parts: Times) -> list[Figure]:
    return [
        Figure("streams, all dirty", streams, ""),
        Figure("checkpoint duration", middle(durations), "s"),
        *_gaps("gap without checkpoint", ticker.quiet),
        *_gaps("gap during checkpoint", ticker.steady, "<= 20"),
        *_gaps("gap during checkpoint, lone appends", ticker.trickle, "<= 20"),
        *(Figure(f"{k} max", max(v, default=0.0) * 1e3, "ms") for k, v in parts.items()),
    ]


def _gaps(name: str, gaps: Gaps, target: str = "") -> list[Figure]:
    return [
        Figure(f"{name} p50", percentile(gaps.seen, 50) * 1e3, "ms"),
        Figure(f"{name} p99", percentile(gaps.seen, 99) * 1e3, "ms"),
        Figure(f"{name} max", max(gaps.seen, default=0.0) * 1e3, "ms", target),
        Figure(f"{name} max, net", max(gaps.net, default=0.0) * 1e3, "ms", target),
    ]
