"""Measures how long checkpoints and long requests delay the event loop.

Checkpoints are measured while there is a steady load.

Before each checkpoint, every stream is written to, so that the checkpoint must store every stream.
If only one append is waiting, the engine may write it on the event loop, which delays the loop. To
measure this delay too, only single appends are submitted during half of the checkpoints.

A ticker wakes up every millisecond. A gap is the delay of one wake-up. Part of the gap is the time
needed to submit the load. The net gap is the gap minus the time that threads waited for a core. On
a busy machine, the delay that the engine causes is between the net gap and the gap.

A commit of a staged transaction with the largest number of chunks is decided, applied and indexed
on different turns. The processor time of its longest turn is measured.

An event of 4 MiB of line ends is encoded in steps, one per turn of the event loop, and a JSON body
of 4 MiB is checked in steps. The longest step of some that take long is measured in the processor
time of the thread.
"""

import asyncio
import gc
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from semel.broker.engine import Engine
from semel.broker.settings import Settings
from semel.model.commands import (
    TXN_STAGED,
    Append,
    Batch,
    Begin,
    CommitTxn,
    ProducerOwner,
    TxnTag,
)
from semel.model.limits import BODY_BYTES_MAX, MIB, TXN_CHUNKS_MAX, TXN_TIMEOUT_MS_MAX
from semel.model.outcomes import Appended, Outcome
from semel.model.outcomes_txn import Begun, CommitDone, Staged
from semel.model.slices import Slice
from semel.wire.json_mode import prepare_limits, split_steps
from semel.wire.sse import SseEncoder
from semel_bench.engine_load import Times, Workload, create_engine_streams, path_of, timed, workload
from semel_bench.harness import (
    CoreWaits,
    Figure,
    Gaps,
    Harness,
    Target,
    at_most,
    median,
    percentile,
)
from semel_bench.requests import BYTES

_TICK_S: Final = 0.001
_PUMP_S: Final = 0.002
_APPEND_BYTES: Final = 256
_NEVER_MS: Final = 10**9
_AFTER_S: Final = 0.5
_BODY_BYTES: Final = 4 * MIB - 4
_ELEMENTS: Final = {'""': b'""', "[]": b"[]", '["["]': b'["["]'}
_TEXTS: Final = {'\\"': b'\\"', "[": b"["}
_LINE_ENDS: Final = {"LF": b"\n", "CR": b"\r", "CR LF": b"\r\n", "0xFF LF": b"\xff\n"}
_STAGED_AT_ONCE: Final = 2_000
_DONE: Final = object()


async def measure_stall(harness: Harness) -> list[Figure]:
    """Measure the delays of the event loop during checkpoints and at other times.

    Also measure the parts of a checkpoint that run on the event loop.
    """
    checkpoints, per_second = harness.options.pick((6, 10_000), (2, 2_000))
    with harness.scratch() as folder:
        figures = await _stall(folder, harness.options.stream_count, checkpoints, per_second)
    gc.unfreeze()
    chunks = harness.options.pick(TXN_CHUNKS_MAX, 20_000)
    for streams in (1, 1_000):
        with harness.scratch() as folder:
            figures.append(await _commit_figure(folder, chunks, streams))
    gc.unfreeze()
    return [*figures, *_event_figures(), *_body_figures()]


async def _stall(path: str, streams: int, checkpoints: int, per_second: int) -> list[Figure]:
    # The segment is so large that it never becomes full. So the only checkpoints are those that
    # this function requests.
    segment_bytes = 16 * MIB + (checkpoints + 1) * streams * 4 * _APPEND_BYTES
    engine = await Engine.open(path, Settings(segment_bytes, 0, _NEVER_MS))
    await create_engine_streams(engine, streams)
    pump = Pump(engine, workload(streams, _APPEND_BYTES, is_tagged=False), per_second)
    durations: list[float] = []
    with timed(_parts(engine)) as parts, _timed_collections(parts):
        ticker = Ticker(parts, pump)
        tasks = [asyncio.create_task(pump.run()), asyncio.create_task(ticker.run())]
        for index in range(checkpoints):
            await pump.until(pump.submitted + streams)
            pump.is_trickling = index % 2 == 1
            durations.append(await _checkpoint(engine, parts))
            # Wait, because the ticker counts the half second after a checkpoint as part of it.
            await asyncio.sleep(_AFTER_S)
            pump.is_trickling = False
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await engine.settle()
    await engine.close()
    return [
        Figure("streams, all dirty", streams, ""),
        Figure("checkpoint duration", median(durations), "s"),
        *_gap_figures("loop delay without checkpoint", ticker.quiet),
        *_gap_figures("loop delay during checkpoint", ticker.steady, at_most(20)),
        *_gap_figures("loop delay during checkpoint, single appends", ticker.trickle, at_most(20)),
        *(Figure(f"{k} max", max(v, default=0.0) * 1e3, "ms") for k, v in parts.items()),
    ]


