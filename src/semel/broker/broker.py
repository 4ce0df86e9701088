"""The broker: it decides every command and builds every frame of the journal.

The broker does not write to the disk. It returns work orders, and the engine executes them. These
methods do the steps EO-2 to EO-7, which `docs/explanation/exactly-once.md` explains:

    submit()      decides a command (EO-2), applies its event (EO-3), delays the reply (EO-4)
    next_group()  returns the bytes to write (EO-5)
    written()     sends the replies (EO-6)
    cut()         returns the rows of a checkpoint (EO-7)
"""

import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from msgspec import Struct

from semel.broker.durable_view import (
    TAIL,
    BrokerReader,
    DurableView,
    ReadDone,
    StreamView,
    unreadable,
)
from semel.broker.endings import Endings
from semel.broker.guard import Guard, ignore
from semel.broker.lookups import Lookups, decide_at_once
from semel.broker.memberships import FORMAT_EVENTS, Memberships
from semel.broker.producer_timers import ProducerLives
from semel.broker.timers import Deadlines, Expiry, Hours
from semel.broker.wakes import Wakes
from semel.broker.worker import DecisionTurns
from semel.journal.appender import Appender, WriteGroup, frame_bytes_max
from semel.journal.checkpoint import Cut, make_cut
from semel.journal.frame import encode_meta, frame_bytes
from semel.journal.recovery import Recovered
from semel.journal.writer import Room
from semel.machine import Decision, Event, Section, State, apply, decide
from semel.machine.events import PolicyChanged, StreamAppended, TxnBegun, declared_event
from semel.machine.rows import StreamRow, TailRow
from semel.machine.state import Effects, Stream
from semel.model.commands import (
    COMMITTED,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    EngineCommand,
    TxnOutcome,
)
from semel.model.errors import ReadFailed
from semel.model.group_commands import RebalanceGroup
from semel.model.limits import GROUP_BYTES_MAX, HOUR_MS, PARKED_COMMANDS_MAX, READ_BYTES_DEFAULT
from semel.model.outcomes import (
    BatchTooLarge,
    DiskFull,
    InvalidRequest,
    NotFound,
    OffsetBeyondTail,
    OffsetTrimmed,
    Outcome,
    Overloaded,
)
from semel.model.producer_commands import CountHour
from semel.model.rights import Caller
from semel.model.validation import find_invalid_field

__all__ = ["TAIL", "Broker", "OutcomeReply", "ReadDone", "Reply"]

Reply = Callable[[Outcome], None]
OutcomeReply = Callable[[TxnOutcome | Outcome | None], None]
T = TypeVar("T")


class _Pending(Struct):
    """Replies and stream changes that are held back until a write group has been written."""

    replies: list[tuple[Callable[[Any], None], Any]] = []
    changes: dict[int, tuple[StreamRow, TailRow | None]] = {}
    is_synced: bool = False


