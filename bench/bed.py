"""A broker and its writer on a real directory, driven by hand: no event loop, no threads."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from bench.rounds import Round, measured
from semel.broker.broker import Broker
from semel.broker.clock import SystemClock
from semel.broker.engine import Directory
from semel.journal.identity import IDENTITY_BYTES
from semel.journal.recovery import recover
from semel.journal.writer import JournalWriter
from semel.model.commands import Append, Batch, Create, ProducerTag
from semel.model.limits import SEGMENT_BYTES_DEFAULT
from semel.model.outcomes import Appended, Outcome

OCTETS = "application/octet-stream"
_PAYLOADS = 64

Workload = Callable[[int, int], list[Append]]


def path_of(number: int) -> str:
    return f"bench/stream-{number:06d}"


def a_create(number: int, now_ms: int) -> Create:
    return Create(path_of(number), now_ms, f"{number:032x}", OCTETS)


def workload(streams: int, size: int, *, is_tagged: bool) -> Workload:
    """Appends `start`, `start + 1`, ...: every stream in turn, but not in the order of creation.

    Names and payloads are made before. Tagged ones come from one dense producer per stream that
    counts its own epoch.
    """
    paths = [path_of(number) for number in Random(streams).sample(range(streams), streams)]
    producers = [f"producer-{number}" for number in range(streams)]
    payloads = [os.urandom(size) for _ in range(_PAYLOADS)]
    now_ms = SystemClock().now_ms

    def plain(start: int, count: int) -> list[Append]:
        now = now_ms()
        return [
            Append(paths[k % streams], now, OCTETS, Batch(payloads[k % _PAYLOADS]))
            for k in range(start, start + count)
        ]

    def tagged(start: int, count: int) -> list[Append]:
        now = now_ms()
        commands = []
        for k in range(start, start + count):
            seq, stream = divmod(k, streams)
            tag = ProducerTag(producers[stream], seq, seq, 0)
            batch = Batch(payloads[k % _PAYLOADS])
            commands.append(Append(paths[stream], now, OCTETS, batch, producer=tag))
        return commands

    return tagged if is_tagged else plain


class Bed:
    """One side of the comparison: groups of appends, each written, synced and answered."""

    def __init__(self, path: Path, streams: int, work: Workload) -> None:
        now_ms = SystemClock().now_ms()
        self._directory = Directory(str(path))
        recovered = recover(
            self._directory.disk,
            self._directory.store,
            fresh_identity=os.urandom(IDENTITY_BYTES),
        )
        self._broker = Broker(recovered, now_ms=now_ms, segment_bytes=SEGMENT_BYTES_DEFAULT)
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
        self._commit([a_create(number, now_ms) for number in range(streams)], [])

    def round(self, groups: int, appends: int) -> Round:
        """Measure: make the commands, decide, apply, write, sync, answer."""
        answers: list[Outcome] = []
        self.group_bytes = []
        write_cpu_s = 0.0
        with measured() as spent:
            for _ in range(groups):
                commands = self._work(self._next, appends)
                self._next += appends
                write_cpu_s += self._commit(commands, answers)
        spent.appends, spent.bytes = groups * appends, sum(self.group_bytes)
        spent.write_cpu_s = write_cpu_s
        assert len(answers) == spent.appends
        assert all(isinstance(answer, Appended) for answer in answers)
        return spent

    def _commit(self, commands: list[Append] | list[Create], answers: list[Outcome]) -> float:
        """One group; answers the CPU seconds of the write itself."""
        submit, reply = self._broker.submit, answers.append
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
        self._writer.close()
        self._directory.close()


class Bare:
    """The other side: as many bytes, one write and one fdatasync per group, nothing else."""

    def __init__(self, path: Path, *, bytes_allocated: int) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        if bytes_allocated:
            os.posix_fallocate(self._fd, 0, bytes_allocated)
        os.fsync(self._fd)
        self._at = 0

    def round(self, group_bytes: list[int], appends: int) -> Round:
        data = os.urandom(max(group_bytes))
        chunks = {size: data[:size] for size in group_bytes}
        with measured() as spent:
            for size in group_bytes:
                self._at += os.pwrite(self._fd, chunks[size], self._at)
                os.fdatasync(self._fd)
        spent.appends, spent.bytes = len(group_bytes) * appends, sum(group_bytes)
        return spent

    def close(self) -> None:
        os.close(self._fd)
