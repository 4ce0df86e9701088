"""The broker: the one writer. It does no I/O of its own: it hands out work orders.

The numbers EO-1 to EO-7 are the steps of an append's life (`docs/explanation/exactly-once.md`):

    submit()      EO-2 decide, EO-3 apply and gather, EO-4 hold every answer
    next_group()  EO-5 the bytes to write and sync
    written()     EO-6 the watermark moves, readers see, answers leave
    cut()         EO-7 the bytes of a checkpoint
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from semel.broker.durable_view import (
    DurableView,
    StreamView,
    Waiter,
    add_waiter,
    drop_waiter,
    tail_of_view,
)
from semel.broker.lookups import Lookups, TxnTally, affected_paths, affected_txns, expire_command
from semel.broker.reader import BrokerReader
from semel.broker.timers import Deadlines, Expiry, IdleProducers, can_expire, is_due
from semel.journal.appender import Appender, WriteGroup, frame_bytes_max
from semel.journal.checkpoint import Cut
from semel.journal.frame import encode_meta, frame_bytes
from semel.journal.recovery import Recovered
from semel.journal.txn_history import index_frames
from semel.journal.writer import Room
from semel.machine import Decision, Event, Section, State, apply, decide
from semel.machine.events import (
    ProducerClaimed,
    ProducerRaised,
    StreamAppended,
    TxnBegun,
    TxnPublished,
)
from semel.machine.rows import StreamRow, TailRow
from semel.machine.state import Txn, retained_range
from semel.model.commands import (
    Append,
    Create,
    Expire,
    ExpireProducer,
    ForkRequest,
    StoredAppend,
)
from semel.model.errors import CorruptRead, ReadFailed
from semel.model.limits import GROUP_BYTES_MAX, PARKED_COMMANDS_MAX, READ_BYTES_DEFAULT
from semel.model.media import is_json
from semel.model.outcomes import (
    BatchTooLarge,
    DiskFull,
    DiskReadFailed,
    Gone,
    NotFound,
    OffsetBeyondTail,
    OffsetTrimmed,
    Outcome,
    Overloaded,
    Unreadable,
)
from semel.model.slices import Slice
from semel.model.transactions import READ_COMMITTED, READ_UNCOMMITTED, TXN_STAGED, EngineCommand
from semel.model.txn_outcome import TxnOutcome

# An offset to read from: the end, wherever it is.
TAIL: Final = -1

Reply = Callable[[Outcome], None]
OutcomeReply = Callable[[TxnOutcome | Outcome | None], None]
T = TypeVar("T")


class ReadDone(Outcome, frozen=True):
    """What a read found, up to `next_offset`; the stream as it is durable now."""

    row: StreamRow
    tail: TailRow
    next_offset: int
    slices: list[Slice]


class _Pending:
    """What waits for a group: answers, and what readers will see."""

    __slots__ = ("answers", "changes", "is_synced")

    def __init__(self) -> None:
        self.answers: list[tuple[Callable[[Any], None], Any]] = []
        self.changes: dict[int, tuple[StreamRow, TailRow | None]] = {}
        self.is_synced = False


class Broker:
    """All state of a running engine. One thread calls it."""

    def __init__(
        self,
        recovered: Recovered,
        *,
        now_ms: int,
        segment_bytes: int,
        producer_idle_ms: int = 0,
    ) -> None:
        self.state: State = recovered.state
        self.durable_view = DurableView(self.state)
        self.is_full = False
        self.txn_tally = TxnTally()
        self._index = recovered.index
        self._txn_history = recovered.txn_history
        self._lookups = Lookups(self.state, self._txn_history)
        self._deadlines = Deadlines(self.state)
        self._segments = recovered.segments
        self._segments.durable = recovered.position
        self.reader = BrokerReader(
            self.durable_view, self._index, self._txn_history, self._segments
        )
        self._expiry = Expiry(self.state, now_ms)
        self._idle = IdleProducers(self.state, producer_idle_ms) if producer_idle_ms else None
        self._appender = Appender(
            seed=recovered.seed,
            position=recovered.position,
            previous_crc=recovered.previous_crc,
            segment=recovered.segments.firsts[-1],
            capacity=recovered.capacity,
            time_ms=recovered.state.time_ms,
        )
        self._frame_bytes_max = frame_bytes_max(segment_bytes)
        self._open = _Pending()
        self._flying: _Pending | None = None
        self._parked: deque[tuple[EngineCommand, Reply]] = deque()
        self._needs_watermark = True
        self._needs_sync = False
        self._cut_lsn = -1

    # ---- commands ------------------------------------------------------------------------------

    def submit(self, command: EngineCommand, reply: Reply) -> None:
        """Take a command; `reply` gets its outcome once the facts it reveals are durable."""
        if self._parked or not self._execute(command, reply):
            self._park(command, reply)

    def _park(self, command: EngineCommand, reply: Reply) -> None:
        """Let a command wait for the disk. Later ones queue behind it: order is a promise."""
        if len(self._parked) >= PARKED_COMMANDS_MAX:
            reply(Overloaded())
        else:
            self._parked.append((command, reply))

    def _execute(self, command: EngineCommand, reply: Reply) -> bool:
        """Decide and commit; False if it has to wait."""
        if self._appender.pending_bytes > GROUP_BYTES_MAX:
            return False
        if not (self._expiry.is_idle or self._expire_before(command)):
            return False
        if type(command) is not Append or command.transaction is not None:
            try:
                known = self._with_lookups(command)
            except ReadFailed as error:
                self._release(reply, _unread(error))
                return True
            if known is None:
                return False
            command = known
        return self._commit(decide(self.state, command), command.now_ms, reply)

    def _commit(self, decision: Decision, now_ms: int, reply: Reply) -> bool:
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
        if not self._appender.has_room(length) or (decision.grows and self.is_full):
            if self.is_full:
                self._release(reply, DiskFull())
            return self.is_full
        # EO-3. State and frame move together; the answer waits in the group.
        time_ms = self.state.frame_time(now_ms)
        lsn = self._appender.add(event, meta, sections, length, time_ms)
        segment = self._appender.segment
        if segment != self._segments.firsts[-1]:
            self._segments.add(segment)
        apply(self.state, event, sections, time_ms, lsn)
        if type(event) is StreamAppended:
            for section in sections:
                self._index.add(section.stream, section.base, section.count, lsn, segment)
        else:
            self._note_event(event, sections, lsn)
        self._note_changes()
        if self._idle is not None:
            self._watch_producer(self._idle, event)
        self._open.answers.append((reply, decision.outcome))
        return True

    def _note_event(self, event: Event, sections: tuple[Section, ...], lsn: int) -> None:
        """Index a frame that may hold more than the messages of one stream."""
        self.txn_tally.note(self.state.news)
        index_frames(
            self.state.news,
            sections,
            lsn=lsn,
            index=self._index,
            memory=self._txn_history,
            segments=self._segments,
        )
        if isinstance(event, TxnBegun):
            self.txn_tally.started += 1
            self._deadlines.watch(self.state.by_txn[event.number])

    def _watch_producer(self, idle: IdleProducers, event: Event | None) -> None:
        if isinstance(event, TxnPublished | ProducerRaised):
            inner = event.append
            event = (inner or event.claimed) if isinstance(event, ProducerRaised) else inner
        if isinstance(event, StreamAppended) and event.stamp:
            idle.watch(event.stream, event.stamp.id)
        elif isinstance(event, ProducerClaimed):
            idle.watch(event.stream, event.id)

    def _note_changes(self) -> None:
        """Remember what readers will see once the open group is durable."""
        changes = self._open.changes
        for stream in self.state.touched:
            row, tail = stream.row, stream.tail
            is_removed = tail.is_deleted and row.number not in self.state.by_number
            changes[row.number] = (row, None if is_removed else tail)
            if can_expire(row):
                if tail.is_deleted:
                    self._expiry.forget(row.number)
                else:
                    self._expiry.watch(stream)
        self.state.touched.clear()

    def _release(self, reply: Callable[[T], None], answer: T) -> None:
        """EO-4. An answer that changes nothing still reveals the state it was decided on."""
        if self._appender.has_facts:
            self._open.answers.append((reply, answer))
        elif self._flying is not None and self._flying.is_synced:
            self._flying.answers.append((reply, answer))
        else:
            reply(answer)

    def ask(self, question: Callable[[State], T], reply: Callable[[T], None]) -> None:
        """Answer a question about the state, as soon as that state is durable."""
        self._release(reply, question(self.state))

    def has_stream(self, path: str, now_ms: int) -> bool:
        """Tell whether a path is taken, as it is decided; a stream whose time is over ends now."""
        if not self._expiry.is_idle:
            self._expire_if_due(path, now_ms)
        return path in self.state.by_path

    # ---- facts a command needs from the journal ------------------------------------------------

    def _expire_before(self, command: EngineCommand) -> bool:
        """Write the end of streams whose time is over before a command meets them."""
        return all(self._expire_if_due(path, command.now_ms) for path in affected_paths(command))

    def _with_lookups(self, command: EngineCommand) -> EngineCommand | None:
        """Add to a command what its decision needs from the journal; None if it has to wait."""
        if isinstance(command, Create):
            fork = command.fork
            if fork is None or not fork.sub_offset:
                return command
            return None if self._awaits_source(fork) else self._with_stored(command, fork)
        for txn in affected_txns(self.state, command):
            if not self._end_if_due(txn, command.now_ms):
                return None
        return self._lookups.add(command)

    def _end_if_due(self, txn: Txn, now_ms: int) -> bool:
        """Write the end of a transaction whose time is over before a command meets it."""
        is_open = self.state.by_txn.get(txn.row.number) is txn
        if not is_open or not is_due(self.state, txn, now_ms):
            return True
        return self._commit(decide(self.state, expire_command(txn, now_ms)), now_ms, _nobody)

    def _expire_if_due(self, path: str, now_ms: int) -> bool:
        stream = self.state.by_path.get(path)
        if stream is None or not can_expire(stream.row) or stream.tail.is_deleted:
            return True
        if not self._expiry.is_over(stream, now_ms):
            return True
        expire_command = Expire(path, now_ms, self._expiry.touched_ms(stream.row.number))
        return self._commit(decide(self.state, expire_command), now_ms, _nobody)

    def _awaits_source(self, fork: ForkRequest) -> bool:
        """Tell whether the append a fork divides is still on its way to the disk."""
        source = self.state.by_path.get(fork.source)
        if source is None or source.tail.is_deleted:
            return False
        if fork.offset is None or fork.offset >= source.tail.stable:
            return False
        view = self.durable_view.by_number.get(source.row.number)
        return view is None or view.tail is None or view.tail.stable <= fork.offset

    def _with_stored(self, command: Create, fork: ForkRequest) -> Create:
        """Add what the journal holds at the fork's offset."""
        source = self.state.by_path.get(fork.source)
        offset = fork.offset
        if source is None or source.tail.is_deleted or offset is None:
            return command
        if not source.tail.head <= offset < source.tail.stable:
            return command
        number = source.row.number
        view = self.durable_view.by_number[number]
        assert view.tail is not None
        end = view.tail.stable
        slices, _ = self.reader.read_on(view, offset, end, 1, is_committed=True)
        if not slices or slices[0].offset != offset:
            return command  # a control record or an aborted message is nothing to divide
        piece = slices[0]
        message = next(piece.messages())
        units = piece.count if is_json(source.row.content_type) else len(message)
        stored = StoredAppend(number, offset, units, message)
        return replace(command, fork=replace(fork, stored=stored))

    # ---- work orders ---------------------------------------------------------------------------

    def next_group(self) -> WriteGroup | None:
        """Hand out the next bytes to write, unless some are being written."""
        if self._flying is not None:
            return None
        group = self._appender.take()
        if group is None and self._needs_sync:
            group = self._appender.take_sync()
        elif group is None and self._needs_watermark:
            group = self._appender.take_watermark()
            self._needs_watermark = False
        if group is not None:
            self._flying, self._open = self._open, _Pending()
            self._flying.is_synced = group.is_synced
            self._unpark()  # the next group forms while this one is on its way
        return group

    def written(self, group: WriteGroup) -> None:
        """EO-6. A group is on disk (and durable, if it was to be): readers see, answers leave."""
        flying, self._flying = self._flying, None
        assert flying is not None
        if group.is_synced:
            self._needs_watermark = group.size > 0
            self._needs_sync = self._needs_sync and group.end < self._cut_lsn
            self._appender.durable = self._segments.durable = group.end
        woken = self.durable_view.promote(flying.changes.values())
        for number, (_, tail) in flying.changes.items():
            if tail is None:
                self._index.forget(number)
                self._txn_history.forget(number)
        for reply, answer in flying.answers:
            reply(answer)
        for waiter in woken:
            waiter.wake()
        self._unpark()

    def set_room(self, room: Room) -> None:
        """Learn what room the disk has."""
        self.is_full = room.is_full
        self._appender.offer_spare(room.segment, room.spare_bytes)
        self._unpark()

    def close(self) -> None:
        """Let the files go that reads have opened."""
        self._segments.close()

    def _unpark(self) -> None:
        while self._parked and self._execute(*self._parked[0]):
            self._parked.popleft()

    @property
    def is_congested(self) -> bool:
        """Tell whether commands wait for the disk."""
        return bool(self._parked)

    @property
    def needs_room(self) -> bool:
        """Tell whether the writer should look for a spare segment or its reserve."""
        return self.is_full or not self._appender.has_spare

    @property
    def has_garbage(self) -> bool:
        """Tell whether the next checkpoint may free segments that no stream needs any more."""
        return bool(self.state.dirty.pruned)

    @property
    def durable(self) -> int:
        """The durable watermark."""
        return self._appender.durable

    @property
    def end(self) -> int:
        """Where the journal ends, written or not."""
        return self._appender.position

    # ---- checkpoints ---------------------------------------------------------------------------

    def cut(self) -> Cut | None:
        """EO-7. Take the state as it is now, for a checkpoint once it is durable."""
        if self._appender.position == self._cut_lsn:
            return None
        self._cut_lsn = self._appender.position
        self._needs_sync = self._appender.durable < self._cut_lsn
        dirty = self.state.take_dirty()
        alive = self.state.by_number
        known: dict[int, int] = {}
        return Cut(
            self._cut_lsn,
            self._appender.previous_crc,
            self.state.meta_row(),
            dirty,
            self._index.cut(),
            {n: retained_range(self.state, alive[n], known) for n in dirty.pruned if n in alive},
            self._segments.spans(),
            self._txn_history.cut(),
            [page for txn in self.state.by_txn.values() for page in _chunks_of(txn)],
        )

    def cut_done(self, dead: list[int]) -> None:
        """The checkpoint is durable; the segments in `dead` may be unlinked after this."""
        self._index.finish_cut()
        self._txn_history.finish_cut()
        self._segments.remove(dead)

    def cut_failed(self, cut: Cut) -> None:
        """The store had no room: take everything back, for the next checkpoint."""
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
    ) -> None:
        """Read a stream as it is durable, from `offset` (None: its head). A read is a use."""
        if self._is_there(path, now_ms, reply):
            is_committed = isolation == READ_COMMITTED
            reply(self._read(path, offset, now_ms, bytes_max, is_committed=is_committed))

    def head(self, path: str, *, now_ms: int, reply: Reply) -> None:
        """Tell a stream's durable state. Looking is no use of it."""
        if self._is_there(path, now_ms, reply):
            found = self._view(path)
            if isinstance(found, Outcome):
                reply(found)
            else:
                view, tail = found
                reply(ReadDone(view.row, tail, tail.tail, []))

    def _is_there(self, path: str, now_ms: int, reply: Reply) -> bool:
        """Answer for a stream that is not there, or not any more; else leave that to the caller."""
        if not self._expiry.is_idle and not self._expire_if_due(path, now_ms):
            reply(Overloaded())
            return False
        if path not in self.state.by_path:
            # EO-4. Whoever is told that it is gone may not meet it again after a crash.
            self._release(reply, NotFound())
            return False
        return True

    def _view(self, path: str) -> tuple[StreamView, TailRow] | Outcome:
        view = self.durable_view.by_path.get(path)
        if view is None or view.tail is None:
            return NotFound()
        return Gone() if view.tail.is_deleted else (view, view.tail)

    def _read(
        self, path: str, offset: int | None, now_ms: int, bytes_max: int, *, is_committed: bool
    ) -> Outcome:
        found = self._view(path)
        if isinstance(found, Outcome):
            return found
        view, tail = found
        if offset is None:
            offset = tail.head
        elif offset == TAIL:
            offset = tail_of_view(tail, is_committed)
        if offset > tail.tail:
            return OffsetBeyondTail(tail.tail)
        if offset < tail.head:
            return OffsetTrimmed(tail.head)
        if can_expire(view.row):
            self._expiry.touch(view.row.number, now_ms)
        try:
            # Whoever stands behind what is stable stays there.
            end = max(offset, tail_of_view(tail, is_committed))
            slices, next_offset = self.reader.read_on(
                view, offset, end, bytes_max, is_committed=is_committed
            )
        except ReadFailed as error:
            return _unread(error)
        return ReadDone(view.row, tail, next_offset, slices)

    def wait(
        self,
        path: str,
        offset: int,
        wake: Callable[[], None],
        isolation: str = READ_UNCOMMITTED,
    ) -> tuple[StreamView, Waiter] | None:
        """Call `wake` once when the stream may have more than `offset`, is closed or gone.

        None if there is nothing to wait for, or too many wait.
        """
        view = self.durable_view.by_path.get(path)
        if view is None or view.tail is None or view.tail.is_closed or view.tail.is_deleted:
            return None
        waiter = Waiter(offset, wake, is_committed=isolation == READ_COMMITTED)
        if tail_of_view(view.tail, waiter.is_committed) > offset or not add_waiter(view, waiter):
            return None
        return view, waiter

    def stop_waiting(self, waiting: tuple[StreamView, Waiter]) -> None:
        """Give up a wait."""
        drop_waiter(*waiting)

    def sweep(self, now_ms: int, count_max: int) -> int:
        """Write the end of streams, transactions and producers whose time is over; count them."""
        streams = self._expiry.due(now_ms, count_max)
        txns = self._deadlines.due(now_ms, count_max)
        count = sum(self._expire_if_due(stream.row.path, now_ms) for stream in streams)
        count += sum(self._end_if_due(txn, now_ms) for txn in txns)
        return (
            count if self._idle is None else count + self._sweep_idle(self._idle, now_ms, count_max)
        )

    def _sweep_idle(self, idle: IdleProducers, now_ms: int, count_max: int) -> int:
        count = 0
        for path, producer_id in idle.due(now_ms, count_max):
            command = ExpireProducer(path, now_ms, producer_id, idle.idle_ms)
            count += self._commit(decide(self.state, command), now_ms, _nobody)
        return count

    def outcome(self, txn_id: str, epoch: int | None, *, now_ms: int, reply: OutcomeReply) -> None:
        """Tell how a transaction ended: that of `epoch`, or (None) the newest of its id."""
        try:
            if epoch is None:
                epoch = self._lookups.last_epoch(txn_id, now_ms)
            found = self._lookups.of(txn_id, epoch, now_ms)[0]
        except ReadFailed as error:
            self._release(reply, _unread(error))
        else:
            self._release(reply, found)


def _unread(error: ReadFailed) -> Outcome:
    is_corrupt = isinstance(error, CorruptRead)
    return Unreadable(str(error)) if is_corrupt else DiskReadFailed(str(error))


def _chunks_of(txn: Txn) -> list[bytes]:
    return txn.chunk_blocks if txn.row.kind == TXN_STAGED else []


def _nobody(_outcome: Outcome) -> None:
    """Answer no one: the engine asked itself."""