class Broker:
    """Decides the commands of an engine. All methods must be called from the same thread.

    `monotonic_ms` returns the time of a monotonic clock, which measures all timeouts. `txns_begun`
    and `txns_ended` count transactions since the start of the process. The keys of `txns_ended` are
    COMMITTED and the reasons for aborts.
    """

    def __init__(
        self,
        recovered: Recovered,
        *,
        monotonic_ms: Callable[[], int],
        segment_bytes: int,
        producer_idle_ms: int = 0,
        tombstone_hours: int | None = None,
        hour_ms: int = HOUR_MS,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.state: State = recovered.state
        view = self.durable_view = DurableView(self.state)
        self.is_full, self.txns_begun = False, 0
        self.txns_ended: Counter[str] = Counter()
        self._index = recovered.index
        self.catch_up = self._index.catch_up  # a step of what must be done before `written`
        self._txn_history = recovered.txn_history
        self.deadlines = Deadlines(self.state, monotonic_ms)
        self._segments = recovered.segments
        self._segments.durable = recovered.position
        self.reader = BrokerReader(view, self._index, self._txn_history, self._segments)
        self._lookups = Lookups(self.state, self._txn_history, view, self.reader, self.deadlines)
        self.guard = Guard(self.state, self._lookups, self._commit, lambda: self.end)
        self._expiry = Expiry(self.state, monotonic_ms)
        self._hours = Hours(hour_ms, monotonic_ms, self.state.run_ms)
        self._appender = Appender(
            seed=recovered.seed,
            position=recovered.position,
            previous_crc=recovered.previous_crc,
            segment=recovered.segments.firsts[-1],
            capacity=recovered.capacity,
            time_ms=recovered.state.time_ms,
        )
        self._frame_bytes_max = frame_bytes_max(segment_bytes)
        self._lives = ProducerLives(
            self.state,
            monotonic_ms,
            idle_ms=producer_idle_ms,
            tombstone_hours=tombstone_hours,
            frame_bytes_max=self._frame_bytes_max,
            hour_ms=hour_ms,
        )
        self.memberships = Memberships(self.state, monotonic_ms)
        clock = self.memberships.clock
        self.wakes = Wakes(self.state, self._execute_own, clock, random_bytes)
        self.endings = Endings(
            self.state,
            self._execute_own,
            deadlines=self.deadlines,
            expiry=self._expiry,
            lives=self._lives,
            memberships=self.memberships,
            wakes=self.wakes,
        )
        self._open = _Pending()
        self._flying: _Pending | None = None
        self._parked: deque[tuple[EngineCommand, Reply, Caller | None]] = deque()
        self._decisions = DecisionTurns(self.state)
        self._needs_watermark, self._cut_lsn = True, -1

    # ---- commands ------------------------------------------------------------------------------

    def submit(self, command: EngineCommand, reply: Reply, caller: Caller | None = None) -> None:
        """Execute a command. Reply when everything that the outcome depends on is durable.

        Without a `caller`, everything is allowed: access is off, or a program embeds the engine.
        """
        field = find_invalid_field(command)
        if field is not None:
            self._release(reply, InvalidRequest(field))
        elif self._parked or not self._execute(command, reply, caller):
            self._park(command, reply, caller)

    def _park(self, command: EngineCommand, reply: Reply, caller: Caller | None) -> None:
        """Queue a command that has to wait, and all later ones; refuse it if too many wait."""
        if len(self._parked) >= PARKED_COMMANDS_MAX:
            reply(Overloaded())
        else:
            self._parked.append((command, reply, caller))

    def _execute(self, command: EngineCommand, reply: Reply, caller: Caller | None) -> bool:
        """Decide a command and apply its event. Return False if the command has to wait.

        The caller's rights are checked here, because a command that waited can have lost them.
        """
        if self._appender.group.size > GROUP_BYTES_MAX:
            return False
        if self._expiry.uses and not self.endings.expire_streams(command):
            return False
        at_once = decide_at_once(self.state, command, caller)
        if at_once is not None:
            return self._commit(at_once, command.now_ms, reply)
        try:
            complete = self._with_lookups(command)
            refusal = None if caller is None else self.guard.refuse(command, caller)
        except ReadFailed as error:
            self._release(reply, unreadable(error))
            return True
        if refusal is not None:
            self._release(reply, refusal)
            return True
        if complete is None:
            return False
        decision = self._decisions.decide(command, complete, self.end)
        if decision is None:
            return False
        self.endings.note_heard(command, decision.outcome)
        if caller is None:
            return self._commit(decision, command.now_ms, reply)
        return self.guard.commit(caller, command, decision, reply)

    def _commit(self, decision: Decision, now_ms: int, reply: Reply, more: int = 0) -> bool:
        """Add an event and apply it. Return False if it and `more` bytes have no room yet."""
        event = decision.event
        if event is None:
            self._release(reply, decision.outcome)
            return True
        sections = decision.sections
        meta = encode_meta(event)
        length = frame_bytes(meta, sections)
        if length > self._frame_bytes_max:
            self._release(reply, BatchTooLarge(self._frame_bytes_max))
            return True
        if not self._appender.has_room(length + more) or (decision.grows and self.is_full):
            if self.is_full:
                self._release(reply, DiskFull())
            return self.is_full
        if type(event) in FORMAT_EVENTS and not self.memberships.allows_first(type(event)):
            self._release(reply, DiskFull())
            return True
        # EO-3. The frame is added and the state is changed in one step. The reply waits.
        state, appender = self.state, self._appender
        time_ms = now_ms if now_ms > state.time_ms else state.time_ms  # as `State.frame_time`
        lsn = appender.add(event, meta, sections, length, time_ms)
        segment = appender.segment
        if segment != self._segments.firsts[-1]:
            self._segments.add(segment)
        effects = apply(state, event, sections, time_ms, lsn)
        if type(event) is StreamAppended and not self._index.late:
            for section in sections:
                self._index.add(section.stream, section.base, section.count, lsn, segment)
        else:
            self._note_event(event, sections, lsn, effects)
        self._note_changes(effects.streams)
        if self._lives.idle is not None:
            self._lives.idle.note(event)
        self._open.replies.append((reply, decision.outcome))
        return True

    def _note_event(
        self, event: Event, sections: tuple[Section, ...], lsn: int, effects: Effects
    ) -> None:
        """Index an event's frame, and update the history, counts and deadlines of transactions.

        `_commit` does this itself for most StreamAppended.
        """
        self._index.add_frame_in_steps(lsn, sections, effects.placed, self._segments)
        self._txn_history.add(effects)
        for row in effects.outcomes:
            is_committed = row.outcome.decision == COMMITTED
            self.txns_ended[COMMITTED if is_committed else row.outcome.reason] += 1
        if isinstance(event, TxnBegun):
            self.txns_begun += 1
        elif isinstance(event, PolicyChanged):  # readers see it when it is durable, as replies do
            self._open.replies.append((self.durable_view.set_policies, self.state.policies))
        self.deadlines.note(declared_event(event))
        self._hours.note(event)
        self._open.replies += self.memberships.note(event)
        self._open.replies += self.wakes.note(event)

    def _note_changes(self, streams: Iterable[Stream]) -> None:
        """Record changed streams. Readers see the changes when the open write group is durable."""
        changes = self._open.changes
        for stream in streams:
            row, tail = stream.row, stream.tail
            is_removed = tail.is_deleted and row.number not in self.state.by_number
            changes[row.number] = (row, None if is_removed else tail)
            if row.ttl_ms is not None or row.expires_at_ms is not None:  # as `can_expire`
                if tail.is_deleted:
                    self._expiry.forget(row.number)
                else:
                    self._expiry.note(stream)
            elif row.topic and self._expiry.uses:
                self._expiry.note_partition(stream)

    def _release(self, reply: Callable[[T], None], result: T) -> None:
        """Send `result` when everything that it depends on is durable. Refusals wait too (EO-4)."""
        if self._appender.group.is_synced:
            self._open.replies.append((reply, result))
        elif self._flying is not None and self._flying.is_synced:
            self._flying.replies.append((reply, result))
        else:
            reply(result)

    def ask(self, question: Callable[[State], T], reply: Callable[[T], None]) -> None:
        """Call `question` with the state. Reply with the answer when that state is durable."""
        self._release(reply, question(self.state))

    def has_stream(self, path: str, now_ms: int) -> bool:
        """Return True if the state has the stream. Delete the stream first if it has expired."""
        if self._expiry.uses:
            self.endings.expire_stream(path, now_ms)
        return path in self.state.by_path

    def _with_lookups(self, command: EngineCommand) -> EngineCommand | None:
        """First end what is overdue. Return the command with the facts that it needs.

        Return None if the command has to wait. Raises ReadFailed.
        """
        return self._lookups.add(command) if self.endings.prepare(command) else None

    def _execute_own(self, command: EngineCommand) -> bool:
        """Execute a command that no client has sent. Return False if it has to wait."""
        return self._commit(decide(self.state, command), command.now_ms, ignore)

    def _rebalance(self, command: RebalanceGroup) -> bool:
        """Rebalance a group, and wake its members. Return False if the command has to wait."""
        end = self.end
        is_done = self._execute_own(command)
        if not is_done or (self.is_full and self.end == end):
            self.state.unsettled.add(command.group)
        self._release(self.memberships.wake, command.group)
        return is_done

    # ---- work orders ---------------------------------------------------------------------------

    def next_group(self) -> WriteGroup | None:
        """Return the next write group (EO-5). Return None during a write, or if none is needed."""
        if self._flying is not None:
            return None
        if self._decisions.is_waiting:
            self._unpark()
        if self.state.subscriptions.due and not self.is_full:
            self.wakes.issue_due()
        group = self._appender.take()
        if group is None and self.durable < self._cut_lsn:
            group = self._appender.take_sync()
        elif group is None and self._needs_watermark:
            group = self._appender.take_watermark()
            self._needs_watermark = False
        if group is not None:
            self._flying, self._open = self._open, _Pending()
            self._flying.is_synced = group.is_synced
            self._unpark()  # the next group is filled while this one is written
        return group

    def written(self, group: WriteGroup) -> None:
        """Make the durable messages of a group visible to readers, and send its replies (EO-6)."""
        flying, self._flying = self._flying, None
        assert flying is not None
        self._index.catch_up_with_all()
        if group.is_synced:
            self._needs_watermark = group.size > 0
            self._appender.durable = self._segments.durable = group.end
        woken = self.durable_view.promote(flying.changes.values())
        for number, (_, tail) in flying.changes.items():
            if tail is None:
                self._index.forget(number)
                self._txn_history.forget(number)
        for reply, result in flying.replies:
            reply(result)
        for waiter in woken:
            waiter.wake()
        self._unpark()

    def set_room(self, room: Room) -> None:
        """Record how much disk space is left, and try the queued commands again."""
        self.is_full = room.is_full
        self._appender.offer_spare(room.segment, room.spare_bytes)
        self._unpark()

    def close(self) -> None:
        """Close the files that were opened for reads."""
        self._segments.close()

    def _unpark(self) -> None:
        while self._parked and self._execute(*self._parked[0]):
            self._parked.popleft()

    @property
    def is_congested(self) -> bool:
        """True if commands are queued because they have to wait."""
        return bool(self._parked)

    @property
    def needs_room(self) -> bool:
        """True if the writer should try to allocate a spare segment or to reserve disk space."""
        return self.is_full or not self._appender.has_spare

    @property
    def has_garbage(self) -> bool:
        """True if the next checkpoint might free segments that no stream needs any more."""
        return bool(self.state.dirty.pruned)

    @property
    def durable(self) -> int:
        """The durable watermark: the LSN up to which the journal is durable."""
        return self._appender.durable

    @property
    def end(self) -> int:
        """The LSN at which the journal ends, including frames that are not written yet."""
        return self._appender.position

    # ---- checkpoints (EO-7) --------------------------------------------------------------------

    def cut(self, *, is_last: bool = False) -> Cut | None:
        """Return a cut, the work order for a checkpoint. Return None if there is nothing to store.

        `is_last` is True at the end. Commit the cut when the journal is durable up to its LSN.
        """
        if self.end == self._cut_lsn and not self._hours.must_store(is_last=is_last):
            return None
        self._cut_lsn = self.end
        return make_cut(
            self.state,
            self._cut_lsn,
            previous_crc=self._appender.previous_crc,
            run_ms=self._hours.store(),
            index=self._index,
            segments=self._segments,
            txn_history=self._txn_history,
        )

    def cut_done(self, dead: list[int]) -> None:
        """Record that a checkpoint is committed. The segments in `dead` can now be unlinked."""
        self._index.finish_cut()
        self._txn_history.finish_cut()
        self._segments.remove(dead)

    def cut_failed(self, cut: Cut) -> None:
        """Record that the disk was too full to commit `cut`. The next cut includes its changes."""
        self._index.undo_cut()
        self._txn_history.undo_cut()
        self.state.dirty.absorb(cut.dirty)
        self._cut_lsn = -1

    # ---- reading -------------------------------------------------------------------------------

    def read(
        self,
        path: str,
        offset: int | None,
        *,
        now_ms: int,
        reply: Reply,
        bytes_max: int = READ_BYTES_DEFAULT,
        isolation: str = READ_UNCOMMITTED,
        is_short: bool = False,
    ) -> None:
        """Reply with a stream's durable messages, starting at `offset`, or with a refusal.

        The offset None means the head, and TAIL means the tail. A read at a valid offset restarts
        the stream's TTL, if it has one. For `is_short`, see `BrokerReader.read`.
        """
        view = self._find_view(path, now_ms, reply)
        if view is not None:
            outcome = self.reader.read(
                view, offset, bytes_max, is_committed=isolation == READ_COMMITTED, is_short=is_short
            )
            if not isinstance(outcome, OffsetBeyondTail | OffsetTrimmed):
                self._expiry.touch(view.row.topic or view.row.number)
            reply(outcome)

    def head(self, path: str, *, now_ms: int, reply: Reply) -> None:
        """Reply with a stream's durable state, without messages. The TTL is not restarted."""
        view = self._find_view(path, now_ms, reply)
        if view is not None:
            tail = view.durable_tail
            reply(ReadDone(view.row, tail, tail.tail, []))

    def _find_view(self, path: str, now_ms: int, reply: Reply) -> StreamView | None:
        """Return the stream if it can be read. Otherwise reply with a refusal and return None."""
        if self._expiry.uses and not self.endings.expire_stream(path, now_ms):
            reply(Overloaded())
            return None
        if path not in self.state.by_path:
            # EO-4. The reply waits until the removal is durable and survives a crash.
            self._release(reply, NotFound())
            return None
        view = self.durable_view.find(path)
        if isinstance(view, StreamView):
            return view
        reply(view)
        return None

    def sweep_groups(self, now_ms: int, count_max: int) -> Iterator[int]:
        """End members and releases that are due, and rebalance groups, one change per step.

        At most `count_max` of each kind. Yield 1 if a change was an expiry.
        """
        for command in self.memberships.due(now_ms, count_max):
            yield self._execute_own(command)
        for rebalance in self.memberships.due_rebalances(now_ms, count_max):
            self._rebalance(rebalance)
            yield 0

    def count_hour(self, now_ms: int) -> bool:
        """Count an hour if the process has run for one more. Return False if none is due yet."""
        return self._hours.is_due() and self._execute_own(CountHour(now_ms))

    def outcome(self, txn_id: str, epoch: int | None, *, reply: OutcomeReply) -> None:
        """Reply with a transaction's outcome, with None or with a refusal: `named_outcome`."""
        try:
            result = self._lookups.named_outcome(txn_id, epoch)
        except ReadFailed as error:
            self._release(reply, unreadable(error))
        else:
            self._release(reply, result)
