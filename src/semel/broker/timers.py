"""When streams end by themselves.

Reads prolong a sliding window without leaving a trace in the journal, so their times live here and
not in the state. After a restart every window starts anew: late, never early.
"""

from heapq import heapify, heappop, heappush
from typing import Final

from semel.machine.retention import is_expired, window_end_ms
from semel.machine.rows import ProducerRow, StreamRow
from semel.machine.state import State, Stream, Txn
from semel.machine.txn.decide_end import deadline_of

# ---- deadlines -----------------------------------------------------------------------------------
# When transactions end by themselves.


class Deadlines:
    """The order in which transactions may time out.

    An entry is only a time to look again: a transaction's own deadline moves with every chunk. That
    of a decided one goes with its time, which may be a day, or when half of them are dead.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._queue: list[tuple[int, int]] = []
        for txn in state.by_txn.values():
            self.watch(txn)

    def __len__(self) -> int:
        """Count the entries."""
        return len(self._queue)

    def watch(self, txn: Txn) -> None:
        """Watch a transaction."""
        due_ms = deadline_of(txn)
        if due_ms is not None:
            heappush(self._queue, (due_ms, txn.row.number))
        undecided = self._state.by_txn
        if len(self._queue) > 2 * len(undecided) + _QUEUE_SLACK:
            self._queue = [entry for entry in self._queue if entry[1] in undecided]
            heapify(self._queue)

    def due(self, now_ms: int, count_max: int) -> list[Txn]:
        """List transactions whose time is over, at most `count_max`."""
        found: list[Txn] = []
        time_ms = self._state.frame_time(now_ms)
        while self._queue and self._queue[0][0] <= time_ms and len(found) < count_max:
            _, number = heappop(self._queue)
            txn = self._state.by_txn.get(number)
            if txn is None:
                continue
            if is_due(self._state, txn, now_ms):
                found.append(txn)
                heappush(self._queue, (time_ms + 1, number))  # should it have to wait
            else:
                self.watch(txn)
        return found


def is_due(state: State, txn: Txn, now_ms: int) -> bool:
    """Tell whether a transaction's time is over."""
    due_ms = deadline_of(txn)
    return due_ms is not None and state.frame_time(now_ms) >= due_ms


# ---- expiry --------------------------------------------------------------------------------------


_QUEUE_SLACK: Final = 1_024


def can_expire(row: StreamRow) -> bool:
    """Tell whether a stream can expire at all."""
    return row.ttl_ms is not None or row.expires_at_ms is not None


class Expiry:
    """The last use of every mortal stream, and the order in which they may end."""

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
        """Tell that no stream can expire."""
        return not self._watched

    def watch(self, stream: Stream) -> None:
        """Watch a mortal stream."""
        number = stream.row.number
        if number not in self._watched:
            self._watched.add(number)
            heappush(self._queue, (self.deadline(stream), number))

    def forget(self, number: int) -> None:
        """Stop watching; the queue's entry goes with its time, or when half of them are dead."""
        self._touched.pop(number, None)
        self._watched.discard(number)
        if len(self._queue) > 2 * len(self._watched) + _QUEUE_SLACK:
            self._queue = [entry for entry in self._queue if entry[1] in self._watched]
            heapify(self._queue)

    def touch(self, number: int, now_ms: int) -> None:
        """Note a read."""
        time_ms = self._state.frame_time(now_ms)
        self._touched[number] = max(time_ms, self._touched.get(number, 0))

    def touched_ms(self, number: int) -> int:
        """Tell a stream's last use other than by a write."""
        return max(self._started_ms, self._touched.get(number, 0))

    def deadline(self, stream: Stream) -> int:
        """Tell when to look at a mortal stream again, at the latest."""
        row = stream.row
        ends = [] if row.expires_at_ms is None else [row.expires_at_ms]
        if row.ttl_ms is not None:
            ends.append(window_end_ms(stream, self.touched_ms(row.number)))
        return min(ends)

    def is_over(self, stream: Stream, now_ms: int) -> bool:
        """Tell whether a mortal stream's time is over."""
        touched_ms = self.touched_ms(stream.row.number)
        time_ms = self._state.frame_time(now_ms)
        return is_expired(stream, touched_ms, now_ms=now_ms, time_ms=time_ms)

    def due(self, now_ms: int, count_max: int) -> list[Stream]:
        """List streams whose time is over, at most `count_max`."""
        found: list[Stream] = []
        while self._queue and self._queue[0][0] <= now_ms and len(found) < count_max:
            _, number = heappop(self._queue)
            if number not in self._watched:
                continue
            stream = self._state.by_number[number]
            heappush(self._queue, (max(self.deadline(stream), now_ms + 1), number))
            if self.is_over(stream, now_ms):
                found.append(stream)
        return found


# ---- idle ----------------------------------------------------------------------------------------
# When producers that fell silent are let go.
#
# Off unless a setting says otherwise: a producer's state lives as long as its stream. What is let
# go leaves a tombstone, so a late retry is refused and never stored twice.


_LOOKS_PER_FIND: Final = 10


class IdleProducers:
    """The producers of all streams, in the order in which they may have been idle too long."""

    def __init__(self, state: State, idle_ms: int) -> None:
        self.idle_ms: Final = idle_ms
        self._state = state
        self._watched: set[tuple[int, str]] = set()
        self._queue: list[tuple[int, int, str]] = []
        for number, stream in state.by_number.items():
            for producer_id in stream.producers or ():
                self.watch(number, producer_id)

    def watch(self, number: int, producer_id: str) -> None:
        """Watch a producer of a stream; one that is watched already costs nothing."""
        if (number, producer_id) in self._watched:
            return
        row = self._row(number, producer_id)
        if row is not None:
            self._watched.add((number, producer_id))
            heappush(self._queue, (row.updated_ms + self.idle_ms, number, producer_id))

    def due(self, now_ms: int, count_max: int) -> list[tuple[str, str]]:
        """List path and id of producers idle too long, at most `count_max`."""
        found: list[tuple[str, str]] = []
        time_ms = self._state.frame_time(now_ms)
        for _ in range(_LOOKS_PER_FIND * count_max):
            if not self._queue or self._queue[0][0] > time_ms or len(found) >= count_max:
                break
            _, number, producer_id = heappop(self._queue)
            row = self._row(number, producer_id)
            if row is None:
                self._watched.discard((number, producer_id))
                continue
            deadline = row.updated_ms + self.idle_ms
            # Its end may find no room on the disk; then it is looked at again.
            heappush(self._queue, (max(deadline, time_ms + 1), number, producer_id))
            if deadline <= time_ms:
                found.append((self._state.by_number[number].row.path, producer_id))
        return found

    def _row(self, number: int, producer_id: str) -> ProducerRow | None:
        """Find a producer that can still be let go."""
        stream = self._state.by_number.get(number)
        if stream is None or stream.tail.is_deleted or not stream.producers:
            return None
        row = stream.producers.get(producer_id)
        return None if row is None or row.is_expired else row