def _gap_figures(name: str, gaps: Gaps, target: Target | None = None) -> list[Figure]:
    return [
        Figure(f"{name} p50", percentile(gaps.seen, 50) * 1e3, "ms"),
        Figure(f"{name} p99", percentile(gaps.seen, 99) * 1e3, "ms"),
        Figure(f"{name} max", max(gaps.seen, default=0.0) * 1e3, "ms", target),
        Figure(f"{name} max, net", max(gaps.net, default=0.0) * 1e3, "ms", target),
    ]


async def _commit_figure(path: str, chunks: int, streams: int) -> Figure:
    """Stage a transaction with `chunks` chunks and return the longest turn of its commit."""
    engine = await Engine.open(path, Settings(checkpoint_interval_ms=_NEVER_MS))
    await create_engine_streams(engine, streams)
    paths = tuple(path_of(number) for number in range(streams))
    now_ms = engine.clock.now_ms
    longest = 0.0
    for name in ("first", "second", "third"):
        owner = ProducerOwner("bench", 0)
        begin = Begin(now_ms(), name, owner, TXN_STAGED, TXN_TIMEOUT_MS_MAX, paths)
        begun = await engine.execute(begin)
        assert isinstance(begun, Begun), begun
        for seq in range(chunks):
            tag = TxnTag(name, begun.epoch, seq)
            append = Append(paths[seq % streams], now_ms(), BYTES, Batch(b"x"), transaction=tag)
            engine.submit(append, _check_staged)
            if seq % _STAGED_AT_ONCE == 0:
                await engine.settle()
        await engine.settle()
        commit = asyncio.create_task(
            engine.execute(CommitTxn(now_ms(), name, begun.epoch, "bench", 0))
        )
        turns = await _time_turns(commit)
        assert isinstance(commit.result(), CommitDone), commit.result()
        longest = max(turns) if not longest else min(longest, max(turns))
    await engine.close()
    label = f"commit of {chunks:,} chunks in {streams:,} streams: longest turn, best of 3"
    return Figure(label, longest * 1e3, "ms", at_most(50))


async def _time_turns(task: "asyncio.Task[Outcome]") -> list[float]:
    """Return the processor time of each turn of the event loop until `task` is done."""
    times = [0.0]
    while not task.done():
        began = time.thread_time()
        await asyncio.sleep(0)
        times.append(time.thread_time() - began)
    return times


