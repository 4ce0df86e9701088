"""Finds overdue transactions, expired streams and idle producers, even if no request arrives.

All timeouts are measured by the monotonic clock of the process, because the wall clock can jump,
and because frame time can stay ahead of it for years. What happened before the process started is
not known to that clock, so every timeout starts again when the process starts. Everything can
therefore end late, but never early. Of producers, the complete hours are known that the journal has
counted since their last use.

Each class only returns the objects that are due. The broker then runs a command for each of
them, such as ExpireTxn, with the time that has elapsed.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Any, Final

from msgspec import Struct

from semel.machine import Event
from semel.machine.events import (
    ChunkStaged,
    HourPassed,
    PositionsNamed,
    TxnBegun,
    TxnExtended,
    TxnPrepared,
    TxnPublished,
    producer_in,
)
from semel.machine.rows import ProducerRow, StreamRow, is_partition
from semel.machine.state import State, Stream, Txn
from semel.machine.streams import is_expired
from semel.machine.txn.decide_end import deadline_of, timeout_of
from semel.machine.txn.views import TxnDates
from semel.model.commands import ExpireProducer, ProducerOwner

log = logging.getLogger("semel")

MonotonicMs = Callable[[], int]

QUEUE_SLACK: Final = 1_024


def _pruned(queue: list[tuple[int, int]], watched: Mapping[int, Any]) -> list[tuple[int, int]]:
    """Return the queue, without the objects that are not watched if these are about half of it."""
    if len(queue) > 2 * len(watched) + QUEUE_SLACK:
        queue = [entry for entry in queue if entry[1] in watched]
        heapify(queue)
    return queue


# ---- transactions --------------------------------------------------------------------------------

_DATE_TOLERANCE_MS: Final = 1_000


class _TxnUse(Struct):
    """When a transaction was used, by the monotonic clock. None means before the process started.

    `renewed_ms` is when the timeout of a producer's transaction started or was renewed.
    """

    begun_ms: int | None
    touched_ms: int | None
    renewed_ms: int


class Deadlines:
    """The pending transactions, and a queue of those that have a timeout.

    Each entry of the queue has the time of a transaction's next check. When a transaction is used,
    its timeout can be renewed, but its entry does not change. If the check then comes before the
    timeout has passed, the transaction is queued again.
    """

    def __init__(self, state: State, monotonic_ms: MonotonicMs) -> None:
        self._state = state
        self._monotonic_ms = monotonic_ms
        self._started_ms = monotonic_ms()
        self._uses: dict[int, _TxnUse] = {}
        self._queue: list[tuple[int, int]] = []
        for number, txn in state.by_txn.items():
            self._uses[number] = _TxnUse(None, None, self._started_ms)
            self._watch(txn, self._started_ms)

    def __len__(self) -> int:
        return len(self._queue)

    def note(self, event: Event) -> None:
        """Record the use of a transaction by an event that was just applied."""
        if isinstance(event, TxnBegun):
            now_ms = self._monotonic_ms()
            self._uses[event.number] = _TxnUse(now_ms, now_ms, now_ms)
            self._watch(self._state.by_txn[event.number], now_ms)
        elif isinstance(
            event, TxnExtended | PositionsNamed | ChunkStaged | TxnPublished | TxnPrepared
        ):
            use = self._uses[event.txn]
            use.touched_ms = self._monotonic_ms()
            if isinstance(event, ChunkStaged):
                use.renewed_ms = use.touched_ms

    def _watch(self, txn: Txn, now_ms: int) -> None:
        """Queue a transaction for its next check, which is later than `now_ms`."""
        timeout_ms = timeout_of(txn)
        if timeout_ms is not None:
            due_ms = max(self._since_ms(txn) + timeout_ms, now_ms + 1)
            heappush(self._queue, (due_ms, txn.row.number))
        pending = self._state.by_txn
        self._queue = _pruned(self._queue, pending)
        if len(self._uses) > 2 * len(pending) + QUEUE_SLACK:
            self._uses = {number: self._uses[number] for number in pending}

    def _since_ms(self, txn: Txn) -> int:
        """Return when the timeout of a transaction started, by the monotonic clock."""
        use = self._uses[txn.row.number]
        if isinstance(txn.row.owner, ProducerOwner):
            return use.renewed_ms
        return self._started_ms if use.touched_ms is None else use.touched_ms

    def elapsed_ms(self, txn: Txn) -> int:
        """Return how long ago the timeout of a pending transaction started or was renewed."""
        return self._monotonic_ms() - self._since_ms(txn)

    def is_due(self, txn: Txn) -> bool:
        """Return True if a pending transaction has a timeout and the timeout has passed."""
        timeout_ms = timeout_of(txn)
        return timeout_ms is not None and self.elapsed_ms(txn) >= timeout_ms

    def due(self, count_max: int) -> list[Txn]:
        """Return at most `count_max` transactions whose timeout has passed."""
        overdue: list[Txn] = []
        now_ms = self._monotonic_ms()
        while self._queue and self._queue[0][0] <= now_ms and len(overdue) < count_max:
            _, number = heappop(self._queue)
            txn = self._state.by_txn.get(number)
            if txn is None:
                continue
            self._watch(txn, now_ms)  # also if it is due, in case the abort has to wait
            if self.is_due(txn):
                overdue.append(txn)
        return overdue

    def dates(self, txn: Txn, now_ms: int) -> TxnDates:
        """Return the dates of a pending transaction, by the wall clock as it is now.

        `now_ms` is the time of that clock.
        """
        row, use = txn.row, self._uses[txn.row.number]
        due_ms, timeout_ms = deadline_of(txn), timeout_of(txn)
        if due_ms is not None and timeout_ms is not None:
            due_ms = _plausible(due_ms, now_ms + timeout_ms - self.elapsed_ms(txn))
        return TxnDates(
            self._date(row.begun_ms, use.begun_ms, now_ms),
            self._date(row.touched_ms, use.touched_ms, now_ms),
            due_ms,
        )

    def _date(self, stored_ms: int, at_ms: int | None, now_ms: int) -> int:
        """Return when something happened, by the wall clock. `at_ms` is by the monotonic clock.

        What happened before the process started has its stored date, unless that is later than
        the start: then the stored date is wrong, and the start is the best answer.
        """
        passed_ms = self._monotonic_ms() - (self._started_ms if at_ms is None else at_ms)
        if at_ms is None:
            return min(stored_ms, now_ms - passed_ms)
        return _plausible(stored_ms, now_ms - passed_ms)


def _plausible(stored_ms: int, true_ms: int) -> int:
    """Return the stored date if it is nearly true, so that it does not change from call to call."""
    return stored_ms if abs(stored_ms - true_ms) <= _DATE_TOLERANCE_MS else true_ms


# ---- streams -------------------------------------------------------------------------------------
# A read restarts the TTL of a stream, but writes nothing to the journal. The times of reads are
# therefore kept here and not in the state, with the times of writes. An expiry date is compared
# with the wall clock.


def can_expire(row: StreamRow) -> bool:
    """Return True if the stream has a TTL or an expiry date."""
    return row.ttl_ms is not None or row.expires_at_ms is not None


class _StreamUse(Struct):
    """When a stream was last read or written, by the monotonic clock, and its end at that time."""

    used_ms: int
    end: tuple[int, bool]


class Expiry:
    """The streams that can expire, with the time of the last use and of the next check of each.

    `uses` is empty if there is no stream that can expire. A topic is used when one of its
    partitions is used. The partitions do not expire by themselves.
    """

    def __init__(self, state: State, monotonic_ms: MonotonicMs) -> None:
        self._state = state
        self._monotonic_ms = monotonic_ms
        self.uses: dict[int, _StreamUse] = {}
        self._ends: dict[int, tuple[int, bool]] = {}  # of partitions of topics that have a TTL
        self._dates: list[tuple[int, int]] = []  # by the wall clock
        self._ttls: list[tuple[int, int]] = []  # by the monotonic clock
        for stream in state.by_number.values():
            if stream.tail.is_deleted:
                continue
            if can_expire(stream.row):
                self.note(stream)
            elif is_partition(stream.row):
                self.note_partition(stream)

    def note(self, stream: Stream) -> None:
        """Record a change of a stream that can expire. If it was a write, its TTL starts again.

        Every write moves the tail or closes the stream. The time of a frame does not show a write,
        because it can be the same for years.
        """
        number, tail = stream.row.number, stream.tail
        end = (tail.tail, tail.is_closed)
        use = self.uses.get(number)
        if use is None:
            self.uses[number] = _StreamUse(self._monotonic_ms(), end)
            if stream.row.expires_at_ms is not None:
                heappush(self._dates, (stream.row.expires_at_ms, number))
            if stream.row.ttl_ms is not None:
                heappush(self._ttls, (self._ttl_end(stream), number))
        elif use.end != end:
            use.used_ms, use.end = self._monotonic_ms(), end

    def note_partition(self, stream: Stream) -> None:
        """Record a change of a partition. If it was a write, the TTL of the topic starts again."""
        number, tail = stream.row.number, stream.tail
        topic = self._state.by_number.get(stream.row.topic)
        if tail.is_deleted or topic is None or topic.row.ttl_ms is None:
            self._ends.pop(number, None)
            return
        end = (tail.tail, tail.is_closed)
        if self._ends.get(number) != end:
            self._ends[number] = end
            self.touch(stream.row.topic)

    def forget(self, number: int) -> None:
        """Stop watching a stream. Its entries may stay in the queues until their times."""
        self.uses.pop(number, None)
        self._dates = _pruned(self._dates, self.uses)
        self._ttls = _pruned(self._ttls, self.uses)

    def touch(self, number: int) -> None:
        """Record that a stream was read. A stream that is not watched is ignored."""
        use = self.uses.get(number)
        if use is not None:
            use.used_ms = self._monotonic_ms()

    def elapsed_ms(self, number: int) -> int:
        """Return the time since a watched stream was last used or the process started."""
        return self._monotonic_ms() - self.uses[number].used_ms

    def _ttl_end(self, stream: Stream) -> int:
        assert stream.row.ttl_ms is not None
        return self.uses[stream.row.number].used_ms + stream.row.ttl_ms

    def has_expired(self, stream: Stream, now_ms: int) -> bool:
        """Return True if a watched stream has expired. `now_ms` is the time of the wall clock."""
        return is_expired(stream, now_ms=now_ms, elapsed_ms=self.elapsed_ms(stream.row.number))

    def due(self, now_ms: int, count_max: int) -> list[Stream]:
        """Return at most `count_max` streams that have expired."""
        expired: list[Stream] = []
        while self._dates and self._dates[0][0] <= now_ms and len(expired) < count_max:
            _, number = heappop(self._dates)
            if number in self.uses:
                heappush(self._dates, (now_ms + 1, number))
                expired.append(self._state.by_number[number])
        time_ms = self._monotonic_ms()
        while self._ttls and self._ttls[0][0] <= time_ms and len(expired) < count_max:
            _, number = heappop(self._ttls)
            if number in self.uses:
                stream = self._state.by_number[number]
                end_ms = self._ttl_end(stream)
                heappush(self._ttls, (max(end_ms, time_ms + 1), number))
                if end_ms <= time_ms:
                    expired.append(stream)
        return expired


# ---- producers -----------------------------------------------------------------------------------
# By default, producers that declare no idle time do not expire, and their rows are kept as long as
# the stream. An expired producer leaves a tombstone. Because of the tombstone, a late retry is
# refused, not stored twice.


CHECKS_PER_RESULT: Final = 10


def proven_ms(state: State, hour: int, hour_ms: int) -> int:
    """Return how long ago a use certainly was, before which `hour` hours were counted.

    The hour of the use itself was not complete, so it does not count. -1 means that the number of
    hours is not known.
    """
    return max(0, state.hours - hour - 1) * hour_ms if hour >= 0 else 0


class IdleProducers:
    """A queue of all streams' producers, sorted by the time of their next idle check."""

    def __init__(
        self, state: State, monotonic_ms: MonotonicMs, *, idle_ms: int, hour_ms: int
    ) -> None:
        self.idle_ms: Final = idle_ms
        self._state = state
        self._monotonic_ms = monotonic_ms
        self._used: dict[tuple[int, str], int] = {}
        self._queue: list[tuple[int, int, str]] = []
        for number, stream in state.by_number.items():
            for producer_id, row in (stream.producers or {}).items():
                self._use(number, producer_id, proven_ms(state, row.hour, hour_ms))

    def note(self, event: Event) -> None:
        """Record the use of a producer by an event that was just applied."""
        found = producer_in(event)
        if found is not None:
            self._use(*found)

    def _use(self, number: int, producer_id: str, passed_ms: int = 0) -> None:
        is_watched = (number, producer_id) in self._used
        if is_watched or self._is_live(number, producer_id):
            used_ms = self._used[number, producer_id] = self._monotonic_ms() - passed_ms
            if not is_watched:
                heappush(self._queue, (used_ms + self.idle_ms, number, producer_id))

    def end_commands(self, now_ms: int, count_max: int) -> Iterator[ExpireProducer]:
        """Return the commands that expire at most `count_max` producers.

        `now_ms` is the time of the wall clock. Execute each command before the next is requested.
        """
        for stream, producer_id in self._due(count_max):
            elapsed_ms = self._monotonic_ms() - self._used[stream.row.number, producer_id]
            yield ExpireProducer(stream.row.path, now_ms, producer_id, self.idle_ms, elapsed_ms)

    def _due(self, count_max: int) -> list[tuple[Stream, str]]:
        """Return at most `count_max` producers that have been idle for too long.

        Each producer is returned as a pair: its stream, and its id.
        """
        idle: list[tuple[Stream, str]] = []
        now_ms = self._monotonic_ms()
        for _ in range(CHECKS_PER_RESULT * count_max):
            if not self._queue or self._queue[0][0] > now_ms or len(idle) >= count_max:
                break
            _, number, producer_id = heappop(self._queue)
            if not self._is_live(number, producer_id):
                del self._used[number, producer_id]
                continue
            due_ms = self._used[number, producer_id] + self.idle_ms
            # Queue the producer again, because the disk may have no space to expire it now.
            heappush(self._queue, (max(due_ms, now_ms + 1), number, producer_id))
            if due_ms <= now_ms:
                idle.append((self._state.by_number[number], producer_id))
        return idle

    def _is_live(self, number: int, producer_id: str) -> bool:
        """Return True if the server's idle time counts for a producer of a stream that is there."""
        stream = self._state.by_number.get(number)
        if stream is None or stream.tail.is_deleted or not stream.producers:
            return False
        row: ProducerRow | None = stream.producers.get(producer_id)
        return row is not None and not row.is_expired and not row.expires_ms


