"""Finds overdue transactions, expired streams and idle producers, even if no request arrives.

Each class only returns the objects that are due. The broker then runs a command for each of
them, such as ExpireTxn.
"""

from heapq import heapify, heappop, heappush
from typing import Final

from semel.machine.rows import ProducerRow, StreamRow
from semel.machine.state import State, Stream, Txn
from semel.machine.streams import is_expired, window_end_ms
from semel.machine.txn.decide_end import deadline_of

# ---- transactions --------------------------------------------------------------------------------


class Deadlines:
    """A queue of the pending transactions that have a deadline.

    Each entry has the time of a transaction's next check. When a transaction is used, its deadline
    can be postponed, but its entry does not change. If the check then comes before the deadline,
    the transaction is queued again.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._queue: list[tuple[int, int]] = []
        for txn in state.by_txn.values():
            self.watch(txn)

    def __len__(self) -> int:
        return len(self._queue)

    def watch(self, txn: Txn) -> None:
        due_ms = deadline_of(txn)
        if due_ms is not None:
            heappush(self._queue, (due_ms, txn.row.number))
        pending = self._state.by_txn
        # If about half of the transactions in the queue have ended, remove those.
        if len(self._queue) > 2 * len(pending) + _QUEUE_SLACK:
            self._queue = [entry for entry in self._queue if entry[1] in pending]
            heapify(self._queue)

    def due(self, now_ms: int, count_max: int) -> list[Txn]:
        """Return at most `count_max` transactions whose deadline has passed."""
        overdue: list[Txn] = []
        time_ms = self._state.frame_time(now_ms)
        while self._queue and self._queue[0][0] <= time_ms and len(overdue) < count_max:
            _, number = heappop(self._queue)
            txn = self._state.by_txn.get(number)
            if txn is None:
                continue
            if is_due(self._state, txn, now_ms):
                overdue.append(txn)
                heappush(self._queue, (time_ms + 1, number))  # in case the abort has to wait
            else:
                self.watch(txn)
        return overdue


def is_due(state: State, txn: Txn, now_ms: int) -> bool:
    """Return True if the transaction has a deadline and the deadline has passed."""
    due_ms = deadline_of(txn)
    return due_ms is not None and state.frame_time(now_ms) >= due_ms


# ---- streams -------------------------------------------------------------------------------------
# A read restarts the TTL of a stream, but writes nothing to the journal. The times of reads are
# therefore kept here and not in the state. They are lost when the process ends, so every TTL
# restarts when the process starts. A stream can expire late, but never early.


_QUEUE_SLACK: Final = 1_024


def can_expire(row: StreamRow) -> bool:
    """Return True if the stream has a TTL or an expiry date."""
    return row.ttl_ms is not None or row.expires_at_ms is not None


class Expiry:
    """The streams that can expire.

    For each stream, this stores the time of the last read and the time of the next check.
    """

    def __init__(self, state: State, now_ms: int) -> None:
        self._state = state
        self._started_ms = state.frame_time(now_ms)
        self._touched: dict[int, int] = {}
        self._watched: set[int] = set()
        self._queue: list[tuple[int, int]] = []
        for stream in state.by_number.values():
            if can_expire(stream.row) and not stream.tail.is_deleted:
                self.watch(stream)

    @property
    def is_idle(self) -> bool:
        """True if there is no stream that can expire."""
        return not self._watched

    def watch(self, stream: Stream) -> None:
        number = stream.row.number
        if number not in self._watched:
            self._watched.add(number)
            heappush(self._queue, (self.deadline(stream), number))

    def forget(self, number: int) -> None:
        """Stop watching a stream. Its entry may stay in the queue until the time in the entry."""
        self._touched.pop(number, None)
        self._watched.discard(number)
        if len(self._queue) > 2 * len(self._watched) + _QUEUE_SLACK:
            self._queue = [entry for entry in self._queue if entry[1] in self._watched]
            heapify(self._queue)

    def touch(self, number: int, now_ms: int) -> None:
        time_ms = self._state.frame_time(now_ms)
        self._touched[number] = max(time_ms, self._touched.get(number, 0))

    def touched_ms(self, number: int) -> int:
        """Return when a stream was last read, or when the process started, whichever is later."""
        return max(self._started_ms, self._touched.get(number, 0))

    def deadline(self, stream: Stream) -> int:
        """Return the time at which the stream expires if it is not used before that time."""
        row = stream.row
        ends = [] if row.expires_at_ms is None else [row.expires_at_ms]
        if row.ttl_ms is not None:
            ends.append(window_end_ms(stream, self.touched_ms(row.number)))
        return min(ends)

    def has_expired(self, stream: Stream, now_ms: int) -> bool:
        """Return True if the stream has expired. The stream must have a TTL or an expiry date."""
        touched_ms = self.touched_ms(stream.row.number)
        time_ms = self._state.frame_time(now_ms)
        return is_expired(stream, touched_ms, now_ms=now_ms, time_ms=time_ms)

    def due(self, now_ms: int, count_max: int) -> list[Stream]:
        """Return at most `count_max` streams that have expired."""
        expired: list[Stream] = []
        while self._queue and self._queue[0][0] <= now_ms and len(expired) < count_max:
            _, number = heappop(self._queue)
            if number not in self._watched:
                continue
            stream = self._state.by_number[number]
            heappush(self._queue, (max(self.deadline(stream), now_ms + 1), number))
            if self.has_expired(stream, now_ms):
                expired.append(stream)
        return expired


# ---- producers -----------------------------------------------------------------------------------
# By default, producers do not expire, and their rows are kept as long as the stream. An expired
# producer leaves a tombstone. Because of the tombstone, a late retry is refused, not stored twice.


_CHECKS_PER_RESULT: Final = 10


class IdleProducers:
    """A queue of all streams' producers, sorted by the time of their next idle check."""

    def __init__(self, state: State, idle_ms: int) -> None:
        self.idle_ms: Final = idle_ms
        self._state = state
        self._watched: set[tuple[int, str]] = set()
        self._queue: list[tuple[int, int, str]] = []
        for number, stream in state.by_number.items():
            for producer_id in stream.producers or ():
                self.watch(number, producer_id)

    def watch(self, number: int, producer_id: str) -> None:
        """Watch a producer of the stream `number`, unless that producer is watched already."""
        if (number, producer_id) in self._watched:
            return
        row = self._row(number, producer_id)
        if row is not None:
            self._watched.add((number, producer_id))
            heappush(self._queue, (row.updated_ms + self.idle_ms, number, producer_id))

    def due(self, now_ms: int, count_max: int) -> list[tuple[str, str]]:
        """Return at most `count_max` producers that have been idle for too long.

        Each producer is returned as a pair: the path of its stream, and its id.
        """
        idle: list[tuple[str, str]] = []
        time_ms = self._state.frame_time(now_ms)
        for _ in range(_CHECKS_PER_RESULT * count_max):
            if not self._queue or self._queue[0][0] > time_ms or len(idle) >= count_max:
                break
            _, number, producer_id = heappop(self._queue)
            row = self._row(number, producer_id)
            if row is None:
                self._watched.discard((number, producer_id))
                continue
            deadline = row.updated_ms + self.idle_ms
            # Queue the producer again, because the disk may have no space to expire it now.
            heappush(self._queue, (max(deadline, time_ms + 1), number, producer_id))
            if deadline <= time_ms:
                idle.append((self._state.by_number[number].row.path, producer_id))
        return idle

    def _row(self, number: int, producer_id: str) -> ProducerRow | None:
        """Return a row, or None if the producer is unknown or expired, or its stream is deleted."""
        stream = self._state.by_number.get(number)
        if stream is None or stream.tail.is_deleted or not stream.producers:
            return None
        row = stream.producers.get(producer_id)
        return None if row is None or row.is_expired else row
