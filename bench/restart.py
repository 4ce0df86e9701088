"""Coming back: a directory with much history and many streams, after a kill and after a close.

One process builds the history and dies with appends in flight. The next one, with the kernel's
cache dropped, is timed while it opens, then reads, checks a sample and closes; a third opens again.
"""

import asyncio
import os
import sys
import time
from pathlib import Path

from msgspec import Struct

from bench.child import in_child
from bench.history import Extent, append_of, check, drop_from_cache, read, sampled
from bench.memory import Memory, memory_now
from bench.options import Options, scratch
from bench.report import Figure, middle, percentile
from bench.submitters import create_streams
from bench.timing import timed
from semel.broker import engine as engine_module
from semel.broker.engine import Engine
from semel.broker.settings import Settings
from semel.journal import recovery
from semel.journal.segments import segment_lsn
from semel.model.limits import MIB
from semel.model.outcomes import Outcome

_NEVER_MS = 10**9
# The worst tail is one segment: a checkpoint begins whenever the next one does.
_TAIL_SHARE = 0.8
_PHASES: dict[str, tuple[object, str]] = {
    "checkpoint": (recovery, "load"),
    "replay": (recovery, "_replay_tail"),
    "sync": (recovery, "_make_durable"),
    "broker": (engine_module, "Broker"),
}


class Reopened(Struct, frozen=True):
    """What one process saw."""

    open_s: float
    phases_s: dict[str, float]
    frames: int
    replayed_bytes: int
    before: Memory
    after: Memory
    reads_s: list[float]
    checked_messages: int


def run(options: Options) -> list[Figure]:
    sample = 50 if options.is_quick else 1_000
    with scratch(options) as path:
        data = str(path / "data")
        began = time.perf_counter()
        extent: Extent = in_child(build, data, options, is_killed=True)
        built_s = time.perf_counter() - began
        history_mib = _journal_bytes(path / "data") / MIB
        drop_from_cache(data)
        killed: Reopened = in_child(reopen, data, extent, sample)
        closed: Reopened = in_child(reopen, data, extent, sample)
    return [
        Figure("history", history_mib, "MiB"),
        Figure("streams", extent.streams, ""),
        Figure("appends", extent.acknowledged, ""),
        Figure("build", built_s, "s"),
        *_figures("after kill", killed, extent.streams),
        *_figures("after close", closed, extent.streams),
    ]


def _figures(name: str, found: Reopened, streams: int) -> list[Figure]:
    grown_kib = found.after.anonymous_kib - found.before.anonymous_kib
    return [
        Figure(f"{name}: open", found.open_s, "s", "<= 1 s + replay"),
        *(Figure(f"{name}: of which {k}", v, "s") for k, v in found.phases_s.items()),
        Figure(f"{name}: replayed", found.replayed_bytes / MIB, "MiB"),
        Figure(f"{name}: replayed frames", found.frames, ""),
        Figure(f"{name}: resident before open", found.before.resident_kib / 1024, "MiB"),
        Figure(f"{name}: resident after open", found.after.resident_kib / 1024, "MiB"),
        Figure(f"{name}: resident peak", found.after.peak_kib / 1024, "MiB"),
        Figure(f"{name}: memory per stream", grown_kib / streams, "KiB", "<= 1.2"),
        Figure(f"{name}: first read", found.reads_s[0] * 1e3, "ms"),
        Figure(f"{name}: read p50", middle(found.reads_s) * 1e3, "ms"),
        Figure(f"{name}: read p99", percentile(found.reads_s, 99) * 1e3, "ms"),
        Figure(f"{name}: messages checked", found.checked_messages, ""),
    ]


# ---- the first process ---------------------------------------------------------------------------