def _event_figures() -> list[Figure]:
    """Return the longest step of each event that takes long, compared with all its steps."""
    figures = []
    for name, line_end in _LINE_ENDS.items():
        payload = line_end * (BODY_BYTES_MAX // len(line_end))
        read = [Slice(0, 1, payload, b"", False, 0)]
        encoder = SseEncoder("text/plain", 0)
        steps = _time_steps(encoder.data_parts(read, next_offset=1))
        figures.append(_longest_step(f"4 MiB of {name} as an event", steps))
    return figures


def _longest_step(name: str, steps: list[float]) -> Figure:
    longest = max(steps)
    ratio = longest / sum(steps)
    return Figure(
        f"{name}: longest step", longest * 1e3, "ms", at_most(50), ratio=ratio, beside="all steps"
    )


def _body_figures() -> list[Figure]:
    """Return the longest step of each long body, compared with the time of all its steps."""
    prepare_limits()
    figures = []
    for name, element in _ELEMENTS.items():
        array = b"[" + b",".join([element] * (_BODY_BYTES // (len(element) + 1))) + b"]"
        for what, body in (("messages", array), ("one message of", b"[" + array + b"]")):
            steps = _time_steps(split_steps(body))
            figures.append(_longest_step(f"4 MiB of JSON, {what} {name}", steps))
    for name, text in _TEXTS.items():
        # The brackets before it make it necessary to look at the whole string.
        body = b'{"a":"' + b"[" * 70 + text * ((_BODY_BYTES - 80) // len(text)) + b'"}'
        steps = _time_steps(split_steps(body))
        figures.append(_longest_step(f"4 MiB of JSON, one string of {name}", steps))
    return figures


def _time_steps(steps: Iterator[object]) -> list[float]:
    """Run all steps, and return the processor time of each in seconds."""
    times = []
    is_running = True
    while is_running:
        began = time.thread_time()
        is_running = next(steps, _DONE) is not _DONE
        times.append(time.thread_time() - began)
    return times


def _parts(engine: Engine) -> dict[str, tuple[object, str]]:
    """Return the methods to measure, keyed by label.

    These are the methods of a checkpoint that run on the event loop, and other methods that can
    delay the event loop.
    """
    return {
        "cut()": (engine.broker, "cut"),
        "cut_done()": (engine.broker, "cut_done"),
        "end of a cut": (engine, "_cut_over"),
        "write on the loop": (engine, "_write_next"),
        "replies to a group": (engine.broker, "written"),
    }


def _is_in_checkpoint(parts: Times) -> bool:
    return len(parts["cut()"]) > len(parts["cut_done()"])


async def _checkpoint(engine: Engine, parts: Times) -> float:
    """Request a checkpoint, wait until it has ended, and return its duration in seconds."""
    began = time.perf_counter()
    engine.checkpoint()
    while _is_in_checkpoint(parts):  # noqa: ASYNC110 - the engine does not report the end
        await asyncio.sleep(_TICK_S)
    return time.perf_counter() - began


@contextmanager
def _timed_collections(parts: Times) -> Iterator[None]:
    """During the block, add the duration of each full garbage collection to `parts`."""
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
    """Submits a steady load of `per_second` appends.

    While `is_trickling` is True, it submits only a single append about every 2 milliseconds.
    """

    def __init__(self, engine: Engine, work: Workload, per_second: int) -> None:
        self._engine = engine
        self._work = work
        self._per_second = per_second
        self.submitted = 0
        self.is_trickling = False

    async def run(self) -> None:
        """Submit appends until cancelled."""
        while True:
            began = time.perf_counter()
            await asyncio.sleep(_PUMP_S)
            # Appends that were missed during a stall are not submitted later, because a burst of
            # appends would delay the event loop again.
            elapsed_s = min(time.perf_counter() - began, 5 * _PUMP_S)
            count = 1 if self.is_trickling else int(elapsed_s * self._per_second)
            for command in self._work(self.submitted, count):
                self._engine.submit(command, _check)
                self.submitted += 1

    async def until(self, submitted: int) -> None:
        """Wait until the total number of submitted appends is at least `submitted`."""
        while self.submitted < submitted:  # noqa: ASYNC110 - nothing signals this
            await asyncio.sleep(0.01)


def _check(outcome: Outcome) -> None:
    assert isinstance(outcome, Appended)


def _check_staged(outcome: Outcome) -> None:
    assert isinstance(outcome, Staged), outcome


class Ticker:
    """Wakes up every millisecond and records how late each wake-up is (the gap).

    The gaps during a checkpoint and in the half second after it are in `steady`, or in `trickle` if
    the pump submits single appends. All other gaps are in `quiet`.
    """

    def __init__(self, parts: Times, pump: Pump) -> None:
        self.quiet = Gaps()
        self.steady = Gaps()
        self.trickle = Gaps()
        self._parts = parts
        self._pump = pump

    async def run(self) -> None:
        """Record the delay of each wake-up until cancelled."""
        last = seen_in = time.perf_counter()
        begun = 0
        waits = CoreWaits()
        while True:
            await asyncio.sleep(_TICK_S)
            now = time.perf_counter()
            before, begun = begun, len(self._parts["cut()"])
            if begun > before or _is_in_checkpoint(self._parts):  # a short one is over already
                seen_in = now
            gaps = self._phase(last - seen_in < _AFTER_S)
            gaps.add(now - last - _TICK_S, waits.since_last())
            last = now

    def _phase(self, is_near_checkpoint: bool) -> Gaps:
        if not is_near_checkpoint:
            return self.quiet
        return self.trickle if self._pump.is_trickling else self.steady
