"""The engine: a broker on a data directory, with an event loop and two threads.

The loop decides commands, sends replies and does short writes. One thread does all other writes,
and the other thread commits checkpoints.
"""

import asyncio
import gc
import logging
import sys
from collections.abc import Callable
from functools import partial
from math import inf
from time import monotonic
from typing import Final, Self, TypeVar

from semel.broker.broker import Broker, OutcomeReply, Reply
from semel.broker.durable_view import DurableView, StreamView, Waiter, stop_waiting
from semel.broker.memberships import TICK_MS
from semel.broker.settings import Clock, Directory, Settings, SystemClock
from semel.broker.surveys import SpaceSurvey, SurveyTurns
from semel.broker.timers import ClockWatch
from semel.broker.worker import GroupTurns, ReadTurns, Timers, Worker, end_process, set_result
from semel.journal.appender import WriteGroup
from semel.journal.checkpoint import Cut, commit_if_room, drop_removed
from semel.journal.disk import LOCK_LOST
from semel.journal.identity import IDENTITY_BYTES, require_access_format
from semel.journal.recovery import Recovered
from semel.journal.segments import unlink_segments
from semel.journal.writer import JournalWriter, Room
from semel.machine import State
from semel.machine.state import Stream
from semel.machine.txn.views import Dates, TxnView, holding_view
from semel.model.commands import READ_UNCOMMITTED, EngineCommand
from semel.model.errors import DiskFailed, EngineStopped
from semel.model.limits import MIB, READ_BYTES_DEFAULT
from semel.model.outcomes import Outcome
from semel.model.rights import Caller

log = logging.getLogger("semel")

T = TypeVar("T")
Waiting = tuple[StreamView, Waiter]  # what `Engine.wait` returns

_SWITCH_SECONDS: Final = 0.0005
_GC_ALLOCATIONS: Final = 10_000
_ROOM_RETRY_SECONDS: Final = 1.0
_SWEEP_COUNT_MAX: Final = 1_000
_INLINE_SYNC_SECONDS: Final = 0.001
_INLINE_BYTES_MAX: Final = MIB


