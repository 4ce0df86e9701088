"""The time to open a directory with a long history and many streams, after a kill or a close.

The first process builds the history and ends abruptly while appends are in flight. Then the files
are dropped from the page cache. The second process opens the directory, checks a sample of the
streams, and closes the directory normally. After this close, a third process does the same.

At the end, the time to open directories with torn tails is measured.
"""

import asyncio
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Callable, Coroutine
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from struct import Struct as Layout
from typing import Any, Final

import uvloop
from msgspec import Struct

from semel.broker import engine as engine_module
from semel.broker.broker import ReadDone
from semel.broker.engine import Engine
from semel.broker.settings import Settings
from semel.journal import recovery
from semel.journal.frame import ALIGN, MAGIC, VERSION
from semel.journal.segments import segment_lsn, segment_name
from semel.model.commands import Append, Batch, ProducerTag
from semel.model.limits import KIB, MIB
from semel.model.outcomes import Duplicate, Outcome
from semel_bench.engine_load import create_engine_streams, path_of, timed
from semel_bench.harness import Figure, Harness, Options, at_most, median, percentile
from semel_bench.requests import BYTES
from semel_bench.servers import Memory, memory_of

_NEVER_MS: Final = 10**9
# The share of a segment that is filled after the last checkpoint. Each new segment starts a
# checkpoint, so a replay is never longer than about one segment.
_TAIL_SHARE: Final = 0.8
_PHASES: Final[dict[str, tuple[object, str]]] = {
    "checkpoint": (recovery, "load"),
    "replay": (recovery, "_replay_tail"),
    "sync": (recovery, "_make_durable"),
    "broker": (engine_module, "Broker"),
}

Step = Callable[..., Coroutine[Any, Any, Any]]


