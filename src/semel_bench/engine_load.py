"""Workloads for the engine without HTTP, and the measurement of their wall time and CPU time."""

import asyncio
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any, Final
from unittest import mock

from msgspec import Struct

from semel.broker.broker import Broker
from semel.broker.engine import Engine
from semel.broker.settings import Directory, SystemClock
from semel.journal.identity import IDENTITY_BYTES
from semel.journal.recovery import recover
from semel.journal.writer import JournalWriter
from semel.model.commands import Append, Batch, Create, ProducerTag
from semel.model.limits import SEGMENT_BYTES_DEFAULT
from semel.model.outcomes import Appended, Outcome
from semel_bench.requests import BYTES
from semel_bench.servers import BareFiles

_PAYLOADS: Final = 64
_CREATED_AT_ONCE: Final = 1_000

Workload = Callable[[int, int], list[Append]]
Times = dict[str, list[float]]


def path_of(number: int) -> str:
    """Return the path of the stream with this number."""
    return f"bench/stream-{number:06d}"


def workload(streams: int, size: int, *, is_tagged: bool) -> Workload:
    """Return a function that takes (start, count) and returns `count` appends from number `start`.

    The appends go to all streams in turn, in an order chosen at random. With `is_tagged`, each
    stream has its own producer, which has epoch 0 and numbers its appends 0, 1, 2 and so on.
    """
    paths = [path_of(number) for number in Random(streams).sample(range(streams), streams)]
    producers = [f"producer-{number}" for number in range(streams)]
    payloads = [os.urandom(size) for _ in range(_PAYLOADS)]
    now_ms = SystemClock().now_ms

    def plain(start: int, count: int) -> list[Append]:
        now = now_ms()
        return [
            Append(paths[k % streams], now, BYTES, Batch(payloads[k % _PAYLOADS]))
            for k in range(start, start + count)
        ]

    def tagged(start: int, count: int) -> list[Append]:
        now = now_ms()
        commands = []
        for k in range(start, start + count):
            seq, stream = divmod(k, streams)
            tag = ProducerTag(producers[stream], seq, seq, 0)
            batch = Batch(payloads[k % _PAYLOADS])
            commands.append(Append(paths[stream], now, BYTES, batch, producer=tag))
        return commands

    return tagged if is_tagged else plain


# ---- measurement ---------------------------------------------------------------------------------


class EngineRound(Struct):
    """The wall time and the CPU time of one round.

    `cpu_s` is exact. `user_s` is an estimate, because the kernel divides CPU time into user time
    and system time by sampling.
    """

    appends: int = 0
    bytes: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    user_s: float = 0.0
    write_cpu_s: float = 0.0

    @property
    def cpu_us(self) -> float:
        """CPU time per append, in microseconds."""
        return self.cpu_s / self.appends * 1e6

    @property
    def loop_us(self) -> float:
        """CPU time per append, without the CPU time of the write, in microseconds."""
        return (self.cpu_s - self.write_cpu_s) / self.appends * 1e6

    @property
    def rate(self) -> float:
        """Appends per second."""
        return self.appends / self.wall_s


@contextmanager
def _measured() -> Iterator[EngineRound]:
    cost = EngineRound()
    user, cpu, wall = _user_s(), time.thread_time(), time.perf_counter()
    yield cost
    cost.wall_s = time.perf_counter() - wall
    cost.cpu_s = time.thread_time() - cpu
    cost.user_s = _user_s() - user


def _user_s() -> float:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_utime


@contextmanager
def timed(calls: dict[str, tuple[object, str]]) -> Iterator[Times]:
    """Measure the duration of every call to some methods during the block.

    `calls` maps a label to an object and a method name. Yields a mapping from each label to the
    durations in seconds. Raises AttributeError if an object does not have the method.
    """
    times: Times = {label: [] for label in calls}
    with ExitStack() as stack:
        for label, (owner, name) in calls.items():
            call = _clocked(getattr(owner, name), times[label])
            stack.enter_context(mock.patch.object(owner, name, call))
        yield times