# ---- retention -----------------------------------------------------------------------------------

_STORED_PARTS: Final = 12  # of an hour: a checkpoint is made at least so often
_LAST_MS: Final = 1_000  # time that is lost rather than stored at the end of the process


class Hours:
    """Finds out when the process has run for one more hour.

    The retention of idempotency keys and of transaction outcomes is measured in such hours. They
    are events in the journal, so that it is the same in every replay, and continues after a
    restart. A checkpoint stores the part of an hour that has passed. So at most the time after the
    last checkpoint is not counted, and a checkpoint is due for this alone a few times in an hour.
    """

    def __init__(self, hour_ms: int, monotonic_ms: MonotonicMs, run_ms: int) -> None:
        """Begin with an hour of which `run_ms` had passed at the last checkpoint."""
        self._hour_ms = hour_ms
        self._monotonic_ms = monotonic_ms
        self._began_ms = monotonic_ms() - run_ms
        self._stored_ms = monotonic_ms()

    @property
    def run_ms(self) -> int:
        """The time that the process has run since the last hour was counted."""
        return self._monotonic_ms() - self._began_ms

    def is_due(self) -> bool:
        return self.run_ms >= self._hour_ms

    def must_store(self, *, is_last: bool) -> bool:
        """Return True if the next checkpoint must be made, so that the time is not lost."""
        passed_ms = self._monotonic_ms() - self._stored_ms
        return passed_ms >= (_LAST_MS if is_last else self._hour_ms // _STORED_PARTS)

    def store(self) -> int:
        """Return the part of an hour that has passed, for a checkpoint."""
        self._stored_ms = self._monotonic_ms()
        return self.run_ms

    def note(self, event: Event) -> None:
        """Begin the next hour, if the event counts an hour."""
        if isinstance(event, HourPassed):
            self._began_ms = self._monotonic_ms()


# ---- the clock -----------------------------------------------------------------------------------

_AHEAD_MS_MAX: Final = 1_000


class ClockWatch:
    """Warns when the newest frame is ahead of the wall clock, once each time that this begins.

    Frame time never goes back. So one append with a clock that is years ahead leaves frame time
    ahead of the clock for years.
    """

    def __init__(self) -> None:
        self._is_ahead = False

    def check(self, *, frame_ms: int, now_ms: int) -> None:
        """Compare the time of the newest frame with the wall clock."""
        ahead_ms = frame_ms - now_ms
        was_ahead, self._is_ahead = self._is_ahead, ahead_ms > _AHEAD_MS_MAX
        if self._is_ahead and not was_ahead:
            log.warning(
                "the newest frame is %d s ahead of the clock: the clock is wrong now, or was wrong "
                "then. New messages get that time until the clock has reached it. Timeouts are not "
                "affected. Check the clock of this machine",
                ahead_ms // 1000,
            )