class Extent(Struct, frozen=True):
    """The size of the history.

    `submitted` is the number of appends that were submitted. They went to the streams in turn.
    The first `acknowledged` of these appends were acknowledged. The others were in flight.
    """

    streams: int
    acknowledged: int
    submitted: int

    def confirmed(self, stream: int) -> int:
        """Return the number of acknowledged messages in a stream."""
        return -(-max(self.acknowledged - stream, 0) // self.streams)

    def sampled(self, sample: int) -> list[int]:
        """Return a random sample of `sample` streams. The sample is the same in every process."""
        return Random(2).sample(range(self.streams), min(sample, self.streams))


class Reopened(Struct, frozen=True, kw_only=True):
    """The measurements of a process that opened and read the directory.

    `before` and `after` describe the memory before and after the directory was opened.
    """

    open_s: float
    phases_s: dict[str, float]
    frames: int
    replayed_bytes: int
    before: Memory
    after: Memory
    reads_s: list[float]
    checked_messages: int


async def measure_restart(harness: Harness) -> list[Figure]:
    """Measure the time and memory to open a directory after a kill and after a normal close."""
    return await asyncio.to_thread(_measure, harness)


def _measure(harness: Harness) -> list[Figure]:
    options = harness.options
    sample = options.pick(1_000, 50)
    with harness.scratch() as folder:
        data = f"{folder}/data"
        began = time.perf_counter()
        extent: Extent = in_child(build, data, options, is_killed=True)
        built_s = time.perf_counter() - began
        history_bytes = sum(path.stat().st_size for path in Path(data).glob("*.seg"))
        _drop_from_cache(data)
        killed: Reopened = in_child(reopen, data, extent, sample)
        closed: Reopened = in_child(reopen, data, extent, sample)
    return [
        Figure("history", history_bytes / MIB, "MiB"),
        Figure("streams", extent.streams, ""),
        Figure("appends", extent.acknowledged, ""),
        Figure("build", built_s, "s"),
        *_figures("after kill", killed, extent.streams),
        *_figures("after close", closed, extent.streams),
        *_torn_tail_figures(harness),
    ]


def _figures(name: str, opened: Reopened, streams: int) -> list[Figure]:
    grown_kib = opened.after.anonymous_kib - opened.before.anonymous_kib
    a_second_and_replay = at_most(1 + opened.phases_s.get("replay", 0.0))
    return [
        Figure(f"{name}: open", opened.open_s, "s", a_second_and_replay),
        *(Figure(f"{name}: of which {k}", v, "s") for k, v in opened.phases_s.items()),
        Figure(f"{name}: replayed", opened.replayed_bytes / MIB, "MiB"),
        Figure(f"{name}: replayed frames", opened.frames, ""),
        Figure(f"{name}: resident before open", opened.before.resident_kib / 1024, "MiB"),
        Figure(f"{name}: resident after open", opened.after.resident_kib / 1024, "MiB"),
        Figure(f"{name}: resident peak", opened.after.peak_kib / 1024, "MiB"),
        Figure(f"{name}: memory per stream", grown_kib / streams, "KiB", at_most(1.2)),
        Figure(f"{name}: first read", opened.reads_s[0] * 1e3, "ms"),
        Figure(f"{name}: read p50", median(opened.reads_s) * 1e3, "ms"),
        Figure(f"{name}: read p99", percentile(opened.reads_s, 99) * 1e3, "ms"),
        Figure(f"{name}: messages checked", opened.checked_messages, ""),
    ]


def _drop_from_cache(directory: str) -> None:
    """Drop the files from the page cache, so that the next process reads them from the disk."""
    for entry in os.scandir(directory):
        fd = os.open(entry.path, os.O_RDONLY)
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def in_child(step: Step, *args: object, is_killed: bool = False) -> Any:
    """Run the coroutine function `step` in a new process and return its result.

    With `is_killed`, the process exits immediately after it has sent the result. It closes and
    flushes nothing. Raises RuntimeError if the function fails.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_run, args=(there, step, args, is_killed))
    child.start()
    there.close()
    try:
        return here.recv()
    except EOFError:
        raise RuntimeError(f"the child process that ran {step.__name__} failed") from None
    finally:
        child.join()


def _run(pipe: Connection, step: Step, args: tuple[object, ...], is_killed: bool) -> None:
    async def main() -> None:
        pipe.send(await step(*args))
        if is_killed:
            os._exit(0)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


# ---- the messages: computed from their numbers, so that the check can compute them again ---------

# The sizes of messages. After each size comes the percentage of messages that have it.
_SIZES: Final = ((256, 70), (1 * KIB, 20), (4 * KIB, 8), (64 * KIB, 2))
_PRODUCER_EVERY: Final = 10  # every tenth stream is written by a producer
_SALT: Final = 0x9E3779B1
_HEAD: Final = Layout("<QQ")
_FILLER: Final = Random(1).randbytes(2 * _SIZES[-1][0])
_SIZE_OF_PERCENT: Final = [size for size, percent in _SIZES for _ in range(percent)]


def _message(stream: int, index: int) -> bytes:
    mixed = (stream * 31 + index * 17 + 1) * _SALT & 0xFFFFFFFF
    size = _SIZE_OF_PERCENT[mixed % 100] - _HEAD.size
    start = mixed >> 16
    return _HEAD.pack(stream, index) + _FILLER[start : start + size]


def _append_of(number: int, streams: int, now_ms: int) -> Append:
    index, stream = divmod(number, streams)
    tag = None
    if stream % _PRODUCER_EVERY == 0:
        tag = ProducerTag(f"producer-{stream}", index, index, 0)
    return Append(path_of(stream), now_ms, BYTES, Batch(_message(stream, index)), producer=tag)


# ---- the process that builds the history ---------------------------------------------------------


async def build(data: str, options: Options) -> Extent:
    """Write the test data and return its size. Only new segments trigger checkpoints."""
    settings = options.pick(
        Settings(checkpoint_interval_ms=_NEVER_MS), Settings(4 * MIB, 0, _NEVER_MS)
    )
    engine = await Engine.open(data, settings)
    await create_engine_streams(engine, options.stream_count)
    builder = _Builder(engine, options)
    history_bytes = int(options.history_gib * 1024 * MIB)
    tail_bytes = settings.segment_bytes * _TAIL_SHARE
    while engine.broker.end < history_bytes or builder.tail_bytes(data) < tail_bytes:
        await builder.append_some()
    # After `settle`, the last checkpoint is complete. The appends submitted from here on are in
    # flight when the process ends.
    await engine.settle()
    await builder.begin_last()
    return builder.extent


class _Builder:
    """Submits appends to the engine. The number of appends in flight is limited."""

    def __init__(self, engine: Engine, options: Options) -> None:
        self._engine = engine
        self._streams = options.stream_count
        self._mib = options.history_gib * 1024
        self._submitted = 0
        self._acknowledged = 0
        self._awaited = 0
        self._is_reached = asyncio.Event()
        self._in_flight = options.pick(1_000, 50)
        self._shown_at = time.monotonic()

    @property
    def extent(self) -> Extent:
        """The size of the history so far."""
        return Extent(self._streams, self._acknowledged, self._submitted)

    def tail_bytes(self, data: str) -> int:
        """Return the number of bytes used in the last segment."""
        firsts = (segment_lsn(name) for name in os.listdir(data))
        return self._engine.broker.end - max(first for first in firsts if first is not None)

    async def append_some(self) -> None:
        """Submit new appends, and wait until all appends submitted before them are durable."""
        await self._submit_and_wait()
        if time.monotonic() - self._shown_at > 5:
            self._shown_at = time.monotonic()
            mib = self._engine.broker.end // MIB
            sys.stderr.write(f"  {mib} of {self._mib:.0f} MiB\n")

    async def begin_last(self) -> None:
        """Submit the last appends, and return when the first of them is durable."""
        self._submit(1)
        await asyncio.sleep(0)
        await self._submit_and_wait()

    async def _submit_and_wait(self) -> None:
        self._awaited = self._submitted
        self._submit(self._in_flight)
        self._is_reached.clear()
        if self._acknowledged < self._awaited:
            await self._is_reached.wait()

    def _submit(self, count: int) -> None:
        now_ms = self._engine.clock.now_ms()
        for number in range(self._submitted, self._submitted + count):
            self._engine.submit(_append_of(number, self._streams, now_ms), self._take)
        self._submitted += count

    def _take(self, outcome: Outcome) -> None:
        assert outcome.code == "ok", outcome
        self._acknowledged += 1
        if self._acknowledged == self._awaited:
            self._is_reached.set()


# ---- the processes that open the directory -------------------------------------------------------


async def reopen(data: str, extent: Extent, sample: int) -> Reopened:
    """Open the directory, read and check a sample of its streams, and close the directory.

    Returns the measurements.
    """
    before = memory_of(os.getpid())
    began = time.perf_counter()
    with timed(_PHASES) as phases:
        engine = await Engine.open(data, Settings(checkpoint_interval_ms=_NEVER_MS))
    open_s = time.perf_counter() - began
    after = memory_of(os.getpid())
    reads_s = [_timed_read(engine, stream) for stream in extent.sampled(sample)]
    checked = await _check(engine, extent, sample)
    frames, replayed_bytes = engine.replayed_frames, engine.replayed_bytes
    await engine.close()
    return Reopened(
        open_s=open_s,
        phases_s={label: sum(seconds) for label, seconds in phases.items()},
        frames=frames,
        replayed_bytes=replayed_bytes,
        before=before,
        after=after,
        reads_s=reads_s,
        checked_messages=checked,
    )


def _timed_read(engine: Engine, stream: int) -> float:
    began = time.perf_counter()
    _read(engine, stream, 0)
    return time.perf_counter() - began


async def _check(engine: Engine, extent: Extent, sample: int) -> int:
    """Read and check a sample of the streams. Return the number of checked messages.

    Asserts that no acknowledged message is missing or changed. Also repeats the last append of each
    producer in the sample, and asserts that the outcome is a duplicate.
    """
    checked = 0
    for stream in extent.sampled(sample):
        messages = _read_all(engine, stream)
        assert len(messages) >= extent.confirmed(stream), f"stream {stream} has lost a message"
        assert messages == [_message(stream, index) for index in range(len(messages))]
        checked += len(messages)
        if stream % _PRODUCER_EVERY == 0 and messages:
            last = (len(messages) - 1) * extent.streams + stream
            repeat = _append_of(last, extent.streams, 0)
            assert isinstance(await engine.execute(repeat), Duplicate)
    return checked


def _read_all(engine: Engine, stream: int) -> list[bytes]:
    messages: list[bytes] = []
    offset = 0
    while True:
        done = _read(engine, stream, offset)
        messages.extend(data for slice in done.slices for data in slice.messages())
        if done.next_offset == done.tail.tail:
            return messages
        offset = done.next_offset


def _read(engine: Engine, stream: int, offset: int) -> ReadDone:
    outcomes: list[object] = []
    reply: Callable[[object], None] = outcomes.append
    now_ms = engine.clock.now_ms()
    engine.broker.read(path_of(stream), offset, now_ms=now_ms, reply=reply, bytes_max=MIB)
    done = outcomes[0]
    assert isinstance(done, ReadDone), done
    return done


# ---- torn tails ----------------------------------------------------------------------------------
# A message can contain anything, also the headers of frames that do not exist. After a crash, the
# scan after the torn frame must look at each of them. The same number of bytes in ordinary messages
# is the measure of what a start may cost.

_TAIL_MESSAGE_BYTES: Final = 100
_TAIL_IN_FLIGHT: Final = 500
_TAIL_ROUNDS: Final = 5
_TORN_BYTES: Final = 128
_HEADER_REST: Final = Layout("<BBHIIIQQQ")  # a frame header after its checksum
_HEADER_STEP: Final = 40  # a header without its last field, which the next header overwrites


def _torn_tail_figures(harness: Harness) -> list[Figure]:
    """Measure how long a start takes after a crash, with a torn frame at the end of the journal."""
    tail_bytes = harness.options.pick(4 * MIB, 128 * KIB)
    seconds: dict[str, float] = {}
    with harness.scratch() as folder:
        base, trial = f"{folder}/base", f"{folder}/trial"
        for name, is_honest in (("messages", True), ("frame headers", False)):
            shutil.rmtree(base, ignore_errors=True)
            end = int(in_child(_write_tail, base, tail_bytes if is_honest else 0, is_killed=True))
            _tear(base, end, 0 if is_honest else tail_bytes)
            opened = []
            for _ in range(harness.options.pick(_TAIL_ROUNDS, 1)):
                shutil.rmtree(trial, ignore_errors=True)
                shutil.copytree(base, trial)
                opened.append(in_child(_open_torn, trial))
            seconds[name] = min(opened)
    size = f"{tail_bytes / MIB:g} MiB of"
    ratio = seconds["frame headers"] / seconds["messages"]
    return [
        *(Figure(f"torn tail: {size} {name}", value, "s") for name, value in seconds.items()),
        Figure("torn tail: headers / messages", ratio, "", at_most(2.0)),
    ]


async def _write_tail(data: str, tail_bytes: int) -> int:
    """Append messages that no checkpoint contains. Return the end of the journal."""
    engine = await Engine.open(data, Settings(reserve_bytes=0, checkpoint_interval_ms=_NEVER_MS))
    await create_engine_streams(engine, 1)
    append = Append(path_of(0), 0, BYTES, Batch(b"x" * _TAIL_MESSAGE_BYTES))
    while engine.broker.end < tail_bytes:
        await asyncio.gather(*(engine.execute(append) for _ in range(_TAIL_IN_FLIGHT)))
    await engine.settle()
    return engine.broker.end


def _tear(data: str, end: int, header_bytes: int) -> None:
    """Add a frame that was not written completely, and headers after it."""
    tail = bytearray(_header(end, _TORN_BYTES).ljust(_TORN_BYTES, b"\1"))
    start = end + _TORN_BYTES
    for at in range(start, start + header_bytes, _HEADER_STEP):
        length = (at * 7919 % (32 * MIB)) // ALIGN * ALIGN + _TORN_BYTES
        tail += _header(at, length)[:_HEADER_STEP]
    with (Path(data) / segment_name(0)).open("r+b") as file:
        file.seek(end)
        file.write(tail)
        file.flush()
        os.fsync(file.fileno())


def _header(lsn: int, length: int) -> bytes:
    fields = (VERSION, 1, 0, length, 8, 1, lsn, lsn, 1)
    return MAGIC + b"\1\2\3\4" + _HEADER_REST.pack(*fields)


async def _open_torn(data: str) -> float:
    began = time.perf_counter()
    engine = await Engine.open(data, Settings(reserve_bytes=0, checkpoint_interval_ms=_NEVER_MS))
    seconds = time.perf_counter() - began
    await engine.close()
    return seconds