class Engine:
    """A running engine. All methods must be called on the thread that runs its event loop."""

    def __init__(
        self,
        directory: Directory,
        recovered: Recovered,
        settings: Settings,
        *,
        clock: Clock,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self.broker: Final = Broker(
            recovered,
            monotonic_ms=clock.monotonic_ms,
            segment_bytes=settings.segment_bytes,
            producer_idle_ms=settings.producer_idle_ms,
            tombstone_hours=settings.producer_tombstone_hours,
            random_bytes=clock.random_bytes,
        )
        self.durable_view: Final[DurableView] = self.broker.durable_view
        self.clock: Final = clock
        self.generation: Final = recovered.generation  # raised when an older copy is restored
        self.replayed_frames: Final = recovered.replayed_frames
        self.replayed_bytes: Final = recovered.replayed_bytes
        self._directory = directory
        self.settings: Final = settings
        self._on_fatal = on_fatal
        self._loop = asyncio.get_running_loop()
        self.space: Final = SpaceSurvey(directory.disk, directory.store)
        self._writer = JournalWriter(
            directory.disk,
            segment=recovered.segments.firsts[-1],
            segment_bytes=settings.segment_bytes,
            reserve_bytes=settings.reserve_bytes,
        )
        self._read_turns = ReadTurns(self._loop)
        self.broker.memberships.allow_format = directory.allow_format
        submit, search = self.broker.submit, self.broker.guard.search_steps
        self._group_turns = GroupTurns(self._loop, self._act, submit, search)
        self._clock_watch = ClockWatch()
        self._is_flush_due = self._is_writing = self._is_committing = self._needs_reserve = False
        self._sync_seconds, self.checkpoint_count = 0.0, 0
        self._is_draining = self._is_stopped = self._is_closed = False
        self._cut: Cut | None = None
        # A checkpoint begins at the latest when the journal has reached this LSN.
        self._next_cut = recovered.position + (settings.checkpoint_bytes or inf)
        self._segment = recovered.segments.firsts[-1]
        self._idle: list[asyncio.Future[None]] = []
        self._calls: set[asyncio.Future[Outcome]] = set()
        self._timers = Timers(self._loop, self._guard)

    @classmethod
    async def open(
        cls,
        path: str,
        settings: Settings | None = None,
        *,
        clock: Clock | None = None,
        on_fatal: Callable[[BaseException], None] = end_process,
        progress: Callable[[int, int], None] | None = None,
    ) -> Self:
        """Lock and recover the directory at `path`. Return a running engine. Raises EngineError.

        `progress` is called with the number of replayed segments and the total.
        """
        settings, clock = settings or Settings(), clock or SystemClock()
        directory = Directory(path)
        try:
            identity = clock.random_bytes(IDENTITY_BYTES)
            recovered = directory.recover(settings, identity, progress)
            engine = cls(directory, recovered, settings, clock=clock, on_fatal=on_fatal)
            engine.broker.set_room(engine._writer.prepare())
        except BaseException:
            directory.close()
            raise
        engine._start()
        return engine

    def _start(self) -> None:
        self._write_worker = Worker("semel-journal", self._fail)
        self._checkpoint_worker = Worker("semel-checkpoint", self._fail)
        self._survey_turns = SurveyTurns(self._checkpoint_worker, self.space)
        sys.setswitchinterval(_SWITCH_SECONDS)
        gc.collect()
        gc.freeze()  # it need not scan again what recovery built, which stays until the end
        # A request's objects form no cycles. So collect rarely.
        gc.set_threshold(_GC_ALLOCATIONS)
        self._timers.every(self.settings.checkpoint_interval_ms / 1000, self.checkpoint)
        self._timers.every(self.settings.sweep_interval_ms / 1000, self._sweep)
        self._timers.every(TICK_MS / 1000, self.broker.memberships.clock.watch(self._loop.time))
        self._timers.every(TICK_MS / 1000, self.broker.wakes.offer_due)
        self._timers.every(_ROOM_RETRY_SECONDS, self._look_for_room)
        self._checkpoint_worker.do(self._directory.store.check_rest, lambda _: None)
        self._flush_soon()

    @property
    def sync_count(self) -> int:
        return self._writer.sync_count

    # ---- commands ------------------------------------------------------------------------------

    def submit(self, command: EngineCommand, reply: Reply, caller: Caller | None = None) -> None:
        """Execute a command. Call `reply` when the outcome is durable. Raises EngineStopped."""
        if self._is_stopped or self._is_draining:
            raise EngineStopped("the engine has stopped")
        try:  # like do and _guard, but faster: this runs once per append
            if type(command) in GroupTurns.commands:
                self._group_turns.submit(command, reply, caller)
            else:
                self.broker.submit(command, reply, caller)
        except Exception as error:
            self._fail(error)
            raise EngineStopped("the engine has failed") from error
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def read(
        self,
        path: str,
        offset: int | None,
        reply: Reply,
        *,
        bytes_max: int = READ_BYTES_DEFAULT,
        isolation: str = READ_UNCOMMITTED,
        is_short: bool = False,
    ) -> None:
        """Read a stream's durable messages. See `Broker.read`. Raises EngineStopped.

        The reply, a ReadDone, a ReadTooLong or a refusal, comes now or later (see `ReadTurns`).
        """
        self._check_running()
        read = partial(
            self.broker.read,
            path,
            offset,
            reply=reply,
            bytes_max=bytes_max,
            isolation=isolation,
            is_short=is_short,
        )
        self._read_turns.begin(
            lambda: self.do(partial(read, now_ms=self.clock.now_ms())), is_short=is_short
        )

    def outcome(self, txn_id: str, epoch: int | None, reply: OutcomeReply) -> None:
        """Reply with the outcome of a transaction. See `Broker.outcome`."""
        self.do(partial(self.broker.outcome, txn_id, epoch, reply=reply))

    def head(self, path: str, reply: Reply) -> None:
        """Reply with a stream's durable state (a ReadDone without messages) or with a refusal."""
        self.do(partial(self.broker.head, path, now_ms=self.clock.now_ms(), reply=reply))

    def ask(
        self, question: Callable[[State], T], reply: Callable[[T], None], *, path: str = ""
    ) -> None:
        """Reply with what `question` returns for the state, when that state is durable.

        If the stream at `path` has expired, delete it before calling `question`.
        """

        def act() -> None:
            self.broker.has_stream(path, self.clock.now_ms())
            self.broker.ask(question, reply)

        self.do(act)

    def has_stream(self, path: str) -> bool:
        """Return True if the state has the stream, even if it is not durable yet.

        A response that depends on the result must wait for the reply of `submit` or `ask`: only
        then can a crash no longer undo what the result reports.
        """
        result: list[bool] = []
        self.do(lambda: result.append(self.broker.has_stream(path, self.clock.now_ms())))
        return result[0]

    # ---- queries and waits ---------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        return self.broker.is_full

    @property
    def durable(self) -> int:
        return self.broker.durable

    def stream(self, path: str) -> Stream | None:
        """Return the stream or topic at `path`, which might not be durable yet, or None."""
        return self.broker.state.by_path.get(path)

    def holding_txn(self, path: str) -> TxnView | None:
        """Return the transaction, durable or not, that holds back a stream's stable offset."""
        return holding_view(self.broker.state, path, self.txn_dates())

    def txn_dates(self) -> Dates:
        """Return a function that dates pending transactions by the wall clock as it is now."""
        return partial(self.broker.deadlines.dates, now_ms=self.clock.now_ms())

    def wait(
        self, path: str, offset: int, wake: Callable[[], None], isolation: str = READ_UNCOMMITTED
    ) -> Waiting | None:
        """Call `wake` once, when there is something to read. See `DurableView.wait`."""
        return self.durable_view.wait(path, offset, wake, isolation)

    def stop_waiting(self, waiting: Waiting) -> None:
        stop_waiting(*waiting)

    def do(self, action: Callable[[], None]) -> None:
        """Run `action`, then schedule a write of the broker's frames. Raises EngineStopped."""
        self._check_running()
        self._act(action)
        if self._is_stopped:
            raise EngineStopped("the engine has failed")

    def _act(self, action: Callable[[], None]) -> None:
        self._guard(action)
        self._flush_soon()

    def _check_running(self) -> None:
        if self._is_stopped or self._is_draining:
            raise EngineStopped("the engine has stopped")

    def _guard(self, action: Callable[[], None]) -> None:
        """Call `action`. If it raises, stop the engine: the state and the journal might now differ.

        An exception means a bug or a failed disk. Clients' mistakes and full disks are outcomes.
        """
        try:
            action()
        except Exception as error:  # noqa: BLE001 - the boundary of every call into the broker
            self._fail(error)

    async def execute(self, command: EngineCommand, caller: Caller | None = None) -> Outcome:
        """Execute a command. Return the outcome as soon as it is durable. Raises EngineStopped."""
        return await self._call(lambda reply: self.submit(command, reply, caller))

    def audit(self, records: list[bytes]) -> None:
        """Append encoded records to the audit stream. See `Guard.audit`."""
        self.do(partial(self.broker.guard.audit, records, self.clock.now_ms()))

    def require_access_format(self) -> None:
        """Make versions of semel that ignore tokens refuse the directory."""
        require_access_format(self._directory.disk)

    async def fetch(
        self,
        path: str,
        offset: int | None = None,
        *,
        bytes_max: int = READ_BYTES_DEFAULT,
        isolation: str = READ_UNCOMMITTED,
    ) -> Outcome:
        """Read a stream, starting at `offset` or at the head. Return a ReadDone or a refusal."""
        read = partial(self.read, path, offset, bytes_max=bytes_max, isolation=isolation)
        return await self._call(read)

    async def _call(self, start: Callable[[Reply], None]) -> Outcome:
        call: asyncio.Future[Outcome] = self._loop.create_future()
        self._calls.add(call)
        try:
            start(partial(set_result, call))
            return await call
        finally:
            self._calls.discard(call)

    def _sweep(self) -> None:
        now_ms = self.clock.now_ms()
        self._clock_watch.check(frame_ms=self.broker.state.time_ms, now_ms=now_ms)
        endings = self.broker.endings
        if endings.sweep(now_ms, _SWEEP_COUNT_MAX) + self.broker.count_hour(now_ms):
            self._flush_soon()
        self._group_turns.sweep(self.broker.sweep_groups(now_ms, _SWEEP_COUNT_MAX))

    # ---- the journal ---------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        if not (self._is_writing or self._is_stopped):
            self._guard(self._write_next)

    def _write_next(self) -> None:
        group = self.broker.next_group()
        if group is None:
            self._settle_idle()
        elif self._is_worth_a_thread(group):
            self._is_writing = True
            self._write_worker.do(partial(self._write, group), partial(self._written, group))
        else:
            self._written(group, self._write(group))

    def _is_worth_a_thread(self, group: WriteGroup) -> bool:
        """Return True if the thread should write a group, and False if the loop should write it.

        The loop writes groups without a sync and, if the disk is fast and no checkpoint is being
        committed, single short frames, to save the time to wake the thread.
        """
        is_slow = self._is_committing or self._sync_seconds > _INLINE_SYNC_SECONDS
        return group.is_synced and (is_slow or group.frames != 1 or group.size > _INLINE_BYTES_MAX)

    def _write(self, group: WriteGroup) -> Room | None:
        started = monotonic()
        self._writer.write(group)
        if group.is_synced:
            # A moving average. If syncs are slow, the thread writes the groups.
            self._sync_seconds += (monotonic() - started - self._sync_seconds) / 8
        rolled = any(part.segment != self._segment for part in group.parts)
        return self._writer.make_room() if rolled else None

    def _written(self, group: WriteGroup, room: Room | None) -> None:
        self._is_writing = not self.broker.catch_up()
        if self._is_writing:
            self._loop.call_soon(self._guard, partial(self._written, group, room))
            return
        self.broker.written(group)
        if room is not None:
            self._segment = group.parts[-1].segment
            self.broker.set_room(room)
            self.checkpoint()
        elif self.broker.durable >= self._next_cut:
            self.checkpoint()
        self._commit_cut_if_durable()
        self._flush_soon()

    def _look_for_room(self) -> None:
        """Try again to allocate the spare segment and the reserved disk space.

        If the disk was too full for the last checkpoint, leave the reserved space to the next one.
        If messages were deleted, begin a checkpoint to free their space. Raises DiskFailed.
        """
        if not self._directory.disk.is_there():
            raise DiskFailed(LOCK_LOST)
        if self.broker.is_full and self.broker.has_garbage:
            self.checkpoint()
        if self._is_writing or not (self.broker.needs_room or self._needs_reserve):
            return
        self._is_writing = True
        look = self._writer.give_up_reserve if self._needs_reserve else self._writer.make_room
        self._write_worker.do(look, self._found_room)

    def _found_room(self, room: Room) -> None:
        self._is_writing = False
        self.broker.set_room(room)
        if self._needs_reserve:
            self.checkpoint()
        self._flush_soon()

    def _settle_idle(self) -> None:
        waiting, self._idle = self._idle, []
        for future in waiting:
            set_result(future, None)

    # ---- checkpoints ---------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Begin a checkpoint, unless a checkpoint is running or nothing has changed."""
        if self._cut is not None or self._is_stopped:
            return
        if self.broker.catch_up():
            self._cut = self.broker.cut(is_last=self._is_draining)
            self._next_cut = self.broker.end + (self.settings.checkpoint_bytes or inf)
            if self._cut is None and self.space.segments is None:  # nothing has changed
                self._survey_turns.begin()
            self._commit_cut_if_durable()
            self._flush_soon()
        else:
            self._loop.call_soon(self._guard, self.checkpoint)

    def _commit_cut_if_durable(self) -> None:
        cut = self._cut
        if cut is None or self._is_committing or self.broker.durable < cut.lsn:
            return
        self._is_committing = True
        job = partial(commit_if_room, self._directory.store, cut)
        self._checkpoint_worker.do(job, partial(self._committed, cut))

    def _committed(self, cut: Cut, dead: list[int] | None) -> None:
        if dead is None:
            log.warning("no data is lost, but the disk is too full for checkpoints; free up space")
            self.broker.cut_failed(cut)
            self._cut_over(None)
            self._needs_reserve = True
            return
        self._needs_reserve = False
        self.broker.cut_done(dead)
        self.checkpoint_count += 1
        self._checkpoint_worker.do(partial(self._tidy, cut, dead), self._cut_over)
        self._survey_turns.begin()

    def _tidy(self, cut: Cut, dead: list[int]) -> None:
        drop_removed(cut)
        unlink_segments(self._directory.disk, dead)

    def _cut_over(self, _result: object) -> None:
        self._cut = None
        self._is_committing = False
        self._flush_soon()

    # ---- failure and close ---------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        self._is_stopped = True
        self._timers.stop()
        self._read_turns.drop()
        self._group_turns.drop()
        self._on_fatal(error)
        self._settle_idle()  # `on_fatal` returns if a program embeds the engine: all waits end
        for call in self._calls:
            if not call.done():
                call.set_exception(EngineStopped(f"the engine has failed: {error}"))

    async def settle(self) -> None:
        """Wait until everything is written and no checkpoint is running."""
        while not self._is_stopped:
            idle: asyncio.Future[None] = self._loop.create_future()
            self._idle.append(idle)
            self._flush_soon()
            await idle
            if self._cut is None:
                return
            await asyncio.sleep(0.001)

    async def close(self) -> None:
        """Refuse new calls, finish pending calls, make a checkpoint and close the directory."""
        if self._is_closed:
            return
        self._read_turns.finish()
        self._group_turns.finish()
        self._survey_turns.stop()
        self._is_draining = True
        if not self._is_stopped:
            await self.settle()
            self.checkpoint()
            await self.settle()
        self._is_stopped = self._is_closed = True
        self._group_turns.drop()
        self._timers.stop()
        self._write_worker.stop()
        self._checkpoint_worker.stop()
        self._writer.close()
        self.broker.close()
        self._directory.close()