async def build(data: str, options: Options) -> Extent:
    """Write the history; checkpoints happen where the engine begins a segment."""
    settings = _settings(options)
    engine = await Engine.open(data, settings)
    await create_streams(engine, options.streams)
    builder = _Builder(engine, options)
    bytes_wanted = int(options.gib * 1024 * MIB)
    while engine.broker.end < bytes_wanted or builder.tail_bytes(data) < (
        settings.segment_bytes * _TAIL_SHARE
    ):
        await builder.some()
    # The last checkpoint is done; what comes now is on its way when the process ends.
    await engine.settle()
    await builder.begin_last()
    return builder.extent


def _settings(options: Options) -> Settings:
    if options.is_quick:
        return Settings(4 * MIB, 0, _NEVER_MS)
    return Settings(checkpoint_interval_ms=_NEVER_MS)


def _journal_bytes(data: Path) -> int:
    return sum(entry.stat().st_size for entry in data.iterdir() if entry.suffix == ".seg")


class _Builder:
    """Keeps a bounded number of appends in flight."""

    def __init__(self, engine: Engine, options: Options) -> None:
        self._engine = engine
        self._streams = options.streams
        self._mib_wanted = options.gib * 1024
        self._submitted = 0
        self._acknowledged = 0
        self._wanted = 0
        self._is_reached = asyncio.Event()
        self._in_flight = 50 if options.is_quick else 1_000
        self._shown_at = time.monotonic()

    @property
    def extent(self) -> Extent:
        return Extent(self._streams, self._acknowledged, self._submitted)

    def tail_bytes(self, data: str) -> int:
        """How far the last segment is filled."""
        firsts = (segment_lsn(name) for name in os.listdir(data))
        return self._engine.broker.end - max(first for first in firsts if first is not None)

    async def some(self) -> None:
        """Append until the appends of a while ago are durable."""
        self._submit(self._in_flight)
        await self._until(self._submitted - self._in_flight)
        self._show()

    async def begin_last(self) -> None:
        """Leave as soon as the first of the last appends is durable."""
        self._submit(1)
        await asyncio.sleep(0)
        self._submit(self._in_flight)
        await self._until(self._submitted - self._in_flight)

    async def _until(self, acknowledged: int) -> None:
        self._wanted = acknowledged
        self._is_reached.clear()
        if self._acknowledged < acknowledged:
            await self._is_reached.wait()

    def _submit(self, count: int) -> None:
        now_ms = self._engine.clock.now_ms()
        for number in range(self._submitted, self._submitted + count):
            self._engine.submit(append_of(number, self._streams, now_ms), self._take)
        self._submitted += count

    def _take(self, outcome: Outcome) -> None:
        assert outcome.code == "ok", outcome
        self._acknowledged += 1
        if self._acknowledged == self._wanted:
            self._is_reached.set()

    def _show(self) -> None:
        if time.monotonic() - self._shown_at > 5:
            self._shown_at = time.monotonic()
            mib = self._engine.broker.end // MIB
            sys.stderr.write(f"  {mib} of {self._mib_wanted:.0f} MiB\n")


# ---- the others ----------------------------------------------------------------------------------


async def reopen(data: str, extent: Extent, sample: int) -> Reopened:
    """Open and time it, read, check a sample, close."""
    before = memory_now()
    began = time.perf_counter()
    with timed(_PHASES) as phases:
        engine = await Engine.open(data, Settings(checkpoint_interval_ms=_NEVER_MS))
    open_s = time.perf_counter() - began
    after = memory_now()
    reads_s = [_timed_read(engine, stream) for stream in sampled(extent, sample)]
    checked = await check(engine, extent, sample)
    frames, replayed_bytes = engine.replayed_frames, engine.replayed_bytes
    await engine.close()
    return Reopened(
        open_s,
        {label: sum(seconds) for label, seconds in phases.items()},
        frames,
        replayed_bytes,
        before,
        after,
        reads_s,
        checked.messages,
    )


def _timed_read(engine: Engine, stream: int) -> float:
    began = time.perf_counter()
    read(engine, stream, 0)
    return time.perf_counter() - began
