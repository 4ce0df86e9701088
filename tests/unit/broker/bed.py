"""A broker on a virtual disk, driven step by step by the test."""

from semel.broker.broker import Broker
from semel.journal.checkpoint import commit_cut
from semel.journal.recovery import recover
from semel.journal.segments import unlink_segments
from semel.journal.writer import JournalWriter
from semel.model.commands import Append, Batch, Create, EngineCommand
from semel.model.limits import HOUR_MS
from semel.model.outcomes import Outcome
from semel.testing import VirtualDisk, VirtualStore

SEGMENT_BYTES = 4096


class Bed:
    """All parts of an engine except its threads.

    Both clocks follow `now_ms`, until `jump` moves the wall clock alone.
    """

    def __init__(
        self,
        *,
        reserve_bytes: int = 0,
        segment_bytes: int = SEGMENT_BYTES,
        producer_idle_ms: int = 0,
    ) -> None:
        self.disk, self.store = VirtualDisk(), VirtualStore()
        self._reserve_bytes = reserve_bytes
        self._segment_bytes = segment_bytes
        self._producer_idle_ms = producer_idle_ms
        self.now_ms = 1_000
        self.behind_ms = 0
        self.start()

    def start(self) -> None:
        """Start the broker, or restart it after `disk.kill()`."""
        self.disk.lock()
        recovered = recover(
            self.disk, self.store, fresh_identity=bytes(16), segment_bytes=self._segment_bytes
        )
        self.writer = JournalWriter(
            self.disk,
            segment=recovered.segments.firsts[-1],
            segment_bytes=self._segment_bytes,
            reserve_bytes=self._reserve_bytes,
        )
        self.broker = Broker(
            recovered,
            monotonic_ms=lambda: self.now_ms + self.behind_ms,
            segment_bytes=self._segment_bytes,
            producer_idle_ms=self._producer_idle_ms,
        )
        self.broker.set_room(self.writer.prepare())

    def restart(self, *, segment_bytes: int | None = None) -> None:
        """Kill the process and restart it, with another segment size if one is given."""
        self._segment_bytes = segment_bytes or self._segment_bytes
        self.disk.kill()
        self.store.kill()
        self.start()

    def jump(self, ms: int) -> None:
        """Set the wall clock forward or back. The monotonic clock does not change."""
        self.now_ms += ms
        self.behind_ms -= ms

    def run_for(self, hours: int) -> None:
        """Let the process run for so many hours. It must not restart in the meantime."""
        for _ in range(hours):
            self.now_ms += HOUR_MS
            assert self.broker.count_hour(self.now_ms)
            self.flush()

    def sweep(self, later_ms: int = 0, count_max: int = 10) -> int:
        """Let time pass, and end what is due. Return how many objects were ended."""
        self.now_ms += later_ms
        count = self.broker.endings.sweep(self.now_ms, count_max)
        count += sum(self.broker.sweep_groups(self.now_ms, count_max))
        self.broker.wakes.offer_due()
        self.flush()
        return count

    def submit(self, command: EngineCommand) -> list[Outcome]:
        """Submit without flushing. The outcome is added to the returned list when it is sent."""
        answers: list[Outcome] = []
        self.broker.submit(command, answers.append)
        return answers

    def flush(self) -> None:
        """Write all pending groups, which releases their outcomes."""
        while (group := self.broker.next_group()) is not None:
            self.writer.write(group)
            self.broker.written(group)
            if self.broker.needs_room:
                self.broker.set_room(self.writer.make_room())

    def execute(self, command: EngineCommand) -> Outcome:
        """Submit a command, flush, and return its outcome."""
        answers = self.submit(command)
        self.flush()
        return answers[0]

    def checkpoint(self) -> list[int]:
        """Make one checkpoint and return the segments that it deleted."""
        cut = self.broker.cut()
        self.flush()
        assert cut is not None
        dead = commit_cut(self.store, cut)
        self.broker.cut_done(dead)
        unlink_segments(self.disk, dead)
        return dead

    def create(self, path: str = "s", *, ttl_ms: int | None = None) -> Create:
        """Return a create command."""
        return Create(path, self.now_ms, f"i{path}", "text/plain", ttl_ms)

    def append(self, body: bytes = b"x", path: str = "s") -> Append:
        """Return an append command."""
        return Append(path, self.now_ms, "text/plain", Batch(body))
