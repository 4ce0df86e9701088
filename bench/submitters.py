"""Callers of a running engine: each sends its next append when the one before is durable."""

import asyncio
import time
from itertools import count

from bench.bed import Workload, a_create
from bench.rounds import Round
from semel.broker.engine import Engine
from semel.model.outcomes import Appended


class Submitters:
    """`in_flight` coroutines on the engine's loop."""

    def __init__(self, engine: Engine, work: Workload, in_flight: int) -> None:
        self._engine = engine
        self._work = work
        self._in_flight = in_flight
        self._numbers = count()

    async def round(self, appends_each: int) -> Round:
        """Measure; CPU is that of all threads, and `write_cpu_s` that of all but the loop's."""
        wall, cpu, loop_cpu = time.perf_counter(), time.process_time(), time.thread_time()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._in_flight):
                tasks.create_task(self._append(appends_each))
        return Round(
            appends=appends_each * self._in_flight,
            wall_s=time.perf_counter() - wall,
            cpu_s=time.process_time() - cpu,
            write_cpu_s=(time.process_time() - cpu) - (time.thread_time() - loop_cpu),
        )

    async def _append(self, times: int) -> None:
        execute, work, numbers = self._engine.execute, self._work, self._numbers
        for _ in range(times):
            outcome = await execute(work(next(numbers), 1)[0])
            assert isinstance(outcome, Appended)


async def create_streams(engine: Engine, streams: int, *, at_once: int = 1_000) -> None:
    now_ms = engine.clock.now_ms()
    for start in range(0, streams, at_once):
        numbers = range(start, min(start + at_once, streams))
        await asyncio.gather(*(engine.execute(a_create(number, now_ms)) for number in numbers))