def _clocked(call: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    def clocked(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            seconds.append(time.perf_counter() - began)

    return clocked


# ---- loads ---------------------------------------------------------------------------------------


class BrokerLoad:
    """A broker, and a journal writer that writes to a real directory.

    They run in the calling thread, without an engine.
    """

    def __init__(self, path: str, streams: int, work: Workload) -> None:
        clock = SystemClock()
        self._directory = Directory(path)
        identity = os.urandom(IDENTITY_BYTES)
        recovered = recover(self._directory.disk, self._directory.store, fresh_identity=identity)
        self._broker = Broker(
            recovered, monotonic_ms=clock.monotonic_ms, segment_bytes=SEGMENT_BYTES_DEFAULT
        )
        self._writer = JournalWriter(
            self._directory.disk,
            segment=recovered.segments.firsts[-1],
            segment_bytes=SEGMENT_BYTES_DEFAULT,
            reserve_bytes=0,
        )
        self._broker.set_room(self._writer.prepare())
        self._work = work
        self._next = 0
        self.group_bytes: list[int] = []
        self._commit([_create(number, clock.now_ms()) for number in range(streams)], [])

    async def round(self, groups: int, appends: int) -> EngineRound:
        """Execute `groups` write groups of `appends` appends each, and return their cost.

        The cost includes all steps: build the commands, decide, apply, write, sync and reply.
        """
        outcomes: list[Outcome] = []
        self.group_bytes = []
        write_cpu_s = 0.0
        with _measured() as cost:
            for _ in range(groups):
                commands = self._work(self._next, appends)
                self._next += appends
                write_cpu_s += self._commit(commands, outcomes)
        cost.appends, cost.bytes = groups * appends, sum(self.group_bytes)
        cost.write_cpu_s = write_cpu_s
        assert len(outcomes) == cost.appends
        assert all(isinstance(outcome, Appended) for outcome in outcomes)
        return cost

    def _commit(self, commands: list[Append] | list[Create], outcomes: list[Outcome]) -> float:
        """Execute the commands as one write group, and add their outcomes to `outcomes`.

        Returns the CPU time of the write, in seconds.
        """
        submit, reply = self._broker.submit, outcomes.append
        for command in commands:
            submit(command, reply)
        group = self._broker.next_group()
        assert group is not None
        began = time.thread_time()
        self._writer.write(group)
        if self._broker.needs_room:
            self._broker.set_room(self._writer.make_room())
        ended = time.thread_time()
        self._broker.written(group)
        self.group_bytes.append(group.size)
        return ended - began

    def close(self) -> None:
        """Close the journal and the directory."""
        self._writer.close()
        self._directory.close()


async def bare_round(files: BareFiles, group_bytes: list[int], appends: int) -> EngineRound:
    """Write and sync once for each size in `group_bytes`, and return the cost.

    Each write counts as a group of `appends` appends.
    """
    data = os.urandom(max(group_bytes))
    buffers = {size: [data[:size]] for size in group_bytes}
    with _measured() as cost:
        for size in group_bytes:
            files.write(buffers[size])
    cost.appends, cost.bytes = len(group_bytes) * appends, sum(group_bytes)
    return cost


async def engine_round(
    engine: Engine, commands: Iterator[Append], in_flight: int, appends_each: int
) -> EngineRound:
    """Run `in_flight` coroutines that make `appends_each` appends each, and return the cost.

    A coroutine makes its next append when its previous append is durable. In the result, `cpu_s` is
    the CPU time of all threads, and `write_cpu_s` is that time without the event loop's thread.
    """

    async def append() -> None:
        for _ in range(appends_each):
            assert isinstance(await engine.execute(next(commands)), Appended)

    wall, cpu, loop_cpu = time.perf_counter(), time.process_time(), time.thread_time()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(in_flight):
            tasks.create_task(append())
    return EngineRound(
        appends=appends_each * in_flight,
        wall_s=time.perf_counter() - wall,
        cpu_s=time.process_time() - cpu,
        write_cpu_s=(time.process_time() - cpu) - (time.thread_time() - loop_cpu),
    )


# ---- streams -------------------------------------------------------------------------------------


def _create(number: int, now_ms: int) -> Create:
    return Create(path_of(number), now_ms, f"{number:032x}", BYTES)


async def create_engine_streams(engine: Engine, streams: int) -> None:
    """Create the streams to which `workload(streams, ...)` appends."""
    now_ms = engine.clock.now_ms()
    for start in range(0, streams, _CREATED_AT_ONCE):
        numbers = range(start, min(start + _CREATED_AT_ONCE, streams))
        await asyncio.gather(*(engine.execute(_create(number, now_ms)) for number in numbers))
