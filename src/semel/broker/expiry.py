"""When streams end by themselves.

Reads prolong a sliding window without leaving a trace in the journal, so their times live here and
not in the state. After a restart every window starts anew: late, never early.
"""

from heapq import heappop, heappush

from semel.machine.rows import StreamRow
from semel.machine.state import State, Stream, expiry_ms


def is_mortal(row: StreamRow) -> bool:
    """Tell whether a stream can expire at all."""
    return row.ttl_ms is not None or row.expires_at_ms is not None


class Expiry:
    """The last use of every mortal stream, and the order in which they may end."""

    def __init__(self, state: State, now_ms: int) -> None:
        self._state = state
        self._started_ms = now_ms
        self._touched: dict[int, int] = {}
        self._watched: set[int] = set()
        self._queue: list[tuple[int, int]] = []
        for stream in state.by_number.values():
            if is_mortal(stream.row) and not stream.tail.is_deleted:
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
        """Stop watching; the queue's entry is dropped when its time comes."""
        self._touched.pop(number, None)
        self._watched.discard(number)

    def touch(self, number: int, now_ms: int) -> None:
        """Note a read."""
        self._touched[number] = max(now_ms, self._touched.get(number, 0))

    def touched_ms(self, number: int) -> int:
        """Tell a stream's last use other than by a write."""
        return max(self._started_ms, self._touched.get(number, 0))

    def deadline(self, stream: Stream) -> int:
        """Tell when a mortal stream ends."""
        deadline_ms = expiry_ms(stream.row, stream.tail, self.touched_ms(stream.row.number))
        assert deadline_ms is not None
        return deadline_ms

    def due(self, now_ms: int, count_max: int) -> list[Stream]:
        """List streams whose time is over, at most `count_max`."""
        found: list[Stream] = []
        while self._queue and self._queue[0][0] <= now_ms and len(found) < count_max:
            _, number = heappop(self._queue)
            if number not in self._watched:
                continue
            stream = self._state.by_number[number]
            deadline_ms = self.deadline(stream)
            heappush(self._queue, (max(deadline_ms, now_ms + 1), number))
            if deadline_ms <= now_ms:
                found.append(stream)
        return found
